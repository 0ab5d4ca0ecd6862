"""The accelerators that this process sees, from torch and, for details, from NVML."""

import logging
import os
import socket
from collections.abc import Collection, Mapping

from gpumap.detect.nvml import nvml_node
from gpumap.detect.rehearsal import REHEARSAL, rehearsed_node
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.visibility import mask_of, masks_of, visible

__all__ = ["counted_alike", "detect_node", "joined"]

log = logging.getLogger(__name__)

# Fields that NVML knows better than torch, or that only NVML knows.
_NVMLS_OWN = (
    "uuid",
    "physical_index",
    "pci_bus_id",
    "numa_node",
    "cpu_affinity",
    "mig",
    "free_memory",
    "utilization",
)
# More devices than any host has.
_MANY = 256


def detect_node(
    kind: str = "auto",
    environ: Mapping[str, str] | None = None,
    launch: Launch | None = None,
) -> Node:
    """Return this host and its visible accelerators.

    Under GPUMAP_REHEARSAL, return the rehearsed machine; if that has several nodes,
    launch (or else the environment) selects one.

    kind is "auto" for whatever accelerator there is, "cpu" for none, or a torch device
    type that must be there. torch says which devices are visible and how they are
    numbered; with the extra "nvml", NVIDIA's own library adds links, NUMA nodes and
    what is free at this moment. Reading properties opens no context on any device.

    Raises:
        LaunchError: Several nodes are rehearsed, and the environment selects none.
        DeviceError: The kind is unknown to this torch, or there is no such device, or
            torch cannot read one.
    """
    variables = os.environ if environ is None else environ
    wanted = variables.get(REHEARSAL)
    if wanted and kind != "cpu":
        node = rehearsed_node(wanted, launch, variables)
        kinds = {device.kind for device in node.devices}
        if kind not in ("auto", *kinds):
            raise DeviceError(
                f"device={kind!r} was asked for, and there is none.",
                node.visible,
                'Write device="auto", or rehearse a machine that has one; which one of '
                "several devices is for gpus=[…] to say.",
            )
        return node
    return _real_node(kind, variables)


def _real_node(kind: str, variables: Mapping[str, str]) -> Node:
    import torch  # noqa: PLC0415 - only who asks for the hardware pays for the import

    hostname = socket.gethostname()
    if kind == "cpu":
        return Node(hostname=hostname)
    available = torch.accelerator.is_available()
    current = torch.accelerator.current_accelerator()
    found = current.type if available and current is not None else None
    if kind not in ("auto", found):
        raise DeviceError(
            f"device={kind!r} was asked for, and there is none.",
            f"torch {torch.__version__} finds {found or 'no accelerator'} "
            f"on {hostname}.",
            'Write device="auto" or device="cpu"; which one of several devices is for '
            "gpus=[…] to say.",
        )
    if found is None:
        return Node(hostname=hostname, hidden_by=_hiding(hostname, variables))
    torchs, runtimes = torch.accelerator.device_count(), _count_of_runtime(found)
    count = min(torchs, runtimes)
    seen = Node(hostname=hostname, devices=_through_torch(found, count, variables))
    amd = any(device.rocm for device in seen.devices)
    physical = nvml_node(hostname) if found == "cuda" and not amd else None
    slices = physical is not None and any(device.mig for device in physical.devices)
    # How many slices a process sees is the runtime's to say; torch counts whole GPUs.
    changed = torchs != runtimes and not slices
    if changed or _is_late(seen, physical, variables):
        name, mask = mask_of(seen, variables) or ("the *_VISIBLE_DEVICES mask", "unset")
        log.warning(
            "%s=%r was changed after the GPU runtime had started in this process, and "
            "has no effect: torch goes on using %s. Set it before the process starts, "
            "or before the first use of torch.cuda.",
            name,
            mask,
            ", ".join(map(str, seen.devices)),
        )
    if physical is not None:
        left = visible(physical, variables).devices
        seen = joined(seen, physical, {device.uuid for device in left})
    return _numbered(seen, variables)


def _hiding(hostname: str, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the masks that may hide the devices that this torch was built for."""
    import torch  # noqa: PLC0415 - as above

    built = torch.accelerator.current_accelerator()
    if built is None:
        return ()
    rocm = torch.version.hip is not None
    many = _many(Device(kind=built.type, index=0, rocm=rocm), hostname)
    try:
        return visible(many, environ).hidden_by or tuple(masks_of(many, environ))
    except DeviceError:  # the driver would refuse it, if there were devices
        return tuple(masks_of(many, environ))


def _count_of_runtime(kind: str) -> int:
    """Return how many devices there are, as the CUDA runtime counts them.

    torch.cuda counts by the current mask, the CUDA runtime by the one that it read when
    it started; torch has no public function for the runtime's count.
    """
    import torch  # noqa: PLC0415 - as above

    runtimes = getattr(torch._C, "_cuda_getDeviceCount", None)  # noqa: SLF001
    if kind != "cuda" or runtimes is None:
        return torch.accelerator.device_count()
    return int(runtimes())


def _through_torch(
    kind: str, count: int, environ: Mapping[str, str]
) -> tuple[Device, ...]:
    """Return the devices that torch sees; its errors become a DeviceError."""
    import torch  # noqa: PLC0415 - as above

    module = torch.get_device_module(kind)
    # torch.mps has no such function.
    properties = getattr(module, "get_device_properties", None)
    rocm = torch.version.hip is not None
    try:
        return tuple(
            _device(kind, index, properties and properties(index), rocm=rocm)
            for index in range(count)
        )
    except (RuntimeError, AssertionError, ValueError) as error:
        masks = [f"{n}={x!r}" for n, x in environ.items() if "VISIBLE_DEVICES" in n]
        raise DeviceError(
            f"torch cannot read the {kind} devices of {socket.gethostname()}.",
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]} "
            f"{', '.join(masks) or 'No mask is set'}.",
            "Correct the mask if it is one; if it was changed in this process, set it "
            "before the process starts.",
        ) from error


def _is_late(seen: Node, physical: Node | None, environ: Mapping[str, str]) -> bool:
    """Tell whether the mask was changed after the GPU runtime had read it.

    physical is the node as NVML sees it. For MIG slices nothing is compared: how many a
    process sees depends on the driver. For ordinals of unlike cards, which CUDA counts
    in its own order, only the number of devices is.
    """
    count = len(seen.devices)
    if physical is None:
        mask = mask_of(seen, environ)
        return mask is not None and len(_left_of_many(seen, environ)) < count
    if any(device.mig for device in physical.devices):
        return False
    left = visible(physical, environ).devices
    mask_is_uuids = environ.get("CUDA_VISIBLE_DEVICES", "GPU-").startswith("GPU-")
    if not mask_is_uuids and not counted_alike(physical, environ):
        return len(left) < count
    places = {_place(device, physical) for device in seen.devices}
    return places != {_place(device, physical) for device in left}


def joined(seen: Node, physical: Node, named: Collection[str | None] = ()) -> Node:
    """Return torch's devices with what NVML knows about each, matched by UUID.

    named: the UUIDs that the mask leaves. For a MIG slice torch may report its GPU's
    UUID; then the one slice in named is meant.
    """
    places = [_place(device, physical, named) for device in seen.devices]
    sure = [None if places.count(place) > 1 else place for place in places]
    there = [place for place in sure if place is not None]
    index = {place: n for n, place in enumerate(sure) if place is not None}
    return seen.model_copy(
        update={
            "devices": tuple(
                device
                if place is None
                else device.model_copy(update=_better(device, physical.devices[place]))
                for device, place in zip(seen.devices, sure, strict=True)
            ),
            "links": tuple(
                link.model_copy(
                    update={"a": index[there[link.a]], "b": index[there[link.b]]}
                )
                for link in physical.keeping(there).links
            ),
        }
    )


def _place(
    device: Device, physical: Node, named: Collection[str | None] = ()
) -> int | None:
    """Return the index of one of torch's devices among NVML's; None if it has none.

    For a MIG instance CUDA may report its own UUID without the MIG-, or its GPU's.
    """
    own = (device.uuid or "").partition("-")[2]
    others = list(enumerate(physical.devices))
    fits = [n for n, other in others if (other.uuid or "").partition("-")[2] == own]
    fits += [n for n, x in others if x.mig == device.uuid and x.uuid in named]
    return fits[0] if own and fits else None


def _better(device: Device, other: Device) -> dict[str, object]:
    return {
        name: value
        for name in Device.model_fields
        if (value := getattr(other, name)) is not None
        and (name in _NVMLS_OWN or getattr(device, name) is None)
    }


def _numbered(node: Node, environ: Mapping[str, str]) -> Node:
    """Return a node with physical indices, as far as they are known without NVML.

    A mask of ordinals gives them, unless CUDA counts differently from nvidia-smi: where
    cards differ, by speed. Without a mask, nvidia-smi's order is that of the PCI buses.
    """
    devices = node.devices
    if any(device.physical_index is not None for device in devices):
        return node
    numbers: list[int] = []
    if mask_of(node, environ) is None:
        buses = [device.pci_bus_id or "" for device in devices]
        numbers = [sorted(buses).index(bus) for bus in buses] if all(buses) else []
    elif counted_alike(node, environ):
        numbers = _left_of_many(node, environ)
    if len(set(numbers)) != len(devices):
        return node
    return node.model_copy(
        update={
            "devices": tuple(
                device.model_copy(update={"physical_index": number})
                for device, number in zip(devices, numbers, strict=True)
            )
        }
    )


def counted_alike(node: Node, environ: Mapping[str, str]) -> bool:
    """Tell whether CUDA and nvidia-smi count these devices in the same order."""
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return by_bus or len({device.name for device in node.devices}) == 1


def _left_of_many(node: Node, environ: Mapping[str, str]) -> list[int]:
    """Return the ordinals that the mask selects.

    The mask is applied to 256 copies of the first device, so that masks are parsed in
    one place.
    """
    left = visible(_many(node.devices[0], node.hostname), environ)
    return [device.physical_index or 0 for device in left.devices]


def _many(one: Device, hostname: str) -> Node:
    plain = one.model_copy(update={"uuid": None, "mig": None})
    devices = (
        plain.model_copy(update={"index": n, "physical_index": n}) for n in range(_MANY)
    )
    return Node(hostname=hostname, devices=tuple(devices))


def _device(kind: str, index: int, properties: object, *, rocm: bool) -> Device:
    """Return what torch knows about a device; None for what a kind does not have."""

    def known(*names: str) -> int | None:
        values = (getattr(properties, name, None) for name in names)
        return next((v for v in values if isinstance(v, int)), None)

    major, minor, bus = known("major"), known("minor"), known("pci_bus_id")
    name = getattr(properties, "name", None)
    pci = (
        None
        if bus is None
        else f"{known('pci_domain_id') or 0:08x}:{bus:02x}:"
        f"{known('pci_device_id') or 0:02x}.0"
    )
    return Device(
        kind=kind,
        index=index,
        uuid=_uuid(kind, getattr(properties, "uuid", None), rocm=rocm),
        pci_bus_id=pci,
        name=name,
        total_memory=known("total_memory"),
        compute_capability=None
        if major is None or minor is None or kind != "cuda" or rocm
        else (major, minor),
        multiprocessors=known("multi_processor_count", "gpu_subslice_count"),
        # A slice is named after its profile: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
        mig=pci if " MIG " in str(name) else None,
        rocm=rocm,
    )


def _uuid(kind: str, value: object, *, rocm: bool) -> str | None:
    """Return a UUID in the form that the masks use.

    AMD's are sixteen hexadecimal digits, which torch shows as the bytes of their text.
    """
    if value is None:
        return None
    text = str(value)
    if rocm:
        try:
            digits = bytes.fromhex(text.replace("-", "")).decode("ascii")
            int(digits, 16)
        except ValueError:
            return f"GPU-{text}"
        return f"GPU-{digits}"
    return f"GPU-{text}" if kind == "cuda" else text

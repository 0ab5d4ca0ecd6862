"""The accelerators that this process sees, through torch."""

import os
import socket
from collections.abc import Mapping

from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.visibility import mask_ordinals

__all__ = ["detect_node"]


def detect_node(kind: str = "auto", environ: Mapping[str, str] | None = None) -> Node:
    """Return this host and its visible accelerators, as torch tells of them.

    kind is "auto" for whatever accelerator there is, "cpu" for none, or a torch device
    type that must be there. Reading properties opens no context on any device.

    Raises:
        DeviceError: The kind is unknown to this torch, or there is no such device.
    """
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
        return Node(hostname=hostname)
    module = torch.get_device_module(found)
    count = torch.accelerator.device_count()
    mask = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    physical = mask_ordinals(mask) or []
    return Node(
        hostname=hostname,
        devices=tuple(
            _device(found, index, module.get_device_properties(index)).model_copy(
                update={"physical_index": place}
            )
            for index, place in zip(
                range(count),
                physical if len(physical) == count else [None] * count,
                strict=True,
            )
        ),
    )


def _device(kind: str, index: int, properties: object) -> Device:
    """Read what torch knows; other accelerators than CUDA leave fields out."""

    def known(name: str) -> int | None:
        value = getattr(properties, name, None)
        return value if isinstance(value, int) else None

    major, minor = known("major"), known("minor")
    uuid = getattr(properties, "uuid", None)
    bus = known("pci_bus_id")
    return Device(
        kind=kind,
        index=index,
        uuid=f"GPU-{uuid}"
        if uuid is not None and kind == "cuda"
        else uuid and str(uuid),
        pci_bus_id=None
        if bus is None
        else f"{known('pci_domain_id') or 0:08x}:{bus:02x}:"
        f"{known('pci_device_id') or 0:02x}.0",
        name=getattr(properties, "name", None),
        total_memory=known("total_memory"),
        compute_capability=None
        if major is None or minor is None or kind != "cuda"
        else (major, minor),
        multiprocessors=known("multi_processor_count"),
    )

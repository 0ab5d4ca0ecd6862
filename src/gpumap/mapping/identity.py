"""Identifiers that tell a device apart from all others in a job, if anything does."""

import re

from gpumap.errors import DeviceError
from gpumap.mapping.base import FrozenModel
from gpumap.mapping.devices import Device, Node

__all__ = [
    "Identity",
    "claimed_as",
    "identity_of",
    "lasting_name",
    "tells",
    "unclaimable",
]

# Of these, some version of torch tells a UUID or a bus ID, and another nothing: a
# number would be a second name.
_NAMED_KINDS = ("cuda", "xpu")


class Identity(FrozenModel):
    """An identifier that two ranks share only if they are on the same device.

    Attributes:
        name: The device's own name: a UUID, a PCI bus ID, or an index.
        place: The scope in which that name is unique.
    """

    name: str
    place: str

    def __str__(self) -> str:
        """Return both, for use in a store's key."""
        return f"{self.name} {self.place}"


def identity_of(
    device: Device, *, host: str | None, view: str | None, can_share: bool
) -> Identity | None:
    """Return a device's identifier; None if nothing identifies it for certain.

    host is a globally unique identifier of the kernel that the process runs under; view
    identifies the scope of the process's device indices, which containers of one host
    do not share. can_share: whether two ranks may be on slices of one GPU.

    A UUID alone is not enough: Intel's is made of product and bus, so equal on equal
    hosts; AMD's is "GPU-XX" for products without one; a hypervisor may show one UUID to
    all its guests. A PCI bus ID is unique on one host only.

    Source: NCCL's init.cc, which finds a GPU claimed twice by host hash (kernel's boot
    id and host name) and bus; intel/compute-runtime, generateUuidFromPciAndSubDevice;
    ROCR-Runtime, HSA_AMD_AGENT_INFO_UUID.
    """
    if device.kind == "cpu":
        return None
    if can_share and device.mig is not None and device.mig == device.pci_bus_id:
        return None  # without NVML, slices of one GPU cannot be told apart
    whole = None if can_share else device.mig
    own = whole or (device.uuid if tells(device.uuid) else None)
    if own or device.pci_bus_id:
        name = own or device.pci_bus_id or ""
        place = f"{device.pci_bus_id} {host}"
        return Identity(name=name, place=place) if host else None
    number = device.index if device.physical_index is None else device.physical_index
    return Identity(name=f"{device.kind}:{number}", place=view) if view else None


def lasting_name(device: Device, node: Node) -> str | int:
    """Return a name of a device that no mask changes: its UUID, or its PCI bus ID.

    If neither tells it from the node's other devices, that is its index.
    """
    uuids = [d.uuid for d in node.devices if tells(d.uuid)]
    buses = [d.pci_bus_id for d in node.devices]
    for name, names in ((device.uuid, uuids), (device.pci_bus_id, buses)):
        if name is not None and names.count(name) == 1:
            return name
    return device.index


def claimed_as(device: Device, node: Node) -> str | None:
    """Return the name that every process of a host claims a device by.

    It is made of the device alone, so that processes with different masks agree: its
    UUID, or else its PCI bus ID, or else its kind and physical index, which counts in
    one container. A bus ID is not added to the UUID: not every torch tells it.

    It is None, and unclaimable() says why, if nothing names the device for certain, or
    another visible one has the same name, as AMD's partitions of one GPU have. Under a
    mask that leaves one partition this is not seen: the whole GPU is claimed then, so
    that another job may be refused a free partition, and is never given a taken one.
    """
    name = _own_name(device)
    alike = [other for other in node.devices if _own_name(other) == name]
    return name if len(alike) == 1 else None


def _own_name(device: Device) -> str | None:
    if device.mig in (device.uuid, device.pci_bus_id) and device.mig is not None:
        return None  # without NVML, slices of one GPU cannot be told apart
    if tells(device.uuid):
        return device.uuid
    if device.pci_bus_id is not None:
        return device.pci_bus_id if device.mig is None else None
    if device.physical_index is None or device.kind in _NAMED_KINDS:
        return None
    return f"{device.kind}:{device.physical_index}"


def unclaimable(device: Device, node: Node) -> DeviceError:
    """Return the error that says why claimed_as() is None."""
    name = _own_name(device)
    alike = [x for x in node.devices if name is not None and _own_name(x) == name]
    if alike:
        seen = f"{', '.join(map(str, alike))} all have the name {name}."
        hint = "Write claim=False."
    elif device.mig is not None:
        seen = "It is a slice, and its own UUID is not known."
        hint = (
            "Install the extra, pip install gpumap-torch[nvml], which tells it, or "
            "write claim=False."
        )
    else:
        seen = "Neither its UUID nor its PCI bus ID nor its physical index is known."
        hint = "Write claim=False."
    return DeviceError(
        f"{device} on {node.hostname} has no name of its own to be claimed by.",
        seen,
        hint,
    )


def tells(uuid: str | None) -> bool:
    """Tell whether a UUID is more than a placeholder: hexadecimal, not all one digit.

    Old drivers name a slice after its GPU: MIG-GPU-<UUID>/<GI>/<CI>.
    """
    digits = re.sub(r"^(MIG-)?(GPU-)?|[-/]", "", uuid or "")
    return bool(re.fullmatch(r"[0-9A-Fa-f]+", digits)) and len(set(digits)) > 1

"""Identifiers that tell a device apart from all others in a job, if anything does."""

import re

from gpumap.mapping.base import FrozenModel
from gpumap.mapping.devices import Device, Node

__all__ = ["Identity", "identity_of", "lasting_name", "tells"]


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


def tells(uuid: str | None) -> bool:
    """Tell whether a UUID is more than a placeholder: hexadecimal, not all one digit.

    Old drivers name a slice after its GPU: MIG-GPU-<UUID>/<GI>/<CI>.
    """
    digits = re.sub(r"^(MIG-)?(GPU-)?|[-/]", "", uuid or "")
    return bool(re.fullmatch(r"[0-9A-Fa-f]+", digits)) and len(set(digits)) > 1

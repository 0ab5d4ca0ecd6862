"""The devices of a node and the links between them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import PrivateAttr, model_validator

from gpumap.errors import DeviceError
from gpumap.mapping.base import Count, FrozenModel, Index
from gpumap.mapping.cpu_topology import CpuTopology

if TYPE_CHECKING:
    from torch import device as torch_device

__all__ = ["CPU", "Device", "Link", "Node", "Tenant", "one_per_gpu"]


class Tenant(FrozenModel):
    """A process that uses a device, or has claimed it; what is not known is None.

    Attributes:
        pid: Its process id.
        user: Its user's name.
        command: Its command line.
        since: Since when, as local time: "2026-11-28 14:02:11".
        claims: Whether it holds a claim of gpumap's, rather than memory.
    """

    raises = DeviceError

    pid: Index | None = None
    user: str | None = None
    command: str | None = None
    since: str | None = None
    claims: bool = False

    def __str__(self) -> str:
        """Return all that is known in a few words."""
        who = self.user or "an unknown user"
        what = f" ({self.command})" if self.command else ""
        pid = "" if self.pid is None else f", pid {self.pid}{what}"
        return f"{who}{pid}" + (f", since {self.since}" if self.since else "")


class Device(FrozenModel):
    """One device; a field that could not be read is None.

    It is a description. Where torch wants a device, as in model.to(…), map_location and
    torch.device(…), write `.torch`.

    Attributes:
        kind: torch's device type: "cuda" (AMD's too), "xpu", "npu", "cpu".
        index: Device index as torch counts it, after masking.
        physical_index: Index before masking, as in nvidia-smi and in masks.
        uuid: "GPU-…" or "MIG-…"; masks and reordering do not change it.
        pci_bus_id: "domain:bus:device.function", hexadecimal.
        name: The product's name.
        total_memory: In bytes.
        compute_capability: (major, minor).
        multiprocessors: Number of streaming multiprocessors (compute units).
        numa_node: The host's NUMA node that it is attached to.
        cpu_affinity: The logical CPUs near it.
        mig: For a MIG instance, the UUID of its GPU, or the GPU's PCI bus ID if nothing
            else could be read.
        rocm: Whether it is AMD's; torch calls those "cuda" too.
        free_memory: In bytes, at the moment of reading.
        utilization: In percent, at the moment of reading.
        tenants: The processes that use or claim it, if that was asked for.
    """

    raises = DeviceError

    kind: str
    index: Index
    physical_index: Index | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    name: str | None = None
    total_memory: Count | None = None
    compute_capability: tuple[Index, Index] | None = None
    multiprocessors: Count | None = None
    numa_node: Index | None = None
    cpu_affinity: tuple[Index, ...] | None = None
    mig: str | None = None
    rocm: bool = False
    free_memory: Index | None = None
    utilization: Index | None = None
    tenants: tuple[Tenant, ...] | None = None

    _is_pretended: bool = PrivateAttr(default=False)

    @property
    def torch(self) -> "torch_device":
        """The torch.device: torch.device("cuda", 1).

        The CPU for a device that a rehearsal pretends, so that a script runs on it.
        """
        import torch  # noqa: PLC0415 - a description is made without torch

        if self.kind == "cpu" or self._is_pretended:
            return torch.device("cpu")
        return torch.device(self.kind, self.index)

    def pretended(self) -> "Device":
        """Return this device as one that a rehearsal pretends; it is equal to this."""
        device = self.model_copy()
        device._is_pretended = True  # noqa: SLF001 - of a copy
        return device

    def __eq__(self, other: object) -> bool:
        """Tell whether both describe the same device, pretended or not."""
        return isinstance(other, Device) and vars(self) == vars(other)

    def __hash__(self) -> int:
        """Return a number that is the same for equal devices."""
        return hash(tuple(vars(self).values()))

    def __str__(self) -> str:
        """Return torch's name and the start of the UUID: cuda:1 (GPU-5c3a01b2…)."""
        if self.kind == "cpu":
            return "cpu"
        short = f" ({self.uuid[:12]}…)" if self.uuid else ""
        return f"{self.kind}:{self.index}{short}"


CPU = Device(kind="cpu", index=0, name="CPU")
"""The device of a rank on a node without accelerators; ranks may share it."""


class Link(FrozenModel):
    """How two devices of a node reach each other, by NVLink or XGMI and over PCIe.

    Attributes:
        a: Index of one device in Node.devices.
        b: Index of the other.
        nvlinks: Number of NVLinks between them, through NVSwitches too.
        xgmi: Whether AMD's Infinity Fabric connects them.
        pcie: The path over PCIe, from the nearest to the farthest: PIX one bridge, PXB
            several, PHB the host bridge, NODE several within a NUMA node, SYS across.

    Source: the legend of `nvidia-smi topo -m`.
    """

    raises = DeviceError

    a: Index
    b: Index
    nvlinks: Index = 0
    xgmi: bool = False
    pcie: Literal["PIX", "PXB", "PHB", "NODE", "SYS"] | None = None


class Node(FrozenModel):
    """A host and the accelerators that a process sees there, in torch's order.

    node.model_dump_json() writes it as JSON; Node.model_validate_json(text) reads it.

    Attributes:
        hostname: The host's own name for itself.
        devices: devices[i].index is i.
        links: At most one for each pair of devices.
        hidden_by: If no device is visible, the mask that is or may be the reason, by
            name and value, followed by the masks that are applied before it.
        source: Where this description comes from, if it was not detected.
        cpus: The host's CPUs, if they were asked for.

    Raises:
        DeviceError: The devices are out of order, or a link leads nowhere.
    """

    raises = DeviceError

    hostname: str
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    hidden_by: tuple[tuple[str, str], ...] = ()
    source: str | None = None
    cpus: CpuTopology | None = None

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        indices = [device.index for device in self.devices]
        if indices != list(range(len(indices))):
            raise DeviceError(
                f"the devices of node {self.hostname} are not in torch's order.",
                f"Their indices are {indices}.",
                "List them so that devices[i].index is i.",
            )
        pairs = {frozenset((link.a, link.b)) for link in self.links}
        ends = {end for pair in pairs for end in pair}
        if (
            len(pairs) < len(self.links)
            or any(len(pair) == 1 for pair in pairs)
            or not ends <= set(indices)
        ):
            raise DeviceError(
                f"the links of node {self.hostname} do not fit its devices.",
                f"{len(self.links)} links for {len(indices)} devices.",
                "Give each pair of two different devices at most one link.",
            )
        return self

    def pretended(self) -> "Node":
        """Return this node as one that a rehearsal pretends; it is equal to this."""
        devices = tuple(device.pretended() for device in self.devices)
        return self.model_copy(update={"devices": devices})

    def keeping(self, places: Sequence[int]) -> "Node":
        """Return this node with only these devices, in this order, indexed from 0."""
        new = {old: place for place, old in enumerate(places)}
        return self.model_copy(
            update={
                "devices": tuple(
                    self.devices[old].model_copy(update={"index": place})
                    for old, place in new.items()
                ),
                "links": tuple(
                    link.model_copy(update={"a": new[link.a], "b": new[link.b]})
                    for link in self.links
                    if link.a in new and link.b in new
                ),
            }
        )

    @property
    def visible(self) -> str:
        """One sentence that lists the devices by index and by physical index."""
        if not self.devices:
            masks = ", within ".join(f"{name}={x!r}" for name, x in self.hidden_by)
            under = f", under {masks}" if masks else ""
            return f"No accelerator is visible on {self.hostname}{under}."
        names = ", ".join(
            str(d)
            + (
                f" = physical {d.physical_index}"
                if d.physical_index not in (None, d.index)
                else ""
            )
            for d in self.devices
        )
        return f"Visible on {self.hostname}: {names}."


def one_per_gpu(devices: Sequence[Device]) -> list[Device]:
    """Return the first slice of each GPU, and the devices that are not slices."""
    gpus = {device.mig or f"{device.index}": device for device in reversed(devices)}
    return sorted(gpus.values(), key=devices.index)

"""The devices of a node, and what a user may call one."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, Self, cast

from pydantic import model_validator

from gpumap.errors import DeviceError
from gpumap.mapping.values import Count, Index, Value

__all__ = ["CPU", "Device", "DeviceRef", "Link", "Node", "resolve", "resolve_all"]

DeviceRef = int | str
"""What a user may call a device.

An int is the index as torch counts it, after masking. A str is a UUID, a prefix of one
that fits a single device, or a PCI bus ID.
"""


class Device(Value):
    """One device, as far as it could be read; what is not known is None.

    Attributes:
        kind: torch's device type: "cuda" (AMD's too), "xpu", "npu", "cpu".
        index: Device index as torch counts it, after masking.
        physical_index: Index before masking, as nvidia-smi and the mask count.
        uuid: "GPU-…" or "MIG-…": what no mask and no reordering changes.
        pci_bus_id: "domain:bus:device.function", hexadecimal.
        name: The product's name.
        total_memory: In bytes.
        compute_capability: (major, minor).
        multiprocessors: Number of streaming multiprocessors (compute units).
        numa_node: The host's NUMA node that it is attached to.
        cpu_affinity: Logical CPUs near it.
        mig: For a MIG instance, the UUID of the GPU that it is a slice of.
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

    def __str__(self) -> str:
        """Return torch's name and the start of the UUID: cuda:1 (GPU-5c3a01b2…)."""
        if self.kind == "cpu":
            return "cpu"
        short = f" ({self.uuid[:12]}…)" if self.uuid else ""
        return f"{self.kind}:{self.index}{short}"


CPU = Device(kind="cpu", index=0, name="CPU")
"""Where a process is placed on a node without accelerators; ranks may share it."""


class Link(Value):
    """How two devices of a node reach each other; both facts are kept where known.

    Attributes:
        a: Place of one device in Node.devices.
        b: Place of the other.
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


class Node(Value):
    """A host and the accelerators that a process sees there, in torch's order.

    Attributes:
        hostname: The host's own name for itself.
        devices: devices[i].index is i.
        links: At most one for each pair of devices.
        source: Where this description comes from, when it was not read here and now.

    Raises:
        DeviceError: The devices are out of order, or a link leads nowhere.
    """

    raises = DeviceError

    hostname: str
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    source: str | None = None

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

    def keeping(self, places: Sequence[int]) -> "Node":
        """Return this node with only these devices, in this order, counted anew."""
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
        """One sentence that lists the devices in both numberings."""
        if not self.devices:
            return f"No accelerator is visible on {self.hostname}."
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


def resolve(ref: DeviceRef, node: Node) -> Device:
    """Return the device of a node that a reference names.

    Raises:
        DeviceError: It names none, or several, or is no reference.

    >>> card = Device(kind="cuda", index=0, uuid="GPU-5c3a01b2")
    >>> resolve("GPU-5c", Node(hostname="n1", devices=(card,))).index
    0
    """
    return resolve_all([ref], node)[0]


def resolve_all(refs: Iterable[DeviceRef], node: Node) -> tuple[Device, ...]:
    """Return the devices that references name, in their order.

    Raises:
        DeviceError: A reference names none, or several; all such are listed at once.
    """
    refs = list(refs)
    for ref in refs:
        _check_form(ref)
    found = {ref: _matches(ref, node) for ref in refs}
    missing = [ref for ref in refs if not found[ref]]
    if missing:
        raise DeviceError(
            f"there is no device {_list(missing)} on {node.hostname}.",
            node.visible,
            _what_to_write(refs, node),
        )
    for ref in refs:
        if len(found[ref]) > 1:
            raise DeviceError(
                f"{ref!r} names {len(found[ref])} devices on {node.hostname}.",
                f"It fits {', '.join(map(str, found[ref]))}.",
                "Write more of the UUID.",
            )
    return tuple(found[ref][0] for ref in refs)


def _check_form(ref: object) -> None:
    good = 'Write an index (2), a UUID ("GPU-5c3…") or a PCI bus ID ("0000:3b:00.0").'
    if isinstance(ref, list | tuple | set | frozenset):
        inside = cast("Collection[object]", ref)
        flat = ", ".join(map(repr, inside))
        raise DeviceError(
            f"{inside!r} stands where one device belongs.",
            f"It is a {type(inside).__name__} of {len(inside)}.",
            f"A pool is one flat list, gpus=[{flat}]; a strategy returns one device.",
        )
    if isinstance(ref, bool) or not isinstance(ref, int | str):
        raise DeviceError(
            f"{ref!r} is not a device.", f"It is a {type(ref).__name__}.", good
        )
    if isinstance(ref, int) and ref < 0:
        raise DeviceError(
            f"{ref} is not a device index.", "Indices count from 0.", good
        )
    if isinstance(ref, str) and not ref.strip():
        raise DeviceError("an empty text is not a device.", f"Got {ref!r}.", good)


def _matches(ref: DeviceRef, node: Node) -> list[Device]:
    if isinstance(ref, int):
        return list(node.devices[ref : ref + 1])
    bus = _bus_id(ref)
    if bus is not None:
        return [
            d for d in node.devices if d.pci_bus_id and _bus_id(d.pci_bus_id) == bus
        ]
    text = ref.strip().lower()
    fits = [d for d in node.devices if d.uuid and d.uuid.lower().startswith(text)]
    return [d for d in fits if d.uuid and d.uuid.lower() == text] or fits


def _bus_id(text: str) -> tuple[int, ...] | None:
    """Return a PCI bus ID as numbers; its domain has 4 to 8 digits, or is left out."""
    match = re.fullmatch(
        r"\s*(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])\s*", text.lower()
    )
    return tuple(int(part or "0", 16) for part in match.groups()) if match else None


def _what_to_write(refs: Sequence[DeviceRef], node: Node) -> str:
    """Say what was probably meant: physical numbers under a mask, most often."""
    if not node.devices:
        return (
            "Leave gpus out to run on the CPU, or pretend a machine with "
            "GPUMAP_REHEARSAL=dgx-a100."
        )
    digits = [re.fullmatch(r"(?:[a-z]+:)?(\d+)", str(ref)) for ref in refs]
    if any(isinstance(ref, str) for ref in refs) and all(digits):
        numbers = ", ".join(match[1] for match in digits if match)
        return f"An index is a number, not a text: write gpus=[{numbers}]."
    physical = {d.physical_index: d.index for d in node.devices}
    masked = any(d.physical_index not in (None, d.index) for d in node.devices)
    if masked and all(ref in physical for ref in refs):
        instead = [physical[ref] for ref in refs if isinstance(ref, int)]
        return (
            f"Those are physical numbers; a *_VISIBLE_DEVICES mask renumbers what it "
            f"leaves visible from 0: write gpus={instead}, or UUIDs."
        )
    if masked:
        return (
            "A *_VISIBLE_DEVICES mask hides the others and renumbers these from 0: "
            "name devices listed above, or widen the mask."
        )
    return "Name devices listed above, by index, UUID or PCI bus ID."


def _list(refs: Sequence[DeviceRef]) -> str:
    return ", ".join(map(repr, dict.fromkeys(refs)))

"""References to devices, as users write them, and their resolution."""

import re
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import Protocol, SupportsIndex, cast

from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Node

__all__ = ["DeviceRef", "plain", "refs_of", "resolve", "resolve_all"]


class TorchDevice(Protocol):
    """The attributes of a torch.device; torch itself is not imported here."""

    @property
    def type(self) -> str:
        """The kind of device."""
        ...

    @property
    def index(self) -> int:
        """The index among the visible devices of that kind."""
        ...


Plain = int | str
DeviceRef = Plain | SupportsIndex | TorchDevice
"""A user's reference to a device.

An int is the index as torch counts it, after masking. A str is torch's name of that
index ("cuda:2"), a UUID, a prefix of one that fits a single device, or a PCI bus ID. A
torch.device and numpy's integers are accepted too.
"""


def refs_of(text: str) -> list[Plain]:
    """Return the references in a text such as "2,3" or "GPU-5c3a,GPU-77".

    Raises:
        DeviceError: An entry is empty.
    """
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise DeviceError(
            f"{text!r} has an empty entry.", "", "Write 2,3 or GPU-5c3a,GPU-77."
        )
    digits = [item.isascii() and item.isdecimal() for item in items]
    return [int(i) if number else i for i, number in zip(items, digits, strict=True)]


def resolve(ref: DeviceRef, node: Node) -> Device:
    """Return the device of a node that a reference names.

    Raises:
        DeviceError: It names no device or several, or is not a reference.

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
    named = [plain(ref) for ref in refs]
    found = {ref: _matches(ref, node) for ref in named}
    missing = [ref for ref in named if not found[ref]]
    if missing:
        raise DeviceError(
            f"there is no device {_list(missing)} on {node.hostname}.",
            node.visible,
            _what_to_write(named, node),
        )
    for ref in named:
        if len(found[ref]) > 1:
            raise DeviceError(
                f"{ref!r} names {len(found[ref])} devices on {node.hostname}.",
                f"It fits {', '.join(map(str, found[ref]))}.",
                "Write the slice's own UUID (MIG-…)."
                if found[ref][0].mig
                else "Write more of the UUID.",
            )
    return tuple(found[ref][0] for ref in named)


def plain(ref: object) -> Plain:
    """Return a reference as an int or a str, whichever library's type it has.

    Raises:
        DeviceError: It is not a reference.
    """
    good = 'Write an index (2), a UUID ("GPU-5c3…") or a PCI bus ID ("0000:3b:00.0").'
    if isinstance(ref, list | tuple | set | frozenset):
        inside = cast("Collection[object]", ref)
        flat = ", ".join(map(repr, inside))
        raise DeviceError(
            f"{inside!r} stands where one device belongs.",
            f"It is a {type(inside).__name__} of {len(inside)}.",
            f"A pool is one flat list, gpus=[{flat}]; a strategy returns one device.",
        )
    if isinstance(ref, Integral) and not isinstance(ref, bool):
        if ref < 0:
            raise DeviceError(
                f"{ref} is not a device index.", "Indices count from 0.", good
            )
        return int(ref)
    # Only a torch.device has both attributes; its str() is torch's name.
    text = str(ref) if hasattr(ref, "type") and hasattr(ref, "index") else ref
    if not isinstance(text, str):
        raise DeviceError(
            f"{ref!r} is not a device.", f"Its type is {type(ref).__name__}.", good
        )
    if not text.strip():
        raise DeviceError("an empty text is not a device.", f"Got {ref!r}.", good)
    return text


def _matches(ref: Plain, node: Node) -> list[Device]:
    if isinstance(ref, int):
        return list(node.devices[ref : ref + 1])
    if named := re.fullmatch(r"\s*([a-z]+):(\d{1,9})\s*", ref):
        at_index = node.devices[int(named[2]) : int(named[2]) + 1]
        return [device for device in at_index if device.kind == named[1]]
    bus = _bus_id(ref)
    if bus is not None:
        return [
            d for d in node.devices if d.pci_bus_id and _bus_id(d.pci_bus_id) == bus
        ]
    text = ref.strip().lower()
    fits = [d for d in node.devices if d.uuid and d.uuid.lower().startswith(text)]
    # A GPU in MIG mode can be used only through its slices.
    fits = fits or [d for d in node.devices if d.mig and d.mig.lower().startswith(text)]
    return [d for d in fits if d.uuid and d.uuid.lower() == text] or fits


def _bus_id(text: str) -> tuple[int, ...] | None:
    """Return a PCI bus ID as numbers; its domain has 4 to 8 digits, or is left out."""
    match = re.fullmatch(
        r"\s*(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])\s*", text.lower()
    )
    return tuple(int(part or "0", 16) for part in match.groups()) if match else None


def _what_to_write(refs: Sequence[Plain], node: Node) -> str:
    """Return a hint of what was probably meant: often physical numbers under a mask."""
    if not node.devices:
        return (
            "Leave gpus out to run on the CPU, or pretend a machine with "
            "GPUMAP_REHEARSAL=dgx-a100."
        )
    numbers = _numbers(refs)
    if any(str(n) in refs for n in numbers) and max(numbers) < len(node.devices):
        return f"An index is a number, not a text: write gpus={numbers}."
    physical = {d.physical_index: d.index for d in node.devices if not d.mig}
    masked = any(number not in (None, index) for number, index in physical.items())
    if masked and numbers and all(number in physical for number in numbers):
        instead = [physical[number] for number in numbers]
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


def _numbers(refs: Sequence[Plain]) -> list[int]:
    """Return the numbers in the references; none unless all are numbers or "cuda:2"."""
    found = [re.fullmatch(r"(?:[a-z]+:)?(\d{1,9})", str(ref)) for ref in refs]
    return [int(match[1]) for match in found if match] if all(found) else []


def _list(refs: Sequence[Plain]) -> str:
    return ", ".join(map(repr, dict.fromkeys(refs)))

"""What a mask such as CUDA_VISIBLE_DEVICES leaves visible, and in which order."""

import re
from collections.abc import Sequence

from gpumap.mapping.devices import Device, Node

__all__ = ["cuda_visible", "mask_length", "mask_ordinals"]


def cuda_visible(mask: str | None, node: Node) -> Node:
    """Return the node as a process sees it under a CUDA_VISIBLE_DEVICES.

    None (the variable is not set) hides nothing; an empty text hides all. Entries are
    ordinals, or UUIDs, or MIG instances, as the first one is; the first entry that is
    of another form, or names no device, ends the list; a device named twice empties
    it. A process uses one MIG instance at most.

    Source: the CUDA programming guide, "CUDA Environment Variables", and torch 2.13's
    own reading of it, torch.cuda._parse_visible_devices and _device_count_nvml.

    >>> cards = tuple(Device(kind="cuda", index=i, physical_index=i) for i in range(4))
    >>> node = Node(hostname="n1", devices=cards)
    >>> [d.physical_index for d in cuda_visible("3,1", node).devices]
    [3, 1]
    """
    if mask is None:
        return node
    entries = [entry.strip() for entry in mask.split(",")]
    form = next((p for p in ("GPU-", "MIG-") if entries[0].startswith(p)), "")
    places: list[int] = []
    for entry in entries:
        place = (
            _by_uuid(entry, node.devices)
            if form and entry.startswith(form)
            else _ordinal(entry)
            if not form
            else None
        )
        if place is None or place >= len(node.devices):
            break
        if place in places:
            return node.keeping([])
        places.append(place)
    return node.keeping(places[:1] if form == "MIG-" else places)


def mask_length(mask: str | None) -> int | None:
    """Return how many devices a mask names; None where there is no mask."""
    if mask is None:
        return None
    return len([entry for entry in mask.split(",") if entry.strip()])


def mask_ordinals(mask: str | None) -> list[int] | None:
    """Return the ordinals that a mask lists; None where it lists anything else."""
    entries = [] if mask is None else [e.strip() for e in mask.split(",")]
    if not entries or not all(e.isascii() and e.isdecimal() for e in entries):
        return None
    return [int(entry) for entry in entries]


def _ordinal(entry: str) -> int | None:
    """Read a leading number, as C's strtoul does: "1gpu2" is 1."""
    match = re.match(r"\+?([0-9]+)", entry)
    return int(match[1]) if match else None


def _by_uuid(entry: str, devices: Sequence[Device]) -> int | None:
    fits = [
        place
        for place, device in enumerate(devices)
        if device.uuid and device.uuid.startswith(entry)
    ]
    return fits[0] if len(fits) == 1 else None

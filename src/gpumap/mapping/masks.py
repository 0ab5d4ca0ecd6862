"""How each vendor's runtime reads its mask: CUDA, ROCm, Level Zero, CANN.

Malformed masks are parsed as the vendor's runtime parses them: they are the usual
reason why a device is missing.
"""

import re
from collections.abc import Callable, Sequence

from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Node

__all__ = ["ascend_visible", "cuda_visible", "level_zero_visible", "rocm_visible"]

_MOST_READ = 4000  # characters: int() refuses more than 4300 digits


def cuda_visible(mask: str | None, node: Node) -> Node:
    """Return what a CUDA_VISIBLE_DEVICES leaves of a node.

    None (the variable is not set) hides nothing; an empty text hides all. Entries are
    ordinals, UUIDs or MIG instances, all of the first one's form. The first entry that
    has another form or names no device ends the list; a device named twice empties it.
    A list that begins with a MIG instance leaves that one, as every driver does; from
    R570 on CUDA can use one of each GPU instance, and leaves as many if the variable is
    not set.

    Source: the CUDA programming guide, "CUDA Environment Variables"; the MIG user
    guide, "CUDA Device Enumeration"; and torch 2.13's own parser,
    torch.cuda._parse_visible_devices, which also shows that blanks before a UUID count.

    >>> cards = tuple(Device(kind="cuda", index=i, physical_index=i) for i in range(4))
    >>> node = Node(hostname="n1", devices=cards)
    >>> [d.physical_index for d in cuda_visible("3,1", node).devices]
    [3, 1]
    """
    if mask is None:
        return node
    form = mask[:4]
    places: list[int] = []
    for entry in mask.split(","):
        place = _cuda_place(entry, form, node.devices)
        if place is None:
            break
        if place in places:
            return node.keeping([])
        if node.devices[place].mig:
            return node.keeping(places or [place])
        places.append(place)
    return node.keeping(places)


def rocm_visible(
    rocr: str | None, hip: str | None, cuda: str | None, node: Node
) -> Node:
    """Return what AMD's masks leave of a node: HIP's list counts within ROCR's.

    ROCR_VISIBLE_DEVICES has ordinals in C's notation, or prefixes of UUIDs; the first
    entry that names no device, or names one again, ends the list; an empty text hides
    all. HIP_VISIBLE_DEVICES, or else CUDA_VISIBLE_DEVICES, has decimal ordinals or
    whole UUIDs; the first entry of another form ends the list, a repeated one is
    skipped, and an empty text counts as not set.

    Source: ROCm's "GPU isolation techniques"; ROCR-Runtime, amd_filter_device.cpp; clr,
    rocclr's device/rocm; torch 2.13 for the error.

    Raises:
        DeviceError: HIP lists more than ROCR, which torch refuses.
    """
    if rocr is not None and hip and hip.count(",") > rocr.count(","):
        raise DeviceError(
            f"HIP_VISIBLE_DEVICES={hip!r} lists more devices than "
            f"ROCR_VISIBLE_DEVICES={rocr!r} leaves.",
            "HIP's list counts within ROCR's, and torch refuses a longer one.",
            "Unset one of them, or let HIP's list count from 0 within ROCR's.",
        )
    if rocr is not None:
        node = node.keeping(_until_repeated(rocr, node.devices))
    mask = hip or cuda
    if not mask:
        return node
    places: list[int] = []
    for entry in mask.split(","):
        number = int(entry) if re.fullmatch("0|[1-9][0-9]{0,8}", entry) else None
        place = _by_uuid(entry, node.devices) if entry.startswith("GPU-") else number
        if place is None or place >= len(node.devices):
            break
        places.append(place)
    return node.keeping(list(dict.fromkeys(places)))


def level_zero_visible(mask: str | None, node: Node, hierarchy: str) -> Node:
    """Return what an Intel ZE_AFFINITY_MASK leaves of a node, in the node's own order.

    hierarchy is ZE_FLAT_DEVICE_HIERARCHY. With COMPOSITE the node's devices are cards,
    and an entry may name a tile of one (1.0); otherwise they are tiles, and entries
    with a point are skipped, as are numbers beyond the last device. An empty text
    counts as not set.

    Source: the Level Zero specification, "Affinity Mask"; intel/compute-runtime,
    execution_environment.cpp.

    Raises:
        DeviceError: An entry is no number.
    """
    if not mask:
        return node
    chosen: set[int] = set()
    for entry in mask.split(","):
        match = re.fullmatch(r"([0-9]{1,9})((?:\.[0-9]{1,9}){0,2})", entry.strip())
        if match is None:
            raise DeviceError(
                f"ZE_AFFINITY_MASK={mask!r} has the entry {entry!r}, which is no "
                "number.",
                node.visible,
                "Write device numbers (0,1), or with "
                "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE card.tile (1.0).",
            )
        if not match[2] or hierarchy.upper() == "COMPOSITE":
            chosen.add(int(match[1]))
    return node.keeping([p for p in range(len(node.devices)) if p in chosen])


def ascend_visible(mask: str | None, node: Node) -> Node:
    """Return what a Huawei ASCEND_RT_VISIBLE_DEVICES leaves of a node.

    It has digits and commas; what follows any other character, or a number that is no
    device, is ignored.

    Source: CANN's "Environment Variable Reference", ASCEND_RT_VISIBLE_DEVICES.

    Raises:
        DeviceError: The numbers do not ascend, which CANN does not support.
    """
    if mask is None:
        return node
    match = re.match(r"[0-9]+(,[0-9]+)*", mask[:_MOST_READ])
    places = [int(entry) for entry in match[0].split(",")] if match else []
    beyond = [n for n, place in enumerate(places) if place >= len(node.devices)]
    places = places[: beyond[0]] if beyond else places
    if places != sorted(set(places)):
        raise DeviceError(
            f"ASCEND_RT_VISIBLE_DEVICES={mask!r} does not ascend.",
            "CANN supports device IDs in ascending order only.",
            f"Write {','.join(map(str, sorted(set(places))))}, and order them with "
            "gpus=[…].",
        )
    return node.keeping(places)


def _cuda_place(entry: str, form: str, devices: Sequence[Device]) -> int | None:
    """Return the index of the device that an entry names; of a GPU, its first slice's.

    form is the prefix of the list's first entry, which all entries must have.
    """
    if form == "MIG-":
        return _by_uuid(entry, devices)
    slices = [device.mig for device in devices]
    firsts = [n for n, gpu in enumerate(slices) if not gpu or slices.index(gpu) == n]
    if form == "GPU-":
        if not entry.startswith(form):
            return None
        uuids = {n: devices[n].mig or devices[n].uuid or "" for n in firsts}
        fits = [n for n, uuid in uuids.items() if uuid.startswith(entry)]
        return fits[0] if len(fits) == 1 else None
    # As C's strtoul reads: "1gpu2" is 1.
    match = re.match(r"[+-]?0*[0-9]{1,9}", entry.strip())
    ordinal = int(match[0]) if match else -1
    return firsts[ordinal] if 0 <= ordinal < len(firsts) else None


def _until_repeated(mask: str, devices: Sequence[Device]) -> list[int]:
    """Read ROCR's list up to an entry that names no device, or one named before."""
    places: list[int] = []
    for entry in (part.strip() for part in mask.split(",")):
        place = (
            _by_uuid(entry, devices, ignoring_case=True)
            if entry[:1] in ("G", "g")
            else _c_number(entry)
        )
        if place is None or not 0 <= place < len(devices) or place in places:
            break
        places.append(place)
    return places


def _c_number(text: str) -> int | None:
    """Read a whole text as C's strtol with base 0 does: 0x10, 010 and 16."""
    bases: tuple[tuple[str, int], ...] = (
        (r"[+-]?0[xX][0-9a-fA-F]{1,8}", 16),
        (r"[+-]?0[0-7]{0,9}", 8),
        (r"[+-]?[1-9][0-9]{0,8}", 10),
    )
    found = (int(text, base) for form, base in bases if re.fullmatch(form, text))
    return next(found, None)


def _by_uuid(
    entry: str, devices: Sequence[Device], *, ignoring_case: bool = False
) -> int | None:
    """Return the index of the only device whose UUID begins with an entry."""
    fold: Callable[[str], str] = str.upper if ignoring_case else str
    fits = [
        place
        for place, device in enumerate(devices)
        if device.uuid and fold(device.uuid).startswith(fold(entry))
    ]
    return fits[0] if len(fits) == 1 else None

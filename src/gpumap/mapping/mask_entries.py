"""The mask that makes a node's devices, as seen under the present one, 0, 1 and so on.

A device's index counts what the present mask leaves, so the new mask names it as the
present one does: by that mask's entry, or by the index itself if none is set. A number
of nvidia-smi's or of NVML's would count something else.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from gpumap.errors import DeviceError, PlacementError
from gpumap.mapping.devices import Device

__all__ = ["OWN", "device_list", "mask_naming"]

OWN = "write own=True (--own on the command line), which gives each rank its own alone."
"""What to do where a mask of all the devices of a node's ranks cannot be true."""


@dataclass(frozen=True)
class _Mask:
    """How a vendor's mask is written.

    Attributes:
        name: The variable.
        acting: The variables that may number the devices now; the first that is set
            does.
        entries: The entries of an acting mask's text, one for each device that it
            leaves, if that device is there.
        set_empty: Whether an empty text counts as set.
        orders: Whether the devices come in the order of the text.
    """

    name: str
    acting: tuple[str, ...]
    entries: Callable[[str, Mapping[str, str]], list[str]]
    set_empty: bool
    orders: bool


def mask_naming(
    devices: Sequence[Device], environ: Mapping[str, str]
) -> dict[str, str] | None:
    """Return the variable under which these devices are 0, 1 and so on, in this order.

    environ has the masks under which the devices have their indices. The result is None
    for a kind of device whose driver has no mask. AMD's HIP_VISIBLE_DEVICES counts
    within ROCR_VISIBLE_DEVICES, which has to stay as it is.

    Raises:
        PlacementError: The vendor's runtime would not read such a mask as it is meant:
            it names a device twice, MIG instances beside others, or devices in an order
            that the runtime does not keep.
        DeviceError: The mask in environ does not leave these devices.

    Source: as for gpumap.mapping.masks.

    >>> cards = [Device(kind="cuda", index=1), Device(kind="cuda", index=0)]
    >>> mask_naming(cards, {"CUDA_VISIBLE_DEVICES": "5,7"})
    {'CUDA_VISIBLE_DEVICES': '7,5'}
    """
    first = devices[0]
    mask = _MASKS.get("rocm" if first.rocm else first.kind)
    if mask is None:
        return None
    _refuse_what_is_misread(devices, mask)
    entries = [_entry(device, mask, environ) for device in devices]
    return {mask.name: ",".join(entries)}


def device_list(devices: Sequence[Device]) -> str:
    """Return a sentence that lists the devices of a node's ranks."""
    named = ", ".join(map(str, devices)) or "not given"
    return f"The devices of this node's ranks, by local rank, are {named}."


def _refuse_what_is_misread(devices: Sequence[Device], mask: _Mask) -> None:
    indices = [device.index for device in devices]
    twice = [device for device in devices if indices.count(device.index) > 1]
    if twice:
        raise PlacementError(
            f"{mask.name} cannot name {twice[0]} {indices.count(twice[0].index)} "
            "times, and so many of this node's ranks are placed on it.",
            device_list(devices),
            f"Give each rank a device of its own, or {OWN}",
        )
    slices = [device for device in devices if device.mig is not None]
    if slices and len(devices) > 1:
        raise PlacementError(
            f"{mask.name} cannot list {len(devices)} devices if {slices[0]}, a MIG "
            "instance, is one of them: of MIG instances a process is sure of one only.",
            device_list(devices),
            f"Leave it out of gpus=[…], or {OWN}",
        )
    if not mask.orders and indices != sorted(indices):
        raise PlacementError(
            f"{mask.name} leaves devices in ascending order only, and those of this "
            "node's ranks do not ascend.",
            device_list(devices),
            f"List them ascending in gpus=[…], or {OWN}",
        )


def _entry(device: Device, mask: _Mask, environ: Mapping[str, str]) -> str:
    """Return what names a device in a mask that replaces the acting one."""
    texts = ((name, environ.get(name)) for name in mask.acting)
    acting = [(n, x) for n, x in texts if x or (x is not None and mask.set_empty)]
    if acting:
        name, text = acting[0]
        entries = mask.entries(text, environ)
        if device.index < len(entries):
            return entries[device.index]
        raise DeviceError(
            f"{device} is not one of the devices that {name}={text!r} leaves.",
            f"It names {len(entries)}, and indices count from 0.",
            "Give the variables that the process had when its devices were detected.",
        )
    if device.mig is None:
        return str(device.index)
    # Numbers count whole GPUs.
    if device.uuid is not None and device.uuid.startswith("MIG-"):
        return device.uuid
    raise DeviceError(
        f"{device} is a MIG instance, and its own UUID is not known.",
        f"Its UUID is {device.uuid}, and {mask.name} is not set.",
        "Install the extra, pip install gpumap-torch[nvml], which tells it, or set "
        f"{mask.name} to its MIG-… before.",
    )


def _cuda_entries(text: str, _environ: Mapping[str, str]) -> list[str]:
    """Return the entries up to the first that is no ordinal and no UUID."""
    entries = (entry.strip() for entry in text.split(","))
    return list(takewhile(re.compile(r"\+?[0-9]|-0|GPU-|MIG-").match, entries))


def _hip_entries(text: str, _environ: Mapping[str, str]) -> list[str]:
    """Return the entries without those that name a device again, which HIP skips.

    Two beginnings of one UUID are such; a number and a UUID may be.

    Raises:
        DeviceError: There are both numbers and UUIDs.
    """
    whole = takewhile(_is_hips, text.split(","))
    entries: list[str] = []
    for entry in whole:
        if not any(_same_device(entry, other) for other in entries):
            entries.append(entry)
    if len({entry.isdecimal() for entry in entries}) > 1:
        raise DeviceError(
            f"the mask {text!r} has both numbers and UUIDs.",
            "HIP skips entries that name a device again, so they cannot be counted.",
            "Write numbers alone, or UUIDs alone.",
        )
    return entries


def _is_hips(entry: str) -> bool:
    return re.fullmatch("0|[1-9][0-9]{0,8}|GPU-.*", entry, re.DOTALL) is not None


def _same_device(entry: str, other: str) -> bool:
    if entry.startswith("GPU-"):
        return entry.startswith(other) or other.startswith(entry)
    return entry == other


def _level_zero_entries(text: str, environ: Mapping[str, str]) -> list[str]:
    """Return the entries in the devices' order; a card's tiles (1.0,1.1) are one."""
    composite = environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE"
    cards: dict[int, list[str]] = {}
    for entry in (part.strip() for part in text.split(",")):
        match = re.fullmatch(r"([0-9]{1,9})((?:\.[0-9]{1,9}){0,2})", entry)
        if match is not None and (composite or not match[2]):
            cards.setdefault(int(match[1]), []).append(f"{int(match[1])}{match[2]}")
    return [",".join(dict.fromkeys(cards[card])) for card in sorted(cards)]


def _ascend_entries(text: str, _environ: Mapping[str, str]) -> list[str]:
    match = re.match(r"[0-9]+(,[0-9]+)*", text)
    return match[0].split(",") if match else []


_MASKS = {
    "cuda": _Mask(
        "CUDA_VISIBLE_DEVICES",
        ("CUDA_VISIBLE_DEVICES",),
        _cuda_entries,
        set_empty=True,
        orders=True,
    ),
    "rocm": _Mask(
        "HIP_VISIBLE_DEVICES",
        ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        _hip_entries,
        set_empty=False,
        orders=True,
    ),
    "xpu": _Mask(
        "ZE_AFFINITY_MASK",
        ("ZE_AFFINITY_MASK",),
        _level_zero_entries,
        set_empty=False,
        orders=False,
    ),
    "npu": _Mask(
        "ASCEND_RT_VISIBLE_DEVICES",
        ("ASCEND_RT_VISIBLE_DEVICES",),
        _ascend_entries,
        set_empty=True,
        orders=False,
    ),
}

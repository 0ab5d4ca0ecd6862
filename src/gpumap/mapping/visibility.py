"""What a process sees of a node under the masks in its environment."""

import re
from collections.abc import Mapping

from gpumap.mapping.devices import Node
from gpumap.mapping.masks import (
    ascend_visible,
    cuda_visible,
    level_zero_visible,
    rocm_visible,
)

__all__ = ["ALL_MASKS", "doubt", "mask_length", "mask_of", "masks_of", "visible"]

# By vendor; the one that acts last on the numbering comes first.
_MASKS = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
# Where nothing is visible, any of them can be the reason.
ALL_MASKS = tuple(dict.fromkeys(name for names in _MASKS.values() for name in names))
_PLAIN_ENTRY = r"[0-9]+|(GPU|MIG)-[0-9A-Za-z/-]+"
_PLAIN_ENTRIES = {
    "ROCR_VISIBLE_DEVICES": rf"\s*({_PLAIN_ENTRY}|0[xX][0-9a-fA-F]+)\s*",
    "ZE_AFFINITY_MASK": r"\s*[0-9]+(\.[0-9]+)*\s*",
}


def visible(node: Node, environ: Mapping[str, str]) -> Node:
    """Return the node as a process with this environment sees it.

    NVIDIA_VISIBLE_DEVICES has no part in it: it decides what a container is given, and
    inside everything counts from 0 again.

    Raises:
        DeviceError: The mask's own runtime refuses it.
    """
    vendor, get = _vendor(node), environ.get
    if vendor == "rocm":
        return rocm_visible(
            get("ROCR_VISIBLE_DEVICES"),
            get("HIP_VISIBLE_DEVICES"),
            get("CUDA_VISIBLE_DEVICES"),
            node,
        )
    if vendor == "xpu":
        hierarchy = get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT")
        return level_zero_visible(get("ZE_AFFINITY_MASK"), node, hierarchy)
    if vendor == "npu":
        return ascend_visible(get("ASCEND_RT_VISIBLE_DEVICES"), node)
    return cuda_visible(get("CUDA_VISIBLE_DEVICES"), node)


def mask_of(node: Node, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name and the text of the mask that numbers this node's devices.

    None where none is set. Where no device is visible, any vendor's mask counts.
    """
    return next(iter(masks_of(node, environ)), None)


def doubt(seen: Node, environ: Mapping[str, str]) -> str | None:
    """Return a sentence where a mask probably means something else than it says.

    seen is the node as the process sees it, under the masks.
    """
    there = len(seen.devices)
    for name, text in masks_of(seen, environ):
        if text in ("", "-1"):
            continue
        entries = text.split(",")
        plain = _PLAIN_ENTRIES.get(name, _PLAIN_ENTRY)
        odd = [entry for entry in entries if not re.fullmatch(plain, entry)]
        if odd:
            return (
                f"{name}={text!r} has {odd[0]!r}, which is neither an index nor a "
                "UUID: write numbers or UUIDs and commas, without ranges, blanks or "
                "quotes."
            )
        tiles = "." in text and name == "ZE_AFFINITY_MASK" and there
        if there < len(entries) and not tiles:
            sliced = any(device.mig for device in seen.devices)
            return (
                f"{name}={text!r} lists {len(entries)} devices, and {there} "
                f"{'is' if there == 1 else 'are'} visible: "
                + (
                    "of MIG instances a process is sure of one only."
                    if sliced
                    else "look for an entry that names no device, or one again."
                )
            )
    return None


def masks_of(node: Node, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the masks that act on a node's devices, the last one first."""
    names = _MASKS.get(_vendor(node), ()) if node.devices else ALL_MASKS
    found = [(name, environ[name]) for name in names if name in environ]
    # HIP takes an empty text for none at all.
    return [x for x in found if x != ("HIP_VISIBLE_DEVICES", "")]


def mask_length(mask: str | None) -> int | None:
    """Return how many devices a mask names; None where there is no mask."""
    if mask is None:
        return None
    return len([entry for entry in mask.split(",") if entry.strip()])


def _vendor(node: Node) -> str:
    if not node.devices:
        return "cuda"
    return "rocm" if node.devices[0].rocm else node.devices[0].kind

"""Which devices of a node a process sees under the masks in its environment."""

import re
from collections.abc import Mapping

from gpumap.mapping.devices import Node
from gpumap.mapping.masks import (
    ascend_visible,
    cuda_visible,
    level_zero_visible,
    rocm_visible,
)
from gpumap.words import plural

__all__ = [
    "ALL_MASKS",
    "doubt",
    "mask_length",
    "mask_of",
    "masks_of",
    "visible",
    "without_foreign_masks",
]

# The masks that each vendor's driver reads; the one that is applied last, and so
# determines the numbering, comes first.
_MASKS = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
ALL_MASKS = tuple(dict.fromkeys(name for names in _MASKS.values() for name in names))
# What older versions of Slurm set as the mask of a job that asked for no GPU.
_NO_DEVICE = "NoDevFiles"
_PLAIN_ENTRY = r"[0-9]+|(GPU|MIG)-[0-9A-Za-z/-]+"
_PLAIN_ENTRIES = {
    "ROCR_VISIBLE_DEVICES": rf"\s*({_PLAIN_ENTRY}|0[xX][0-9a-fA-F]+)\s*",
    "ZE_AFFINITY_MASK": r"\s*[0-9]+(\.[0-9]+)*\s*",
}


def visible(node: Node, environ: Mapping[str, str]) -> Node:
    """Return the node as a process with this environment sees it.

    NVIDIA_VISIBLE_DEVICES is ignored: it decides which devices a container gets, and
    inside the container all indices start from 0 again.

    If no device is left, hidden_by has the mask that hid them, or two of AMD's if only
    both together did.

    Raises:
        DeviceError: The mask's own runtime refuses it.
    """
    left = _left_by(node, environ)
    if left.devices or not node.devices:
        return left
    acting = masks_of(node, environ)
    # AMD's masks are applied in turn: HIP's counts within what ROCR's leaves.
    alone = [mask for mask in acting if not _left_by(node, dict([mask])).devices]
    return left.model_copy(update={"hidden_by": tuple(alone[-1:] or acting)})


def _left_by(node: Node, environ: Mapping[str, str]) -> Node:
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
    """Return the name and text of the mask that numbers this node's devices.

    None if no mask is set.
    """
    return next(iter(masks_of(node, environ)), None)


def doubt(seen: Node, environ: Mapping[str, str]) -> str | None:
    """Return a warning if a mask probably does not mean what its text says.

    seen is the node as the process sees it, under the masks.
    """
    there = len(seen.devices)
    masks = masks_of(seen, environ)
    for place, (name, text) in enumerate(masks):
        if text in ("", "-1"):
            continue
        if text == _NO_DEVICE:
            return (
                f"{name}={text!r} is how an older Slurm says that this task was given "
                "no GPU: ask for some with --gres=gpu:… where it is started."
            )
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
        if there < len(entries) and not tiles and place == 0:
            sliced = any(device.mig for device in seen.devices)
            return (
                f"{name}={text!r} lists {len(entries)} "
                f"{plural('device', len(entries))}, and {there} "
                f"{'is' if there == 1 else 'are'} visible: "
                + (
                    "of MIG instances a process is sure of one only."
                    if sliced
                    else "look for an entry that names no device, or one again."
                )
                + "".join(f" It counts within {n}={x!r}." for n, x in masks[1:])
                + _container(environ)
            )
    return None


def _container(environ: Mapping[str, str]) -> str:
    given = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if not re.match(_PLAIN_ENTRY, given):
        return ""
    return (
        f" NVIDIA_VISIBLE_DEVICES={given!r} has chosen this container's devices; "
        "inside, they count from 0."
    )


def masks_of(node: Node, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the masks that act on a node's devices, the last one to act first.

    If no device is visible, return those that may be the reason.
    """
    if not node.devices:
        return list(node.hidden_by)
    names = list(_MASKS.get(_vendor(node), ()))
    # HIP treats an empty mask as not set, and reads CUDA's instead.
    unread = "CUDA" if environ.get("HIP_VISIBLE_DEVICES") else "HIP"
    if _vendor(node) == "rocm":
        names.remove(f"{unread}_VISIBLE_DEVICES")
    return [(name, environ[name]) for name in names if name in environ]


def without_foreign_masks(node: Node, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the masks that this node's drivers do not read."""
    own = dict(masks_of(node, environ)) if node.devices or node.hidden_by else environ
    return {n: x for n, x in environ.items() if n not in ALL_MASKS or n in own}


def mask_length(mask: str | None) -> int | None:
    """Return how many devices a mask names; None without a mask."""
    if mask is None:
        return None
    entries = (entry.strip() for entry in mask.split(","))
    return len([e for e in entries if e and e[0] != "-" and e != _NO_DEVICE])


def _vendor(node: Node) -> str:
    if not node.devices:
        return "cuda"
    return "rocm" if node.devices[0].rocm else node.devices[0].kind

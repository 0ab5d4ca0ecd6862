"""What is worth a second thought in a choice of devices that works."""

from collections.abc import Sequence

from gpumap.mapping.devices import Device, Node
from gpumap.mapping.linked import MOST_EXACT, best_linked, ring_link
from gpumap.mapping.tables import link_name

__all__ = ["advice", "blindly_linked"]


def advice(devices: Sequence[Device], node: Node, strategy: str = "") -> list[str]:
    """Return a sentence for each doubt about training on these devices of a node."""
    found = (
        _unlike(devices),
        _badly_linked(devices, node),
        blindly_linked(devices, node) if strategy == "linked" else None,
    )
    return [sentence for sentence in found if sentence]


def _unlike(devices: Sequence[Device]) -> str | None:
    """Say that devices differ: in DDP all wait for the slowest at every step."""
    kinds = {d.name: d for d in devices if d.name and not d.mig}
    if len(kinds) < 2:  # noqa: PLR2004 - two kinds
        return None
    names = " and ".join(sorted(map(str, kinds)))
    waits = (
        f"{names} train together: every step waits for the slowest, and the smallest "
        "memory bounds the batch."
    )
    slow = _slower(list(kinds.values()))
    if slow is None:
        return f"{waits} gpumap.measure() tells which is slow."
    others = [d.index for d in devices if d.name != slow.name]
    return (
        f"{waits} The {slow.name} is the slower: leave it out with gpus={others}, or "
        "give its ranks less to do."
    )


def _slower(kinds: Sequence[Device]) -> Device | None:
    """Return the kind that is older and has fewer multiprocessors than all others."""
    for one in kinds:
        others = [other for other in kinds if other is not one]
        if all(_is_less(one, other) for other in others):
            return one
    return None


def _is_less(one: Device, other: Device) -> bool:
    known = (
        *(one.compute_capability, other.compute_capability),
        *(one.multiprocessors, other.multiprocessors),
    )
    return (
        None not in known
        and (one.compute_capability or ()) <= (other.compute_capability or ())
        and (one.multiprocessors or 0) < (other.multiprocessors or 0)
    )


def blindly_linked(devices: Sequence[Device], node: Node) -> str | None:
    """Say that "linked" had nothing to go by."""
    if node.links or len(devices) == len(node.devices):
        return None
    return (
        f'strategy "linked" knows no link of {node.hostname}, and took the first '
        "devices: install the extra, pip install gpumap-torch[nvml], or describe the "
        "node."
    )


def _badly_linked(devices: Sequence[Device], node: Node) -> str | None:
    count = len({device.index for device in devices})
    if not node.links or not 1 < count <= len(node.devices) <= MOST_EXACT:
        return None
    best = best_linked(node, count)
    speed, link = ring_link(node, devices)
    best_speed, best_link = ring_link(node, best)
    if speed >= best_speed or best_link is None:
        return None
    through = link_name(link) if link else "an unknown path"
    return (
        f"{_named(devices)} reach each other through {through} at best, "
        f"{_named(best)} through {link_name(best_link)}: write "
        f'gpus={[d.index for d in best]}, or let strategy="linked" choose.'
    )


def _named(devices: Sequence[Device]) -> str:
    return ", ".join(f"{device.kind}:{device.index}" for device in devices)

"""What is worth a second thought in a choice of devices that works."""

from collections.abc import Sequence

from gpumap.mapping.devices import Device, Node
from gpumap.mapping.linked import MOST_EXACT, best_linked, ring_link
from gpumap.mapping.tables import link_name

__all__ = ["advice"]


def advice(devices: Sequence[Device], node: Node) -> list[str]:
    """Return a sentence for each doubt about training on these devices of a node."""
    found = (_unlike(devices), _badly_linked(devices, node))
    return [sentence for sentence in found if sentence]


def _unlike(devices: Sequence[Device]) -> str | None:
    """Say that one device is slower: in DDP all wait for it at every step."""
    if len({device.name for device in devices}) < 2:  # noqa: PLR2004 - two of a kind
        return None
    slowest = min(devices, key=lambda d: (d.multiprocessors or 0, d.total_memory or 0))
    others = [d.index for d in devices if d.name != slowest.name]
    return (
        f"{slowest} is a {slowest.name} among others: every step waits for the "
        "slowest, and the smallest memory bounds the batch. Leave it out with "
        f"gpus={others}, or give its rank less to do."
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

"""Warnings about placements that work but could be better."""

from collections.abc import Sequence

from gpumap.mapping.best_links import MOST_EXACT, best_linked, ring_link
from gpumap.mapping.devices import Device, Node, one_per_gpu
from gpumap.mapping.launch import Launch
from gpumap.mapping.tables import link_name

__all__ = ["advice", "idle_devices"]

Devices = Sequence[Device]


def advice(
    devices: Devices, pool: Devices, node: Node, strategy: str = ""
) -> list[str]:
    """Return a sentence for each doubt about training on these devices of a pool.

    At most one other set of devices is recommended, from the pool.
    """
    found = (
        _unlike(devices, pool, node) or _badly_linked(devices, pool, node),
        _blindly_linked(devices, pool, node) if strategy == "linked" else None,
    )
    return [sentence for sentence in found if sentence]


def idle_devices(launch: Launch, pool: Devices, node: Node) -> str | None:
    """Return a sentence on the pool's devices that no process of this node will use.

    Devices that would slow the others down do not count.
    """
    processes = launch.local_world_size or (1 if launch.world_size == 1 else None)
    useful = worth_using(one_per_gpu(pool))
    if processes is None or launch.devices_bound or processes >= len(useful):
        return None
    which = "" if len(useful) == len(one_per_gpu(pool)) else " worth using"
    return (
        f"{processes} of {len(useful)} devices{which} on {node.hostname} will be used. "
        f"To use all: {launch.command(len(useful))}"
    )


def worth_using(devices: Devices) -> list[Device]:
    """Return the devices without the slower kind, if all together would do less work.

    In DDP every step waits for the slowest rank, so n ranks do n times its work.
    Between kinds, speed is estimated by the number of multiprocessors, which favours
    older cards.
    """
    slow = _slower(devices)
    if slow is None:
        return list(devices)
    fast = [d for d in devices if d.name != slow.name]
    least = min(d.multiprocessors or 0 for d in fast)
    enough = len(fast) * least >= len(devices) * (slow.multiprocessors or 0)
    return fast if enough else list(devices)


def _unlike(devices: Devices, pool: Devices, node: Node) -> str | None:
    """Return a warning that devices differ, with a better set of as many, if any."""
    kinds = _kinds(devices)
    if len(kinds) < 2:  # noqa: PLR2004 - two kinds
        return None
    waits = (
        f"{' and '.join(sorted(kinds))} train together: every step waits for the "
        "slowest, and the smallest memory bounds the batch."
    )
    slow = _slower(devices)
    if slow is None:
        return f"{waits} gpumap.measure() tells which is slow."
    others = [d for d in worth_using(one_per_gpu(pool)) if d.name != slow.name]
    better = _as_many(devices, others, node)
    if not better or _slower(better):
        better = list(dict.fromkeys(worth_using(devices)))
    instead = "" if len(better) == len(devices) else ", or give its ranks less to do"
    if slow in better:
        return f"{waits} The {slow.name} is the slower: give its ranks less to do."
    return (
        f"{waits} The {slow.name} is the slower: leave it out with "
        f"gpus={[d.index for d in better]}{instead}."
    )


def _as_many(devices: Devices, others: Devices, node: Node) -> Devices:
    """Return the best-linked of others, as many as devices; () if there are fewer."""
    count = len(devices)
    if len(others) < count:
        return ()
    return best_linked(node, count, [device.index for device in others])


def _kinds(devices: Devices) -> dict[str, Device]:
    return {device.name: device for device in devices if device.name and not device.mig}


def _slower(devices: Devices) -> Device | None:
    """Return a device of the kind that is slower than all others, if there is one."""
    kinds = list(_kinds(devices).values())
    if len(kinds) < 2:  # noqa: PLR2004 - two kinds
        return None
    for one in kinds:
        if all(_is_less(one, other) for other in kinds if other is not one):
            return one
    return None


def _is_less(one: Device, other: Device) -> bool:
    """Tell whether a device is older with fewer multiprocessors, or far smaller.

    Far smaller counts by itself, since a display card may be newer than a training
    card.
    """
    mine, theirs = one.multiprocessors, other.multiprocessors
    if mine is None or theirs is None:
        return False
    small = (
        one.total_memory is not None
        and other.total_memory is not None
        and 2 * one.total_memory < other.total_memory
        and 2 * mine < theirs
    )
    old = (
        one.compute_capability is not None
        and other.compute_capability is not None
        and one.compute_capability <= other.compute_capability
        and mine < theirs
    )
    return small or old


def _blindly_linked(devices: Devices, pool: Devices, node: Node) -> str | None:
    """Return a warning that "linked" chose without knowing any link."""
    if node.links or len(devices) == len(pool):
        return None
    return (
        f'strategy "linked" knows no link of {node.hostname}, and took the first '
        "devices: install the extra, pip install gpumap-torch[nvml], or describe the "
        "node."
    )


def _badly_linked(devices: Devices, pool: Devices, node: Node) -> str | None:
    count = len({device.index for device in devices})
    useful = worth_using(pool)
    if not node.links or not 1 < count <= len(useful) <= MOST_EXACT:
        return None
    best = best_linked(node, count, [device.index for device in useful])
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


def _named(devices: Devices) -> str:
    return ", ".join(f"{device.kind}:{device.index}" for device in devices)

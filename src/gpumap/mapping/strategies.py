"""The table of strategies: rules for which device a rank gets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gpumap.errors import LaunchError
from gpumap.mapping.best_links import best_linked
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch

__all__ = ["STRATEGIES"]

Devices = tuple[Device, ...]


@dataclass(frozen=True)
class _Rule:
    """One strategy.

    Attributes:
        order: Returns the allowed devices in the order in which ranks get them; it may
            leave some out.
        place: The number of a rank that indexes them.
        words: The rule as a user would write it.
    """

    order: Callable[[Launch, Devices, Node, Mapping[int, float]], Devices]
    place: Literal["local_rank", "rank"]
    words: str


def _as_listed(
    _launch: Launch, allowed: Devices, _node: Node, _scores: Mapping[int, float]
) -> Devices:
    return allowed


def _best_first(
    _launch: Launch, allowed: Devices, _node: Node, scores: Mapping[int, float]
) -> Devices:
    return tuple(sorted(allowed, key=lambda d: (-scores[d.index], d.index)))


def _best_linked(
    launch: Launch, allowed: Devices, node: Node, _scores: Mapping[int, float]
) -> Devices:
    if launch.devices_bound:
        return allowed
    processes = 1 if launch.world_size == 1 else launch.local_world_size
    if processes is None:
        raise LaunchError(
            'strategy "linked" depends on the number of processes on this node, and '
            "the launcher does not say it.",
            f"{launch.launcher}: rank={launch.rank}, world_size={launch.world_size}.",
            "Set LOCAL_WORLD_SIZE for each process, or start with torchrun.",
            ("LOCAL_WORLD_SIZE",),
        )
    return best_linked(node, processes, [device.index for device in allowed])


STRATEGIES: dict[str, _Rule] = {
    # torch.distributed.run's documentation: device index = LOCAL_RANK.
    "local_rank": _Rule(_as_listed, "local_rank", "pool[local_rank]"),
    # The same with the user's list, as people fill DDP's device_ids.
    "explicit": _Rule(_as_listed, "local_rank", "gpus[local_rank]"),
    # Global rank, as it is usually written: rank % torch.cuda.device_count().
    "modulo": _Rule(_as_listed, "rank", "pool[rank % {devices}]"),
    "scored": _Rule(_best_first, "local_rank", "the pool by score, [local_rank]"),
    # An all-reduce runs at the speed of the slowest link of the best ring.
    "linked": _Rule(
        _best_linked,
        "local_rank",
        "the best-linked {devices} of the pool, [local_rank]",
    ),
}

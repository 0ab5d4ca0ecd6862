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
        chooses: Whether it leaves out what the node's processes do not need.
    """

    order: Callable[[Launch, Devices, Node, Mapping[int, float]], Devices]
    place: Literal["local_rank", "rank"]
    words: str
    chooses: bool = False


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
    processes = _processes(launch, "linked")
    return best_linked(node, processes, [device.index for device in allowed])


def _idle(
    launch: Launch, allowed: Devices, node: Node, _scores: Mapping[int, float]
) -> Devices:
    from gpumap.mapping.idle import idlest  # noqa: PLC0415 - who asks for it pays

    untold = launch.local_rank is launch.local_world_size is None
    one = len(allowed) == 1 and untold
    return idlest(launch, allowed, node, 1 if one else _processes(launch, "idle"))


def _closest(
    launch: Launch, allowed: Devices, node: Node, _scores: Mapping[int, float]
) -> Devices:
    from gpumap.mapping.closest import closest_devices  # noqa: PLC0415 - as above
    from gpumap.mapping.cpu_topology import CpuTopology  # noqa: PLC0415

    bound = launch.node_cpus
    if bound is None or len(bound) != _processes(launch, "closest"):
        raise LaunchError(
            'strategy "closest" depends on the CPUs that each process of this node is '
            "bound to, and the launch does not say them.",
            f"{launch.launcher}: rank={launch.rank}, node_cpus={bound}.",
            "A session reads them; elsewhere pass launch=gpumap.Launch(…) with "
            "node_cpus, a list of CPUs for each local rank.",
        )
    return closest_devices(bound, allowed, node.cpus or CpuTopology())


def _processes(launch: Launch, strategy: str) -> int:
    """Return how many processes of this node share out the devices."""
    alone = launch.world_size == 1 or launch.devices_bound
    processes = 1 if alone else launch.local_world_size
    if processes is None:
        raise LaunchError(
            f'strategy "{strategy}" depends on the number of processes on this node, '
            "and the launcher does not say it.",
            f"{launch.launcher}: rank={launch.rank}, world_size={launch.world_size}.",
            "Set LOCAL_WORLD_SIZE for each process, or start with torchrun.",
            ("LOCAL_WORLD_SIZE",),
        )
    return processes


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
        chooses=True,
    ),
    # What users of shared servers look for in nvidia-smi.
    "idle": _Rule(
        _idle,
        "local_rank",
        "the {devices} of the pool with most free, [local_rank]",
        chooses=True,
    ),
    # What ALCF's users do by hand on Polaris, where GPU 3 is beside rank 0's cores.
    "closest": _Rule(
        _closest,
        "local_rank",
        "the device beside the process's CPUs, [local_rank]",
        chooses=True,
    ),
}

"""The placements of a node's ranks, with the CPUs that each is bound to."""

from collections.abc import Collection, Sequence

from gpumap.errors import LaunchError
from gpumap.mapping.cpu_shares import shares_of_cpus, untold_cores
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.cpus import cpus_beside
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.policy import Bind

__all__ = ["bound", "doubt_of_cores", "refuse_unknown_neighbours"]


def bound(
    placements: Sequence[Placement],
    node: Node,
    bind: Bind,
    allowed: Collection[int] | None = None,
) -> list[Placement]:
    """Return the placements of all ranks of a node, by local rank, with their CPUs.

    allowed: the CPUs that its processes may use; None for all. doubt_of_cores() says
    whether "exclusive" knows the physical cores.

    Raises:
        PlacementError: bind is unknown; or it is "exclusive", and there are fewer cores
            than ranks, or ranks whose CPUs overlap without being the same.
    """
    beside = _beside(placements, node, allowed)
    shares = shares_of_cpus(beside, node.cpus or CpuTopology(), bind)
    return [
        one.model_copy(update={"cpus": share.cpus})
        for one, share in zip(placements, shares, strict=True)
    ]


def doubt_of_cores(
    placements: Sequence[Placement],
    node: Node,
    bind: Bind,
    allowed: Collection[int] | None = None,
) -> str | None:
    """Return a warning if bound() may part the hyper-threads of one core."""
    beside = _beside(placements, node, allowed)
    return untold_cores(beside, node.cpus or CpuTopology(), bind)


def refuse_unknown_neighbours(launch: Launch) -> None:
    """Check that the processes are known among which "exclusive" deals the CPUs.

    Raises:
        LaunchError: The launcher does not say how many processes the node runs.
    """
    unknown = launch.local_rank is None or launch.local_world_size is None
    if unknown and launch.world_size > 1:
        raise LaunchError(
            'bind="exclusive" deals the CPUs among the processes of this node, and the '
            "launcher does not say how many they are.",
            f"{launch.launcher}: local_rank={launch.local_rank}, "
            f"local_world_size={launch.local_world_size}.",
            "Set LOCAL_RANK and LOCAL_WORLD_SIZE for each process, or start with "
            'torchrun; or write bind="numa".',
            ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        )


def _beside(
    placements: Sequence[Placement], node: Node, allowed: Collection[int] | None
) -> list[tuple[int, ...]]:
    topology = node.cpus or CpuTopology()
    return [cpus_beside(one.device, topology, allowed) for one in placements]

"""The placements of a node's ranks, with the CPUs that each is bound to."""

from collections.abc import Collection, Sequence

from gpumap.mapping.cpu_shares import shares_of_cpus
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.cpus import cpus_beside, near_cpus
from gpumap.mapping.devices import Node
from gpumap.mapping.placement import Placement
from gpumap.mapping.policy import Bind

__all__ = ["bound"]


def bound(
    placements: Sequence[Placement],
    node: Node,
    bind: Bind,
    allowed: Collection[int] | None = None,
) -> list[Placement]:
    """Return the placements of all ranks of a node, by local rank, with their CPUs.

    allowed: the CPUs that its processes may use; None for all.

    Raises:
        PlacementError: bind is "exclusive", and there are fewer cores than ranks.
    """
    topology = node.cpus or CpuTopology()
    beside = [
        near_cpus(one.device, topology)
        if allowed is None
        else cpus_beside(one.device, topology, allowed)
        for one in placements
    ]
    shares = shares_of_cpus(beside, topology, bind)
    return [
        one.model_copy(update={"cpus": share.cpus})
        for one, share in zip(placements, shares, strict=True)
    ]

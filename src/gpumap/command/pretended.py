"""The nodes and launches that --nodes and --nproc pretend."""

import argparse
from collections.abc import Mapping, Sequence

from gpumap.detect.rehearsal import REHEARSAL, rehearsed_nodes
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Node, one_per_gpu
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Policy
from gpumap.mapping.ranks import RankLayout

__all__ = ["ALONE", "cluster", "fitting", "pretended"]


def cluster(
    asked: argparse.Namespace, node: Node, environ: Mapping[str, str]
) -> Sequence[Node]:
    """Return the nodes to show: all of the described ones, or --nodes equal ones."""
    machine = environ.get(REHEARSAL)
    nodes = rehearsed_nodes(machine, environ) if machine else [node]
    if asked.nodes is None:
        return nodes
    if len(nodes) not in (1, asked.nodes):
        raise DeviceError(
            f"--nodes is {asked.nodes}, and {machine} describes {len(nodes)}.",
            "",
            "Leave --nodes out to show all of them.",
        )
    return nodes if len(nodes) > 1 else nodes * asked.nodes


def fitting(policy: Policy, node: Node, node_rank: int) -> int:
    """Return how many processes fit a node if --nproc is not given."""
    listed = policy.listed(node, node_rank)
    return max(1, len(one_per_gpu(node.devices) if listed is None else listed))


def pretended(sizes: Sequence[int]) -> list[Launch]:
    """Return the launch of each node's first rank; sizes are processes per node."""
    layout = RankLayout(sizes)
    ranks = [layout.ranks_of(node_rank) for node_rank in range(len(sizes))]
    return [
        Launch(
            launcher="plan",
            rank=here[0],
            world_size=layout.world_size,
            local_rank=0,
            local_world_size=len(here),
            node_rank=node_rank,
            num_nodes=len(sizes),
            node_ranks=tuple(here),
        )
        for node_rank, here in enumerate(ranks)
    ]


ALONE = pretended([1])[0]
"""The launch of a process that no launcher started."""

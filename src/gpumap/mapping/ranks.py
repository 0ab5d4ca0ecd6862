"""The arithmetic between rank, node_rank and local_rank."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from gpumap.errors import LaunchError

__all__ = ["Distribution", "RankLayout"]

Distribution = Literal["block", "cyclic"]


@dataclass(frozen=True)
class RankLayout:
    """Which rank is which local rank of which node, for equal and for unequal nodes.

    "block" fills node after node; "cyclic" deals ranks to the nodes in turn, skipping
    those that are full. Building costs O(nodes), a look-up O(log nodes).

    Raises:
        LaunchError: There is no node, or a node without a process.

    Source: the two distributions are those of Slurm's `srun --distribution`; block is
    also how torch.distributed.run numbers its workers.

    >>> RankLayout((4, 2)).locate(5)
    (1, 1)
    >>> RankLayout((4, 2), "cyclic").locate(5)
    (0, 3)
    """

    local_world_sizes: Sequence[int]
    distribution: Distribution = "block"

    def __post_init__(self) -> None:
        """Check the sizes and the distribution."""
        if self.distribution not in ("block", "cyclic"):
            raise LaunchError(
                f"distribution {self.distribution!r} is unknown.",
                "",
                'Write distribution="block" or distribution="cyclic".',
            )
        bad = [n for n in set(self.local_world_sizes) if type(n) is not int or n < 1]
        if bad or not len(self.local_world_sizes):
            raise LaunchError(
                "every node runs at least one process.",
                f"local_world_sizes contains {bad or 'no node'}.",
                "Write how many processes run on each node, for instance [4, 4, 2].",
            )

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.local_world_sizes)

    @property
    def world_size(self) -> int:
        """Number of processes on all nodes."""
        return self._node_ends[-1]

    def locate(self, rank: int) -> tuple[int, int]:
        """Return (node_rank, local_rank) of a rank.

        Raises:
            LaunchError: The rank is not one of 0 to world_size - 1.
        """
        self._check("rank", rank, self.world_size)
        if self.distribution == "block":
            node_rank = bisect_right(self._node_ends, rank)
            first = self._node_ends[node_rank] - self.local_world_sizes[node_rank]
            return node_rank, rank - first
        local_rank = bisect_right(self._round_ends, rank)
        nodes = self._rounds[local_rank]
        place = rank - (self._round_ends[local_rank] - len(nodes))
        return nodes[place], local_rank

    def rank(self, *, node_rank: int, local_rank: int) -> int:
        """Return the rank of a local rank of a node.

        Raises:
            LaunchError: There is no such node, or no such process on it.
        """
        self._check("node_rank", node_rank, self.num_nodes)
        self._check("local_rank", local_rank, self.local_world_sizes[node_rank])
        if self.distribution == "block":
            first = self._node_ends[node_rank] - self.local_world_sizes[node_rank]
            return first + local_rank
        nodes = self._rounds[local_rank]
        first = self._round_ends[local_rank] - len(nodes)
        return first + bisect_right(nodes, node_rank) - 1

    def ranks_of(self, node_rank: int) -> Sequence[int]:
        """Return the ranks of a node, in the order of their local ranks.

        Raises:
            LaunchError: There is no such node.
        """
        first = self.rank(node_rank=node_rank, local_rank=0)
        size = self.local_world_sizes[node_rank]
        if self.distribution == "block":
            return range(first, first + size)
        return [self.rank(node_rank=node_rank, local_rank=n) for n in range(size)]

    @cached_property
    def _node_ends(self) -> list[int]:
        return list(accumulate(self.local_world_sizes))

    @cached_property
    def _rounds(self) -> list[Sequence[int]]:
        """For each local rank, the nodes that have it; equal lists are one object."""
        rounds: list[Sequence[int]] = []
        nodes: Sequence[int] = range(self.num_nodes)
        for size in sorted(set(self.local_world_sizes)):
            rounds += [nodes] * (size - len(rounds))
            nodes = [n for n in nodes if self.local_world_sizes[n] > size]
        return rounds

    @cached_property
    def _round_ends(self) -> list[int]:
        return list(accumulate(len(nodes) for nodes in self._rounds))

    def _check(self, name: str, value: int, count: int) -> None:
        if type(value) is not int or not 0 <= value < count:
            raise LaunchError(
                f"{name} {value!r} does not exist.",
                f"There are {count}: {name} 0 to {count - 1}.",
                "Places count from 0.",
            )

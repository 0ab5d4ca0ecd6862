"""Who this process is among the others, and the arithmetic of ranks on nodes."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, Self

from pydantic import model_validator

from gpumap.errors import LaunchError
from gpumap.mapping.values import Count, Index, Value

__all__ = ["Distribution", "Launch", "RankLayout"]

Distribution = Literal["block", "cyclic"]


class Launch(Value):
    """What the launcher says of this process; a field that it does not say is None.

    Attributes:
        launcher: Which launcher said it: "torchrun", "single process" and so on.
        rank: Place among all processes, 0 to world_size - 1.
        world_size: Number of processes.
        local_rank: Place among the processes of this node.
        local_world_size: Number of processes on this node.
        node_rank: Place of this node among the nodes.
        num_nodes: Number of nodes.
        master_addr: Host name or address where rank 0's store is found.
        master_port: Port of that store.
        job_id: What tells this job from another on the same address.
        devices_bound: Whether this process sees devices that are its own alone,
            so that its local_rank is no index into them.

    Raises:
        LaunchError: The fields contradict each other.

    >>> Launch(launcher="torchrun", rank=5, world_size=6, node_rank=1, num_nodes=2,
    ...        local_rank=1, local_world_size=2).rank
    5
    """

    raises = LaunchError

    launcher: str
    rank: Index
    world_size: Count
    local_rank: Index | None = None
    local_world_size: Count | None = None
    node_rank: Index | None = None
    num_nodes: Count | None = None
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    devices_bound: bool = False

    @property
    def one_node(self) -> bool:
        """Whether all processes are known to be on this node."""
        return self.num_nodes == 1 or self.local_world_size == self.world_size

    def command(self, processes: int) -> str:
        """Return the command that starts so many processes on each node."""
        return f"torchrun --nproc-per-node {processes}"

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        pairs: tuple[tuple[str, int | None, str, int | None], ...] = (
            ("rank", self.rank, "world_size", self.world_size),
            ("local_rank", self.local_rank, "local_world_size", self.local_world_size),
            ("node_rank", self.node_rank, "num_nodes", self.num_nodes),
        )
        for place, value, size, count in pairs:
            if value is not None and count is not None and value >= count:
                raise LaunchError(
                    f"{place} {value} is out of range for {size} {count}.",
                    f"{self.launcher}: {place}={value}, {size}={count}.",
                    f"Places count from 0: {place} is at most {size} - 1.",
                )
        for size, count in (
            ("local_world_size", self.local_world_size),
            ("num_nodes", self.num_nodes),
        ):
            if count is not None and count > self.world_size:
                raise LaunchError(
                    f"{size} {count} is more than world_size {self.world_size}.",
                    f"{self.launcher}: {size}={count}, world_size={self.world_size}.",
                    "world_size counts the processes of all nodes together.",
                )
        self._has_a_possible_address()
        return self

    def _has_a_possible_address(self) -> None:
        if self.master_port is not None and not 0 < self.master_port < 65536:  # noqa: PLR2004 - TCP's own limits
            raise LaunchError(
                f"master_port {self.master_port} is no TCP port.",
                f"{self.launcher}: master_port={self.master_port}.",
                "Choose one from 1 to 65535, for instance 29500.",
            )
        address = self.master_addr
        if address is not None and (
            address.count(":") == 1 or any(c in address for c in "[]/ \t")
        ):
            raise LaunchError(
                f"master_addr {address!r} is not a host name or an address.",
                f"{self.launcher}: master_addr={address!r}.",
                "Write the host alone (n1, 10.0.0.1, ::1); the port has its own "
                "variable, MASTER_PORT.",
            )


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

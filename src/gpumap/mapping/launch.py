"""Launch: this process's place among the processes of its job."""

from typing import Any, Self, cast

from pydantic import model_validator

from gpumap.errors import LaunchError
from gpumap.mapping.base import Count, FrozenModel, Index

__all__ = ["LOOPBACK", "Launch", "store_address"]

LOOPBACK = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}
"""The loopback addresses, by the names that users write for them."""


class Launch(FrozenModel):
    """What the launcher says about this process; what it does not say is None.

    Attributes:
        launcher: Which launcher said it: "torchrun", "single process" and so on.
        rank: Place among all processes, 0 to world_size - 1.
        world_size: Number of processes.
        local_rank: Place among the processes of this node.
        local_world_size: Number of processes on this node.
        node_rank: Place of this node among the nodes.
        num_nodes: Number of nodes.
        node_ranks: The ranks of this node's processes, by local rank.
        node_cpus: The logical CPUs that the launcher bound each of those processes to.
        master_addr: Host name or address where rank 0's store is found.
        master_port: Port of that store.
        job_id: Distinguishes this job from another on the same address.
        devices_bound: Whether this process sees only devices that no other rank has, so
            that its local_rank is not an index into them.
        start_command: How a launcher other than torchrun starts {n} processes on each
            node, {total} in all.

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
    node_ranks: tuple[Index, ...] | None = None
    node_cpus: tuple[tuple[Index, ...], ...] | None = None
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    devices_bound: bool = False
    start_command: str | None = None

    @property
    def one_node(self) -> bool:
        """Whether all processes are known to be on this node."""
        return self.num_nodes == 1 or self.local_world_size == self.world_size

    @property
    def several_nodes(self) -> bool:
        """Whether some process is known to be on another node."""
        here = self.local_world_size
        return (self.num_nodes or 1) > 1 or (
            here is not None and here < self.world_size
        )

    @property
    def neighbours(self) -> "list[Launch]":
        """The launches of this node's ranks, as far as this rank knows them."""
        if self.node_ranks is None or self.devices_bound:
            return [self]
        return [
            self.model_copy(update={"rank": rank, "local_rank": local_rank})
            for local_rank, rank in enumerate(self.node_ranks)
        ]

    def command(self, processes: int) -> str:
        """Return the command that starts `processes` processes on each node."""
        pattern = self.start_command or "torchrun --nproc-per-node {n}"
        total = processes * (self.num_nodes or 1)
        return pattern.replace("{n}", str(processes)).replace("{total}", str(total))

    @model_validator(mode="before")
    @classmethod
    def _place_among_node_ranks(cls, data: Any) -> Any:  # noqa: ANN401 - pydantic's own signature
        """Fill in local_rank and local_world_size from node_ranks, if they are None."""
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, Any]", data)
        ranks, rank = fields.get("node_ranks"), fields.get("rank")
        if not isinstance(ranks, list | tuple) or rank not in ranks:
            return fields
        here = [*cast("list[object]", ranks)]
        told = {"local_rank": here.index(rank), "local_world_size": len(here)}
        return fields | {n: x for n, x in told.items() if fields.get(n) is None}

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
        self._fits_its_node()
        self._has_a_possible_address()
        return self

    def _fits_its_node(self) -> None:
        here, nodes, size = self.local_world_size, self.num_nodes, self.world_size
        if (
            here is not None
            and nodes is not None
            and (here + nodes - 1 > size or (nodes == 1 and here != size))
        ):
            raise LaunchError(
                f"{here} processes on this one of {nodes} nodes do not make {size}.",
                f"{self.launcher}: local_world_size={here}, num_nodes={nodes}, "
                f"world_size={size}.",
                "Every node runs at least one process; all of them make world_size.",
            )
        ranks = self.node_ranks
        if ranks is not None and (
            self.rank not in ranks
            or len(set(ranks)) < len(ranks)
            or max(ranks) >= size
            or here not in (None, len(ranks))
            or self.local_rank not in (None, ranks.index(self.rank))
        ):
            raise LaunchError(
                f"these are not the ranks of a node with rank {self.rank} on it.",
                f"{self.launcher}: node_ranks={ranks}, world_size={size}, "
                f"local_world_size={here}.",
                "List the ranks of this node once, in the order of their local ranks.",
            )

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
        if address is not None and ":" not in address and not _can_be_asked(address):
            raise LaunchError(
                f"master_addr {address!r} is no name that a name server can be asked.",
                f"{self.launcher}: master_addr={address!r}.",
                "A name's parts have 1 to 63 characters each; a variable that was not "
                "set leaves an empty one.",
            )
        if (address or "").lower().startswith("fe80:") and "%" not in (address or ""):
            raise LaunchError(
                f"master_addr {address} counts on one link, and does not say on which.",
                f"{self.launcher}: master_addr={address!r}, a link-local address.",
                f"Write it with the interface, {address}%eth0 for instance, or choose "
                "an address that is good beyond the link.",
            )


def _can_be_asked(name: str) -> bool:
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def store_address(launch: Launch) -> tuple[str, int]:
    """Return where the ranks of a job of several meet: host and port.

    On one node that is the loopback address.

    Raises:
        LaunchError: The launcher does not set it.
    """
    host = launch.master_addr
    if launch.one_node or host in LOOPBACK:
        host = LOOPBACK.get(host or "", "127.0.0.1")
    missing = tuple(
        name
        for name, value in (("MASTER_ADDR", host), ("MASTER_PORT", launch.master_port))
        if value is None
    )
    if host is not None and launch.master_port is not None:
        return host, launch.master_port
    raise LaunchError(
        f"rank {launch.rank} of {launch.world_size} does not know where to meet "
        f"the others: {' and '.join(missing)} not set.",
        f"{launch.launcher}: master_addr={launch.master_addr}, "
        f"master_port={launch.master_port}.",
        f"Set {' and '.join(missing)} to the same value on every rank: rank 0's "
        "host, and a port free there, for instance 29500. torchrun sets them.",
        missing,
    )

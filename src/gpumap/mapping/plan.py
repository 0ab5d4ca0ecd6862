"""Plans: the placements of all ranks of a cluster, before anything is started."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpumap.errors import LaunchError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.pages import OwnPage
from gpumap.mapping.placement import Conflict, Placement, shared_devices
from gpumap.mapping.policy import (
    Bind,
    Gpus,
    Policy,
    Scores,
    Strategy,
    refuse_unknown_bind,
)
from gpumap.mapping.pool import Pool
from gpumap.mapping.ranks import Distribution, RankLayout
from gpumap.mapping.tables import placement_table

__all__ = ["Plan", "plan"]

_Key = tuple[int, int, str]


@dataclass(frozen=True)
class Plan(Sequence[Placement], metaclass=OwnPage):
    """Every rank's placement in a cluster: plan[rank], computed on access.

    It is a sequence, as long as the world is large. A look-up costs O(log nodes); the
    pool of equal nodes is computed once.

    Attributes:
        nodes: The nodes, by node_rank.
        layout: Which rank is which local rank of which node.
        policy: The strategy and its inputs.
        bind: How ranks are bound to CPUs, if they are.
    """

    nodes: Sequence[Node]
    layout: RankLayout
    policy: Policy
    bind: Bind | None = None
    _pools: dict[_Key, Pool] = field(
        default_factory=dict["_Key", Pool], init=False, repr=False, compare=False
    )
    _bounds: dict[int, list[Placement]] = field(
        default_factory=dict[int, list[Placement]],
        init=False,
        repr=False,
        compare=False,
    )

    def __post_init__(self) -> None:
        """Compute all pools, so that a rank without a device is an error now."""
        for node_rank in range(len(self.nodes)):
            self._pool(node_rank)

    def __len__(self) -> int:
        """Return the world size."""
        return self.layout.world_size

    def __getitem__(self, rank: int) -> Placement:  # type: ignore[override]  # a plan is not sliced
        """Return the placement of a rank; IndexError beyond the world size."""
        if not 0 <= rank < len(self):
            message = f"the plan has ranks 0 to {len(self) - 1}, not {rank!r}"
            raise IndexError(message)
        launch = self._launch(rank)
        if self.bind is not None:
            return self._bound(launch.node_rank or 0)[launch.local_rank or 0]
        return self._pool(launch.node_rank or 0).place(launch)

    def __iter__(self) -> Iterator[Placement]:
        """Yield the placements in the order of the ranks."""
        return map(self.__getitem__, range(len(self)))

    def conflicts(self) -> list[Conflict]:
        """Return the devices that several ranks share, node by node."""
        found: list[Conflict] = []
        known: dict[int, bool] = {}
        for node_rank, node in enumerate(self.nodes):
            pool = self._pool(node_rank)
            dealt = pool.devices
            if id(pool) not in known:
                known[id(pool)] = len({d.index for d in dealt}) == len(dealt)
            if not dealt or (known[id(pool)] and not pool.by_rank):
                continue
            ranks = self.layout.ranks_of(node_rank)
            if self.policy.strategy == "modulo":
                devices = [dealt[rank % len(dealt)] for rank in ranks]
            else:
                devices = [pool.device_of(self._launch(rank)) for rank in ranks]
            found += shared_devices(node.hostname, ranks, devices)
        return found

    def explain(self) -> str:
        """Return a table with a line for each rank, conflict, and doubt about cores."""
        conflicts = (f"conflict: {conflict}" for conflict in self.conflicts())
        table = placement_table(self, lambda node_rank: self.nodes[node_rank].hostname)
        return "\n".join([table, *conflicts, *self._doubts()])

    def _doubts(self) -> list[str]:
        """Return a line for each node whose cores "exclusive" may part."""
        if self.bind != "exclusive":
            return []
        from gpumap.mapping.bound import doubt_of_cores  # noqa: PLC0415 - as below

        found = [
            (node.hostname, doubt_of_cores(self._bound(node_rank), node, self.bind))
            for node_rank, node in enumerate(self.nodes)
        ]
        lines = (f"warning: on {host}, {doubt}" for host, doubt in found if doubt)
        return list(dict.fromkeys(lines))

    def _bound(self, node_rank: int) -> list[Placement]:
        """Return the placements of a node's ranks, with the CPUs of each."""
        from gpumap.mapping.bound import bound  # noqa: PLC0415 - who asks for it pays

        assert self.bind is not None  # noqa: S101 - for the type checkers
        if node_rank not in self._bounds:
            pool, ranks = self._pool(node_rank), self.layout.ranks_of(node_rank)
            placements = [pool.place(self._launch(rank)) for rank in ranks]
            self._bounds[node_rank] = bound(placements, pool.node, self.bind)
        return self._bounds[node_rank]

    def _pool(self, node_rank: int) -> Pool:
        node, size = self.nodes[node_rank], self.layout.local_world_sizes[node_rank]
        listed = self.policy.listed(node, node_rank)
        key = (id(node), size, str(listed))
        if key not in self._pools:
            rank = self.layout.rank(node_rank=node_rank, local_rank=0)
            # The pool refers to its node, so that no other object gets the node's id.
            self._pools[key] = Pool.of(self.policy, node, self._launch(rank))
        return self._pools[key]

    def _launch(self, rank: int) -> Launch:
        node_rank, local_rank = self.layout.locate(rank)
        return Launch(
            launcher="plan",
            rank=rank,
            world_size=len(self),
            local_rank=local_rank,
            local_world_size=self.layout.local_world_sizes[node_rank],
            node_rank=node_rank,
            num_nodes=len(self.nodes),
        )


def plan(
    nodes: Sequence[Node],
    local_world_sizes: Sequence[int],
    *,
    strategy: Strategy | None = None,
    gpus: Gpus | None = None,
    scores: Scores | None = None,
    distribution: Distribution = "block",
    oversubscribe: bool = False,
    bind: Bind | None = None,
) -> Plan:
    """Return the plan of a cluster, before anything is started.

    With bind, as in a session, it says which CPUs each rank is bound to.

    The same Node object may be given several times; its pool is computed once. A rank
    without a device is an error here; ranks that share one are listed by
    Plan.conflicts().

    Raises:
        LaunchError: There are not as many sizes as nodes, or one is below 1.
        DeviceError: A device is named that is not there.
        PlacementError: Some rank has no device, or bind is unknown.
    """
    if bind is not None:
        refuse_unknown_bind(bind)
    if len(nodes) != len(local_world_sizes):
        raise LaunchError(
            f"{len(nodes)} nodes and {len(local_world_sizes)} local world sizes.",
            "",
            "Give one number of processes for each node.",
        )
    policy = Policy.of(strategy, gpus, scores, oversubscribe=oversubscribe)
    return Plan(nodes, RankLayout(local_world_sizes, distribution), policy, bind)

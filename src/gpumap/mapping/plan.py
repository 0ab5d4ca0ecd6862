"""Who trains where: one rank's placement, and a whole cluster's plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpumap.errors import LaunchError, PlacementError
from gpumap.mapping.devices import CPU, Device, Node
from gpumap.mapping.launch import Distribution, Launch, RankLayout
from gpumap.mapping.strategies import (
    STRATEGIES,
    Choice,
    Gpus,
    Scores,
    Strategy,
    pick,
    pool_of,
)
from gpumap.mapping.values import Value

__all__ = [
    "Conflict",
    "Placement",
    "Plan",
    "idle_devices",
    "place",
    "plan",
    "refuse_conflicts",
]


class Placement(Value):
    """One rank's device, and why it is that one.

    Attributes:
        launch: Whose placement this is.
        device: Where it trains.
        strategy: The strategy's name, or the function's.
        why: One sentence.
    """

    raises = PlacementError

    launch: Launch
    device: Device
    strategy: str
    why: str


class Conflict(Value):
    """One device on which several ranks are placed."""

    raises = PlacementError

    hostname: str
    device: Device
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """Return the sentence that names the ranks, the device and the host."""
        *most, last = (f"rank {rank}" for rank in self.ranks)
        both = "both " if len(self.ranks) == 2 else ""  # noqa: PLR2004 - the word "both"
        return (
            f"{', '.join(most)} and {last} are {both}placed on {self.device} "
            f"on host {self.hostname}"
        )


def place(
    launch: Launch,
    node: Node,
    strategy: Strategy | None = None,
    *,
    gpus: Gpus | None = None,
    scores: Scores | None = None,
    oversubscribe: bool = False,
) -> Placement:
    """Return the device that a rank trains on, in time independent of the world's size.

    Without an accelerator on the node, and none asked for, that is the CPU.

    Raises:
        LaunchError: The strategy needs a place that the launcher does not say.
        DeviceError: A device is named that is not there.
        PlacementError: There is no device for this rank or for its neighbours.

    >>> cards = tuple(Device(kind="cuda", index=i) for i in range(4))
    >>> launch = Launch(launcher="torchrun", rank=1, world_size=2, local_rank=1)
    >>> place(launch, Node(hostname="n1", devices=cards), gpus=[2, 3]).device.index
    3
    """
    choice = Choice.of(strategy, gpus, scores, oversubscribe=oversubscribe)
    if _runs_on_cpu(choice, node):
        return _placement(choice, launch, node, CPU, ())
    pool = pool_of(choice, launch, node)
    return _placement(choice, launch, node, pick(choice, launch, node, pool), pool)


def refuse_conflicts(
    placement: Placement, node: Node, choice: Choice, *, can_share: bool
) -> None:
    """Check, from one rank's own facts, that no two ranks of its node share a device.

    can_share says whether the backend lets two ranks use one device; without it,
    oversubscribe=True is refused too.

    Raises:
        PlacementError: Two local ranks are on one device. The other ranks of the node
            find the same, each for itself, unless the launcher deals ranks to nodes in
            an order that they cannot know; then the roll call finds it.
    """
    if placement.device.kind == "cpu":
        return
    if choice.oversubscribe and not can_share:
        raise PlacementError(
            "oversubscribe=True, and the backend cannot run two ranks on one device.",
            "NCCL and its kin want a device for each rank, MIG slices of one GPU "
            "included.",
            'Leave it out, or choose backend="gloo".',
        )
    if choice.oversubscribe:
        return
    pool = pool_of(choice, placement.launch, node)
    neighbours = _neighbours(placement.launch)
    devices = [pick(choice, neighbour, node, pool) for neighbour in neighbours]
    shared = _shared(node.hostname, [n.rank for n in neighbours], devices)
    n = placement.launch.local_world_size or len(neighbours)
    crowded = n > len(pool) and not placement.launch.devices_bound
    if not shared and not crowded:
        return
    raise PlacementError(
        f"{shared[0]}."
        if shared
        else f"{n} local ranks share {len(pool)} devices on host {node.hostname}.",
        f'strategy "{choice.name}" gives {_words(choice, pool)} for {n} local ranks.',
        f"Start {len(pool)} processes per node "
        f"({placement.launch.command(len(pool))}), or list {n} devices in gpus=[…]."
        if crowded
        else "Give each local rank a device of its own, for instance with "
        'strategy="local_rank".',
        shared[0].ranks if shared else (),
    )


def idle_devices(placement: Placement, node: Node, choice: Choice) -> str | None:
    """Return a sentence on the pool's devices that no process of this node will use."""
    launch = placement.launch
    processes = launch.local_world_size or (1 if launch.world_size == 1 else None)
    if placement.device.kind == "cpu" or processes is None or launch.devices_bound:
        return None
    pool = pool_of(choice, launch, node)
    if processes >= len(pool):
        return None
    return (
        f"{processes} of {len(pool)} devices on {node.hostname} will be used. "
        f"To use all: {launch.command(len(pool))}"
    )


@dataclass(frozen=True)
class Plan(Sequence[Placement]):
    """Every rank's placement in a cluster: plan[rank], worked out when asked for.

    A look-up costs O(log nodes); equal nodes are worked out once.
    """

    nodes: Sequence[Node]
    layout: RankLayout
    choice: Choice
    _pools: dict[tuple[int, int, int], tuple[Device, ...]] = field(
        default_factory=dict[tuple[int, int, int], tuple[Device, ...]],
        repr=False,
        compare=False,
    )

    def __post_init__(self) -> None:
        """Find now whether some rank has no device."""
        for node_rank, node in enumerate(self.nodes):
            if not _runs_on_cpu(self.choice, node):
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
        node_rank = self.layout.locate(rank)[0]
        node = self.nodes[node_rank]
        if _runs_on_cpu(self.choice, node):
            return _placement(self.choice, launch, node, CPU, ())
        pool = self._pool(node_rank)
        device = pick(self.choice, launch, node, pool)
        return _placement(self.choice, launch, node, device, pool)

    def __iter__(self) -> Iterator[Placement]:
        """Yield the placements in the order of the ranks."""
        return map(self.__getitem__, range(len(self)))

    def conflicts(self) -> list[Conflict]:
        """Return the devices that several ranks share, node by node; [] is good."""
        found: list[Conflict] = []
        known: dict[int, bool] = {}
        for node_rank, node in enumerate(self.nodes):
            if not node.devices:
                continue
            pool = self._pool(node_rank)
            if id(pool) not in known:
                known[id(pool)] = len({d.index for d in pool}) == len(pool)
            if known[id(pool)] and not self.choice.by_rank:
                continue
            ranks = self.layout.ranks_of(node_rank)
            if self.choice.strategy == "modulo":
                devices = [pool[rank % len(pool)] for rank in ranks]
            else:
                devices = [self[rank].device for rank in ranks]
            found += _shared(node.hostname, ranks, devices)
        return found

    def explain(self) -> str:
        """Return a table with a line for each rank, and one for each conflict."""
        rows = [("rank", "node", "host", "local_rank", "device", "name", "why")]
        for p in self:
            node_rank, local_rank = self.layout.locate(p.launch.rank)
            host = self.nodes[node_rank].hostname
            rows.append(
                (
                    str(p.launch.rank),
                    str(node_rank),
                    host,
                    str(local_rank),
                    str(p.device),
                    p.device.name or "",
                    p.why,
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *(f"conflict: {c}" for c in self.conflicts())])

    def _pool(self, node_rank: int) -> tuple[Device, ...]:
        node, size = self.nodes[node_rank], self.layout.local_world_sizes[node_rank]
        key = (id(node), size, id(self.choice.listed(node, node_rank)))
        if key not in self._pools:
            rank = self.layout.rank(node_rank=node_rank, local_rank=0)
            self._pools[key] = pool_of(self.choice, self._launch(rank), node)
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
) -> Plan:
    """Return the plan of a cluster, before anything is started.

    Nodes may repeat one object; equal ones are worked out once. A rank without a device
    is an error here; ranks that share one are listed by Plan.conflicts().

    Raises:
        LaunchError: There are not as many sizes as nodes, or one is below 1.
        DeviceError: A device is named that is not there.
        PlacementError: Some rank has no device.
    """
    if len(nodes) != len(local_world_sizes):
        raise LaunchError(
            f"{len(nodes)} nodes and {len(local_world_sizes)} local world sizes.",
            "",
            "Give one number of processes for each node.",
        )
    choice = Choice.of(strategy, gpus, scores, oversubscribe=oversubscribe)
    return Plan(nodes, RankLayout(local_world_sizes, distribution), choice)


def _runs_on_cpu(choice: Choice, node: Node) -> bool:
    return not node.devices and choice.gpus is None and choice.scores is None


def _placement(
    choice: Choice,
    launch: Launch,
    node: Node,
    device: Device,
    pool: tuple[Device, ...],
) -> Placement:
    if device is CPU:
        why = f"no accelerator is visible on {node.hostname}"
    elif launch.devices_bound and not choice.by_rank:
        why = f"{launch.launcher} gave this process its own device"
    else:
        why = f"{choice.name}: {_words(choice, pool)}"
    return Placement(launch=launch, device=device, strategy=choice.name, why=why)


def _words(choice: Choice, pool: tuple[Device, ...]) -> str:
    if not isinstance(choice.strategy, str):
        return f"{choice.name}(launch, node)"
    return STRATEGIES[choice.strategy].words.format(devices=len(pool))


def _neighbours(launch: Launch) -> list[Launch]:
    """Return the launches of this node's ranks, as far as one rank can know them."""
    in_order = launch.one_node or launch.launcher == "torchrun"
    if (
        launch.local_rank is None
        or launch.local_world_size is None
        or launch.devices_bound
        or not in_order
    ):
        return [launch]
    first = 0 if launch.one_node else launch.rank - launch.local_rank
    return [
        launch.model_copy(update={"rank": first + n, "local_rank": n})
        for n in range(launch.local_world_size)
    ]


def _shared(
    hostname: str, ranks: Sequence[int], devices: Sequence[Device]
) -> list[Conflict]:
    indices = [device.index for device in devices]
    if len(set(indices)) == len(indices):
        return []
    return [
        Conflict(
            hostname=hostname,
            device=devices[indices.index(index)],
            ranks=tuple(r for r, i in zip(ranks, indices, strict=True) if i == index),
        )
        for index in dict.fromkeys(indices)
        if indices.count(index) > 1
    ]

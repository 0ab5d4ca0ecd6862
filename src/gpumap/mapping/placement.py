"""Where one rank trains, and what its neighbours on the node have to do with it."""

from collections.abc import Mapping, Sequence
from typing import cast

from gpumap.errors import PlacementError
from gpumap.mapping.choice import Choice, Gpus, Scores, Strategy
from gpumap.mapping.devices import CPU, Device, Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.strategies import by_rank, in_words, pick, pool_of
from gpumap.mapping.values import Value

__all__ = [
    "Conflict",
    "Placement",
    "apart",
    "can_share",
    "devices_here",
    "neighbours",
    "place",
    "placement_on",
    "refuse_conflicts",
    "runs_on_cpu",
    "shared_devices",
]


# Backends that give each device to one rank, and fail or hang otherwise.
_ONE_RANK_A_DEVICE = ("nccl", "xccl", "hccl")


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
        both = "both " if len(self.ranks) == 2 else ""  # noqa: PLR2004 - the word "both"
        return (
            f"{_all(self.ranks)} are {both}placed on {self.device} "
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
    if runs_on_cpu(choice, node):
        return placement_on(choice, launch, node, CPU, ())
    pool = pool_of(choice, launch, node)
    return placement_on(choice, launch, node, pick(choice, launch, node, pool), pool)


def can_share(backend: str) -> bool:
    """Tell whether a process group's backend lets two ranks use one device."""
    return not any(name in backend for name in _ONE_RANK_A_DEVICE)


def refuse_conflicts(
    placement: Placement, node: Node, choice: Choice, backend: str
) -> None:
    """Check, from one rank's own facts, that no two ranks of its node share a device.

    With a backend that cannot share one, oversubscribe=True is refused too.

    Raises:
        PlacementError: Two local ranks are on one device. The other ranks of the node
            find the same, each for itself, unless the launcher deals ranks to nodes in
            an order that they cannot know; then the roll call finds it.
    """
    if placement.device.kind == "cpu":
        return
    if choice.oversubscribe and not can_share(backend):
        raise PlacementError(
            "oversubscribe=True, and the backend cannot run two ranks on one device.",
            "NCCL and its kin want a device for each rank, MIG slices of one GPU "
            "included.",
            'Leave it out, or choose backend="gloo".',
        )
    if choice.oversubscribe:
        return
    pool = pool_of(choice, placement.launch, node)
    here = neighbours(placement.launch)
    devices = [pick(choice, neighbour, node, pool) for neighbour in here]
    shared = shared_devices(node.hostname, [n.rank for n in here], devices)
    n = placement.launch.local_world_size or len(here)
    crowded = n > len(pool) and not placement.launch.devices_bound
    if not shared and not crowded:
        if not can_share(backend):
            ranks = [neighbour.rank for neighbour in here]
            _refuse_slices_of_one_gpu(node.hostname, ranks, devices, pool)
        return
    raise PlacementError(
        f"{shared[0]}."
        if shared
        else f"{n} local ranks share {len(pool)} devices on host {node.hostname}.",
        f'strategy "{choice.name}" gives {in_words(choice, pool)} for {n} local ranks.',
        f"Start {len(pool)} processes per node "
        f"({placement.launch.command(len(pool))}), or list {n} devices in gpus=[…]."
        if crowded
        else "Give each local rank a device of its own, for instance with "
        'strategy="local_rank"'
        + (
            "; or let them share with oversubscribe=True."
            if can_share(backend)
            else "."
        ),
        shared[0].ranks if shared else (),
    )


def _refuse_slices_of_one_gpu(
    hostname: str,
    ranks: Sequence[int],
    devices: Sequence[Device],
    pool: Sequence[Device],
) -> None:
    for device in devices:
        pairs = zip(ranks, devices, strict=True)
        crowd = tuple(rank for rank, other in pairs if other.mig == device.mig)
        if device.mig and len(crowd) > 1:
            raise PlacementError(
                f"{_all(crowd)} are on MIG slices of one GPU, {device.mig}, on host "
                f"{hostname}.",
                "NCCL refuses two ranks on one GPU, slices of it included.",
                "Give each rank a slice of a GPU of its own, of which there are "
                f"{len(apart(pool))}: gpus={[d.index for d in apart(pool)]}; or choose "
                'backend="gloo".',
                crowd,
            )


def _all(ranks: Sequence[int]) -> str:
    *most, last = (f"rank {rank}" for rank in ranks)
    return f"{', '.join(most)} and {last}"


def neighbours(launch: Launch) -> list[Launch]:
    """Return the launches of this node's ranks, as far as one rank can know them."""
    if launch.node_ranks is None or launch.devices_bound:
        return [launch]
    return [
        launch.model_copy(update={"rank": rank, "local_rank": local_rank})
        for local_rank, rank in enumerate(launch.node_ranks)
    ]


def apart(devices: Sequence[Device]) -> list[Device]:
    """Return the first slice of each GPU, and the devices that are whole."""
    gpus = {device.mig or f"{device.index}": device for device in reversed(devices)}
    return sorted(gpus.values(), key=devices.index)


def devices_here(choice: Choice, launch: Launch, node: Node) -> list[Device]:
    """Return the devices of this node's ranks, as far as one rank can know them."""
    pool = pool_of(choice, launch, node)
    here = launch.local_world_size
    if here is None or by_rank(choice) or launch.devices_bound:
        return [pick(choice, one, node, pool) for one in neighbours(launch)]
    return list(pool[:here])


def runs_on_cpu(choice: Choice, node: Node) -> bool:
    """Tell whether there is no accelerator, and none was asked for.

    Scores that measure() took of the CPU ask for none.
    """
    scores = choice.scores
    unscored = scores is None or (
        isinstance(scores, Mapping)
        and list(cast("Mapping[object, float]", scores)) == ["cpu"]
    )
    return not node.devices and choice.gpus is None and unscored


def placement_on(
    choice: Choice,
    launch: Launch,
    node: Node,
    device: Device,
    pool: tuple[Device, ...],
) -> Placement:
    """Return the placement on a device that was picked, with its reason."""
    if device is CPU:
        why = f"no accelerator is visible on {node.hostname}"
    elif launch.devices_bound and not by_rank(choice):
        why = f"{launch.launcher} gave this process its own device"
    elif launch.local_rank is None and len(pool) == 1 and not by_rank(choice):
        why = f"it is the only device in reach; {launch.launcher} tells no local rank"
    else:
        why = f"{choice.name}: {in_words(choice, pool)}"
    return Placement(launch=launch, device=device, strategy=choice.name, why=why)


def shared_devices(
    hostname: str, ranks: Sequence[int], devices: Sequence[Device]
) -> list[Conflict]:
    """Return the devices on which more than one of these ranks is placed."""
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

"""The rules that say which device a rank gets: a table, and one function over it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from gpumap.errors import DeviceError, LaunchError, PlacementError
from gpumap.mapping.devices import Device, DeviceRef, Node, resolve, resolve_all
from gpumap.mapping.launch import Launch

__all__ = [
    "STRATEGIES",
    "Choice",
    "Gpus",
    "Scores",
    "Strategy",
    "StrategyName",
    "pick",
    "pool_of",
]

StrategyName = Literal["local_rank", "explicit", "modulo", "scored"]
Strategy = StrategyName | Callable[[Launch, Node], Device | DeviceRef]
Gpus = Sequence[DeviceRef] | Mapping[str | int, Sequence[DeviceRef]]
Scores = (
    Mapping[DeviceRef, float]
    | Literal["memory", "multiprocessors"]
    | Callable[[Device], float]
)


@dataclass(frozen=True)
class _Rule:
    """One row: how the pool is ordered, which place counts in it, and that in words."""

    order: Callable[["Choice", tuple[Device, ...], Node], tuple[Device, ...]]
    place: Literal["local_rank", "rank"]
    words: str


def _as_listed(
    _choice: "Choice", pool: tuple[Device, ...], _node: Node
) -> tuple[Device, ...]:
    return pool


def _best_first(
    choice: "Choice", pool: tuple[Device, ...], node: Node
) -> tuple[Device, ...]:
    scores = _scores_of(choice.scores, pool, node)
    return tuple(sorted(pool, key=lambda d: (-scores[d.index], d.index)))


STRATEGIES: dict[str, _Rule] = {
    # torch.distributed.run's documentation: device index = LOCAL_RANK.
    "local_rank": _Rule(_as_listed, "local_rank", "pool[local_rank]"),
    # The same over a list of the user's: what DDP's device_ids are filled from.
    "explicit": _Rule(_as_listed, "local_rank", "gpus[local_rank]"),
    # Global rank, as it is usually written: rank % torch.cuda.device_count().
    "modulo": _Rule(_as_listed, "rank", "pool[rank % {devices}]"),
    "scored": _Rule(_best_first, "local_rank", "the pool by score, [local_rank]"),
}


@dataclass(frozen=True)
class Choice:
    """What a user asked for, checked as far as it can be without a node.

    Attributes:
        strategy: A name from STRATEGIES, or a function of (launch, node).
        gpus: The devices this job may use, in order; None for all that are visible.
        scores: For "scored": by device, by property, or by a function of Device.
        oversubscribe: Whether two ranks may share a device.

    Raises:
        PlacementError: The strategy is unknown, or lacks what it needs.
    """

    strategy: Strategy
    gpus: Gpus | None
    scores: Scores | None
    oversubscribe: bool

    @classmethod
    def of(
        cls,
        strategy: Strategy | None,
        gpus: Gpus | None,
        scores: Scores | None,
        *,
        oversubscribe: bool,
    ) -> "Choice":
        """Return the choice with the default strategy filled in."""
        if strategy is None:
            strategy = "scored" if scores is not None else "local_rank"
            strategy = "explicit" if gpus is not None and scores is None else strategy
        if not callable(strategy) and strategy not in STRATEGIES:
            raise PlacementError(
                f"strategy {strategy!r} is unknown.",
                f"There are {', '.join(map(repr, STRATEGIES))}.",
                "Write one of these names, or a function (launch, node) -> device.",
            )
        if strategy == "explicit" and gpus is None:
            raise PlacementError(
                'strategy "explicit" needs a list of devices.',
                "gpus is None.",
                "Add gpus=[…], for instance gpus=[2, 3].",
            )
        if (strategy == "scored") != (scores is not None):
            raise PlacementError(
                'strategy "scored" and scores=… belong together.',
                f"strategy is {strategy!r}, scores is {scores!r}.",
                'Write strategy="scored", scores={0: 100, 1: 90}, or scores="memory".',
            )
        return cls(strategy, gpus, scores, oversubscribe)

    @property
    def name(self) -> str:
        """The strategy's name, or the function's."""
        if isinstance(self.strategy, str):
            return self.strategy
        return getattr(self.strategy, "__name__", type(self.strategy).__name__)

    @property
    def by_rank(self) -> bool:
        """Whether the answer depends on more than the local rank."""
        return not isinstance(self.strategy, str) or (
            STRATEGIES[self.strategy].place == "rank"
        )

    def listed(self, node: Node, node_rank: int | None) -> Sequence[DeviceRef] | None:
        """Return what gpus says for this node: the list itself, or the node's own.

        Raises:
            PlacementError: gpus names nodes, and this one is not among them.
            DeviceError: gpus is not a list.
        """
        gpus = self.gpus
        if isinstance(self.gpus, Mapping):
            keys = (node.hostname, node.hostname.partition(".")[0], node_rank)
            found = [
                self.gpus[key] for key in keys if key is not None and key in self.gpus
            ]
            if not found:
                raise PlacementError(
                    f"gpus has no list for node {node.hostname} "
                    f"(node_rank {node_rank}).",
                    f"It has lists for {', '.join(map(repr, self.gpus))}.",
                    f"Add gpus[{node.hostname!r}] or gpus[{node_rank}].",
                )
            gpus = found[0]
        if gpus is None:
            return None
        if isinstance(gpus, str | bytes) or not isinstance(gpus, Sequence):
            write = [gpus] if isinstance(gpus, int) else [2, 3]
            raise DeviceError(
                f"gpus={gpus!r} is not a list of devices.",
                f"It is a {type(gpus).__name__}.",
                f"Write a list, in the order of the local ranks: gpus={write}.",
            )
        if not gpus:
            raise DeviceError(
                "gpus=[] leaves no device to train on.",
                node.visible,
                "List at least one, or leave gpus out to use all that are visible.",
            )
        return gpus


def pool_of(choice: Choice, launch: Launch, node: Node) -> tuple[Device, ...]:
    """Return the devices that the choice's strategy picks from, in its order.

    Raises:
        DeviceError: gpus or scores names a device that is not there.
        PlacementError: A device is listed twice, or has no score, or there are fewer
            devices than processes that each want one.
    """
    listed = choice.listed(node, launch.node_rank)
    pool = node.devices if listed is None else resolve_all(listed, node)
    if not pool:
        raise DeviceError(
            f'strategy "{choice.name}" has no device to choose from.',
            node.visible,
            "Start where an accelerator is visible, or with GPUMAP_REHEARSAL=dgx-a100.",
        )
    indices = [device.index for device in pool]
    different = len(set(indices))
    if different < len(pool) and not choice.oversubscribe:
        twice = next(d for d in pool if indices.count(d.index) > 1)
        raise PlacementError(
            f"{twice} is listed twice in gpus on {node.hostname}.",
            f"gpus={listed!r} has {len(pool)} entries for {different} devices.",
            "List each device once. Sharing one needs oversubscribe=True and a backend "
            "that can (gloo).",
        )
    if not isinstance(choice.strategy, str):
        return pool
    rule = STRATEGIES[choice.strategy]
    if rule.place == "local_rank" and not launch.devices_bound:
        _refuse_more_processes(choice, launch, pool, node)
    return rule.order(choice, pool, node)


def pick(
    choice: Choice, launch: Launch, node: Node, pool: tuple[Device, ...]
) -> Device:
    """Return the rank's device out of the strategy's pool.

    Raises:
        LaunchError: The strategy counts by local_rank, which the launcher does not say.
        DeviceError: The user's function returned no visible device.
    """
    if not isinstance(choice.strategy, str):
        return _from_function(choice, launch, node)
    if STRATEGIES[choice.strategy].place == "rank":
        return pool[launch.rank % len(pool)]
    return pool[0 if launch.devices_bound else _local_rank(launch)]


def _local_rank(launch: Launch) -> int:
    if launch.local_rank is not None:
        return launch.local_rank
    if launch.world_size == 1:
        return 0
    raise LaunchError(
        f"which GPU rank {launch.rank} trains on depends on its local rank, and the "
        "launcher does not say it.",
        f"{launch.launcher}: rank={launch.rank}, world_size={launch.world_size}, "
        "LOCAL_RANK is not set.",
        "Set LOCAL_RANK and LOCAL_WORLD_SIZE for each process, or start with torchrun, "
        "which does.",
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    )


def _refuse_more_processes(
    choice: Choice, launch: Launch, pool: tuple[Device, ...], node: Node
) -> None:
    processes = launch.local_world_size or _local_rank(launch) + 1
    if processes <= len(pool):
        return
    names = ", ".join(map(str, pool))
    raise PlacementError(
        f"{processes} processes on {node.hostname} have {len(pool)} "
        f"device{'s'[: len(pool) > 1]}: local rank {len(pool)} and up would have none.",
        f'strategy "{choice.name}" gives {STRATEGIES[choice.name].words}; '
        f"the pool is {names}.",
        f"Start {len(pool)} on each node ({launch.command(len(pool))}), or list "
        f"{processes} devices in gpus=[…].",
        tuple(range(launch.world_size)[-processes:]) if launch.one_node else (),
    )


def _from_function(choice: Choice, launch: Launch, node: Node) -> Device:
    assert callable(choice.strategy)  # noqa: S101 - for the type checkers
    answer = choice.strategy(launch, node)
    if isinstance(answer, Device):
        if answer in node.devices:
            return answer
        answer = answer.uuid or answer.index
    try:
        return resolve(answer, node)
    except DeviceError as error:
        where = (
            f"rank {launch.rank} (node_rank {launch.node_rank}, "
            f"local_rank {launch.local_rank})"
        )
        hint = error.hint
        if isinstance(answer, int) and answer >= len(node.devices):
            hint = (
                "A device index counts on its own node: it contains neither node_rank "
                "nor the global rank. Return launch.local_rank, or any index listed."
            )
        raise DeviceError(
            f'strategy "{choice.name}" gave {answer!r} for {where}: {error.happened}',
            error.seen,
            hint,
        ) from None


def _scores_of(
    scores: Scores | None, pool: tuple[Device, ...], node: Node
) -> dict[int, float]:
    found: dict[int, float | None]
    if isinstance(scores, Mapping):
        given = cast("Mapping[DeviceRef, float]", scores)
        indices = [device.index for device in resolve_all(given, node)]
        named = dict(zip(indices, given.values(), strict=True))
        found = {d.index: named.get(d.index) for d in pool}
    elif scores == "memory":
        found = {d.index: d.total_memory for d in pool}
    elif scores == "multiprocessors":
        found = {d.index: d.multiprocessors for d in pool}
    elif callable(scores):
        found = {d.index: scores(d) for d in pool}
    else:
        raise PlacementError(
            f"scores={scores!r} is not understood.",
            "",
            'Write {device: number}, "memory", "multiprocessors" or a function.',
        )
    without = [d for d in pool if found[d.index] is None]
    if without:
        raise PlacementError(
            f"{', '.join(map(str, without))} has no score.",
            f"scores={scores!r} covers {len(pool) - len(without)} of {len(pool)} "
            "devices in the pool.",
            "Add a score for each, or name the pool with gpus=[…].",
        )
    bad = [score for score in found.values() if not _is_number(score)]
    if bad:
        raise PlacementError(
            f"{bad[0]!r} is not a score.",
            f"scores={scores!r}.",
            "A score is a finite number; the highest is placed first.",
        )
    return {index: float(score) for index, score in found.items() if score is not None}


def _is_number(score: object) -> bool:
    if isinstance(score, bool) or not isinstance(score, int | float):
        return False
    return math.isfinite(score)

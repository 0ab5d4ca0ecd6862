"""The placement policy that a user asked for: strategy, devices, scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, cast, get_args

from gpumap.errors import DeviceError, GpumapError, PlacementError
from gpumap.mapping.device_refs import DeviceRef, refs_of
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch
from gpumap.notes import note

__all__ = [
    "GPUS",
    "Bind",
    "Gpus",
    "Policy",
    "Scores",
    "Strategy",
    "StrategyName",
    "called",
    "name_of",
    "pool_named",
    "refuse_unknown_bind",
]

T = TypeVar("T")

GPUS = "GPUMAP_GPUS"
"""The environment variable with the pool of a session without gpus: "2,3"."""


StrategyName = Literal[
    "local_rank", "explicit", "modulo", "scored", "linked", "idle", "closest"
]
Bind = Literal["numa", "exclusive"]
Strategy = StrategyName | Callable[[Launch, Node], Device | DeviceRef]
# Mapping is invariant in its keys, so type checkers need each kind of key by itself.
Gpus = (
    Sequence[DeviceRef]
    | Mapping[str, Sequence[DeviceRef]]
    | Mapping[int, Sequence[DeviceRef]]
    | Mapping[str | int, Sequence[DeviceRef]]
)
Scores = (
    Mapping[DeviceRef, float]
    | Mapping[str, float]
    | Mapping[int, float]
    | Literal["memory", "multiprocessors"]
    | Callable[[Device], float]
)

_NAMES: tuple[StrategyName, ...] = get_args(StrategyName)


def called(function: Callable[..., T], *args: object, whose: str) -> T:
    """Call a user's function; a note on its error names the rank or device concerned.

    Raises:
        PlacementError: It raised StopIteration, which would end a loop around it.
    """
    try:
        return function(*args)
    except StopIteration as error:
        raise PlacementError(
            f"{name_of(function)} raised StopIteration for {whose}.",
            "A next(…) in it found nothing.",
            "Give next() a default, or return a value in every case.",
        ) from error
    except Exception as error:
        note(error, f"gpumap: raised by {name_of(function)} for {whose}")
        raise


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a user's function, or of its type if it has none."""
    return getattr(function, "__name__", type(function).__name__)


def pool_named(gpus: Gpus | None, environ: Mapping[str, str]) -> Gpus | None:
    """Return gpus if given, else the pool that GPUMAP_GPUS names.

    Raises:
        DeviceError: The variable has an empty entry.
    """
    named = environ.get(GPUS)
    return refs_of(named) if gpus is None and named else gpus


def refuse_unknown_bind(
    how: object, raises: type[GpumapError] = PlacementError
) -> None:
    """Check that a way to bind is one of Bind's.

    Raises:
        GpumapError: It is none of them; the error is of the class named.
    """
    if how not in get_args(Bind):
        raise raises(
            f"bind={how!r} is unknown.",
            f"There are {' and '.join(map(repr, get_args(Bind)))}.",
            "Write one of these, or leave it out.",
        )


@dataclass(frozen=True)
class Policy:
    """What a user asked for, checked as far as it can be without a node.

    Attributes:
        strategy: A name from _NAMES, or a function of (launch, node).
        gpus: The devices that this job may use, in order; None for all visible ones.
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
    ) -> "Policy":
        """Return the policy, with the default strategy filled in."""
        if strategy is None:
            strategy = "scored" if scores is not None else "local_rank"
            strategy = "explicit" if gpus is not None and scores is None else strategy
        if not callable(strategy) and strategy not in _NAMES:
            raise PlacementError(
                f"strategy {strategy!r} is unknown.",
                f"There are {', '.join(map(repr, _NAMES))}.",
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
        if not isinstance(cast("object", oversubscribe), bool):
            raise PlacementError(
                f"oversubscribe={oversubscribe!r} is neither True nor False.",
                f"Its type is {type(oversubscribe).__name__}.",
                "Write oversubscribe=True where two ranks may share a device.",
            )
        return cls(strategy, gpus, scores, oversubscribe)

    @property
    def name(self) -> str:
        """The strategy's name, or the function's."""
        if isinstance(self.strategy, str):
            return self.strategy
        return name_of(self.strategy)

    @property
    def varies(self) -> bool:
        """Whether what it gives may change while ranks look, or depends on them all."""
        own = callable(self.strategy) or callable(self.scores)
        return own or self.strategy in ("idle", "closest")

    def listed(self, node: Node, node_rank: int | None) -> Sequence[DeviceRef] | None:
        """Return gpus's list for this node: the list itself, or that of the node.

        Raises:
            PlacementError: gpus names nodes, and this one is not among them.
            DeviceError: gpus is not a list.
        """
        gpus = self.gpus
        if isinstance(gpus, Mapping) and gpus:
            lists = cast("Mapping[str | int, Sequence[DeviceRef]]", gpus)
            keys = (node.hostname, node.hostname.partition(".")[0], node_rank)
            found = [lists[key] for key in keys if key is not None and key in lists]
            if not found:
                raise PlacementError(
                    f"gpus has no list for node {node.hostname} "
                    f"(node_rank {node_rank}).",
                    f"It has lists for {', '.join(map(repr, lists))}.",
                    f"Add gpus[{node.hostname!r}] or gpus[{node_rank}].",
                )
            gpus = found[0]
        if gpus is None:
            return None
        if isinstance(gpus, str | bytes) or not isinstance(gpus, Sequence):
            number = isinstance(gpus, int) and not isinstance(gpus, bool)
            write = [gpus] if number else [2, 3]
            raise DeviceError(
                f"gpus={gpus!r} is not a list of devices.",
                f"Its type is {type(gpus).__name__}.",
                f"Write a list, in the order of the local ranks: gpus={write}.",
            )
        if not gpus:
            raise DeviceError(
                "gpus=[] leaves no device to train on.",
                node.visible,
                "List at least one, or leave gpus out to use all that are visible.",
            )
        return gpus

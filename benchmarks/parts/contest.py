"""All ways of one comparison, measured in turn in the same processes."""

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
import torch.distributed as dist

import gpumap
from gpumap.errors import SessionError
from parts.agenda import agree
from parts.figures import BY_HAND, Outcome, Row, Timing, Way
from parts.links import choice_of
from parts.options import ITEM_SIZES, MOST_RANKS, Options
from parts.reduction import Buffers, Measured, checked, timed

__all__ = ["Ticking", "compare"]

_TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}

Opener = Callable[[], AbstractContextManager[torch.device]]
Ticking = Callable[[int], AbstractContextManager[Callable[[str], None]]]
"""Given the number of steps, makes what is told of each; on rank 0 only."""


def compare(options: Options, ticking: Ticking) -> Outcome:
    """Return the figures of every way, the same on each rank.

    In each round the ways take turns, in one order and then in the other, so that what
    changes with time changes for all of them.
    """
    with gpumap.session(gpus=options.gpus, backend=options.backend) as meeting:
        outcome = agree(options, meeting, dist.get_backend())
    _check(outcome)
    # Each session would say again what the first one said.
    logging.getLogger("gpumap").setLevel(logging.ERROR)
    openers = _openers(outcome, meeting)
    notes = _Notes()
    steps = outcome.options.rounds * len(openers) * len(outcome.options.counts())
    with ticking(steps if meeting.rank == 0 else 0) as tick:
        for number in range(outcome.options.rounds):
            for name in list(openers)[:: -1 if number % 2 else 1]:
                with openers[name]() as device:
                    for step in _steps(outcome.options, device, check=number == 0):
                        notes.add(name, *step)
                        tick(name)
    ways = (*outcome.ways, Way())
    rows = {way.name: notes.rows(way.name, outcome.options) for way in ways}
    filled = tuple(way.model_copy(update={"rows": rows[way.name]}) for way in ways)
    return outcome.model_copy(update={"ways": filled})


def _check(outcome: Outcome) -> None:
    """Refuse, on every rank alike, what would be measured in vain."""
    if not outcome.ways:
        raise SessionError(
            "no strategy gives every rank a device of its own.",
            " ".join(f"{name}: {why}" for name, why in outcome.refused.items()),
            "Start fewer ranks, or name others with --strategies.",
        )
    most = MOST_RANKS[outcome.options.type]
    if outcome.world_size > most:
        raise SessionError(
            f"{outcome.options.type} cannot hold the sums of {outcome.world_size} "
            "ranks exactly.",
            f"It can for {most}.",
            "Choose -d float.",
        )


class _Notes:
    """What was measured so far, by way and number of elements."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], list[Measured]] = defaultdict(list)
        self._wrong: dict[tuple[str, int], Measured] = {}

    def add(
        self, way: str, count: int, seconds: Measured, wrong: Measured | None
    ) -> None:
        self._seconds[way, count].append(seconds)
        if wrong is not None:
            self._wrong[way, count] = wrong

    def rows(self, way: str, options: Options) -> tuple[Row, ...]:
        return tuple(
            Row(
                size=count * ITEM_SIZES[options.type],
                count=count,
                out_of_place=Timing(
                    seconds=tuple(s.out_of_place for s in self._seconds[way, count]),
                    wrong=int(self._wrong[way, count].out_of_place),
                ),
                in_place=Timing(
                    seconds=tuple(s.in_place for s in self._seconds[way, count]),
                    wrong=int(self._wrong[way, count].in_place),
                ),
            )
            for count in options.counts()
        )


def _openers(outcome: Outcome, meeting: gpumap.Session) -> dict[str, Opener]:
    openers = {
        way.name: partial(_by_gpumap, way, outcome.options) for way in outcome.ways
    }
    device = torch.device("cpu")
    if outcome.device != "cpu":
        # The same as the first strategy's, so that the two can be compared.
        mine = outcome.ways[0].seatings[0].placements[meeting.rank].device
        device = torch.device(mine.kind, mine.index)
    return {**openers, BY_HAND: partial(_by_hand, device, outcome.backend, meeting)}


@contextmanager
def _by_gpumap(way: Way, options: Options) -> Generator[torch.device, None, None]:
    policy = choice_of(way.seatings[0].strategies[0], options)
    with gpumap.session(
        strategy=policy.strategy,
        gpus=policy.gpus,
        scores=policy.scores,
        backend=options.backend,
    ) as session:
        yield session.device


@contextmanager
def _by_hand(
    device: torch.device, backend: str, meeting: gpumap.Session
) -> Generator[torch.device, None, None]:
    """Open a group as one does without gpumap, but where the ranks have met already."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)
    store = dist.PrefixStore(f"by hand/{next(_numbers)}", meeting.store)
    dist.init_process_group(
        backend, store=store, rank=meeting.rank, world_size=meeting.world_size
    )
    yield device
    dist.destroy_process_group()


_numbers = itertools.count(1)


def _steps(
    options: Options, device: torch.device, *, check: bool
) -> Iterator[tuple[int, Measured, Measured | None]]:
    counts = options.counts()
    whole = Buffers.of(counts[-1], _TYPES[options.type], device)
    for count in counts:
        buffers = whole.first(count)
        wrong = checked(buffers) if check else None
        repeats = options.repeats(count, device.type)
        yield count, timed(buffers, *repeats), wrong

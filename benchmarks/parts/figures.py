"""What comes out of a measurement, and the arithmetic of bandwidth.

Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, for algbw and busbw.
"""

import statistics
from collections.abc import Sequence

from gpumap.mapping.base import FrozenModel
from gpumap.mapping.placement import Placement
from parts.options import Options

__all__ = [
    "BY_HAND",
    "Outcome",
    "Row",
    "Seating",
    "Timing",
    "Way",
    "bus_factor",
    "quartiles",
    "ratios",
]

BY_HAND = "by hand"


class Timing(FrozenModel):
    """One size, in place or out of place.

    Attributes:
        seconds: The mean time of an all-reduce in each round.
        wrong: Elements, over all ranks, whose sum was not right.
    """

    seconds: tuple[float, ...]
    wrong: int

    @property
    def median(self) -> float:
        """The median of the rounds, in seconds."""
        return statistics.median(self.seconds)


class Row(FrozenModel):
    """One size; size in bytes, count in elements."""

    size: int
    count: int
    out_of_place: Timing
    in_place: Timing

    @property
    def timings(self) -> tuple[Timing, Timing]:
        """Out of place, then in place, as the columns stand."""
        return self.out_of_place, self.in_place


class Seating(FrozenModel):
    """Where strategies place the ranks.

    Attributes:
        strategies: Those that give each rank the same device.
        placements: By rank.
        hosts: By node_rank.
        links: What is known of the links among the chosen devices, a line a node.
        ring: GB/s of the slowest link of the best ring, by the classes of links, and
            that class; None where links are unknown or nothing is linked.
    """

    strategies: tuple[str, ...]
    placements: tuple[Placement, ...]
    hosts: dict[int, str]
    links: tuple[str, ...] = ()
    ring: tuple[float, str] | None = None


class Way(FrozenModel):
    """What is measured once: strategies that use the same devices, or the hand.

    Attributes:
        seatings: None for the loop by hand.
        rows: One for each size.
    """

    seatings: tuple[Seating, ...] = ()
    rows: tuple[Row, ...] = ()

    @property
    def name(self) -> str:
        """The strategies' names, or "by hand"."""
        names = [name for seating in self.seatings for name in seating.strategies]
        return ", ".join(names) or BY_HAND

    @property
    def wrong(self) -> int:
        """How many elements were wrong."""
        return sum(timing.wrong for row in self.rows for timing in row.timings)


class Outcome(FrozenModel):
    """All that was found.

    Attributes:
        refused: What gpumap answered to a strategy that cannot be used here.
        limits: What the machine can do, in GB/s, by what it was measured with.
        device: The kind of device that computed; "cpu" in a rehearsal.
    """

    options: Options
    world_size: int
    backend: str
    device: str
    torch: str
    rehearsal: str | None
    ways: tuple[Way, ...]
    refused: dict[str, str]
    limits: dict[str, float]

    @property
    def wrong(self) -> int:
        """How many elements were wrong in all."""
        return sum(way.wrong for way in self.ways)

    def busbw(self, row: Row, seconds: float) -> float:
        """Return bus bandwidth in GB/s: what each link of a ring would carry."""
        return row.size / seconds / 1e9 * bus_factor(self.world_size)

    def average(self, way: Way) -> float:
        """Return the mean bus bandwidth over sizes, in place and out of place."""
        found = [self.busbw(row, t.median) for row in way.rows for t in row.timings]
        return statistics.fmean(found)


def bus_factor(world_size: int) -> float:
    """Return busbw / algbw of an all-reduce: 2 (n - 1) / n."""
    return 2 * (world_size - 1) / world_size


def ratios(ours: Way, theirs: Way) -> list[float]:
    """Return, for each size and place, the other's median time over this one's."""
    return [
        there.median / here.median
        for mine, other in zip(ours.rows, theirs.rows, strict=True)
        for here, there in zip(mine.timings, other.timings, strict=True)
    ]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 3:  # noqa: PLR2004 - fewer have no quartiles
        return min(values), statistics.median(values), max(values)
    low, median, high = statistics.quantiles(values, n=4)
    return low, median, high

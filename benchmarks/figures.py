"""What is asked of a measurement, what comes out, and the arithmetic of bandwidth.

Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, for algbw and busbw.
"""

import statistics
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpumap.errors import SessionError
from gpumap.mapping.placement import Placement
from gpumap.mapping.refs import DeviceRef
from gpumap.mapping.values import Count, Index, Value

__all__ = [
    "BY_HAND",
    "ITEM_SIZES",
    "MOST_RANKS",
    "Options",
    "Outcome",
    "Row",
    "Seating",
    "Timing",
    "Type",
    "Way",
    "bus_factor",
    "quartiles",
    "ratios",
]

BY_HAND = "by hand"
ITEM_SIZES = {"float": 4, "double": 8, "half": 2, "bfloat16": 2}
# Partial sums are whole numbers up to 6 a rank; beyond these worlds they would round.
MOST_RANKS = {"float": 2_796_202, "double": 2**32, "half": 341, "bfloat16": 42}
# On a CPU an all-reduce takes as long as its bytes: larger sizes get fewer iterations.
_CPU_BYTES = 32 * 2**20
_MOST_BYTES = {"cpu": 256 * 2**20}

Type = Literal["float", "double", "half", "bfloat16"]


class Options(Value):
    """What is measured; rank 0's hold for all.

    Attributes:
        minbytes: The smallest size; maxbytes the largest, factor the step between.
            Without maxbytes 256 MiB on a CPU, 1 GiB elsewhere.
        iterations: All-reduces in one measurement, at most.
        warm_ups: All-reduces before it, at most.
        rounds: How often each way is measured, in turn with the others.
        type: Of the elements, as nccl-tests call it.
        strategies: Which to compare.
        gpus: Their pool.
        scores: For "scored".
        backend: Of the process group; the device's own without it.
    """

    minbytes: Count = 4 * 2**10
    maxbytes: Count | None = None
    factor: Annotated[int, Field(ge=2)] = 2
    iterations: Count = 20
    warm_ups: Index = 5
    rounds: Count = 5
    type: Type = "float"
    strategies: tuple[str, ...]
    gpus: tuple[DeviceRef, ...] | None = None
    scores: Literal["memory", "multiprocessors"] = "memory"
    backend: str | None = None

    def on(self, device: str) -> "Options":
        """Return these with the largest size filled in."""
        if self.maxbytes is not None:
            return self
        most = max(self.minbytes, _MOST_BYTES.get(device, 2**30))
        return self.model_copy(update={"maxbytes": most})

    def counts(self) -> list[int]:
        """Return the numbers of elements to reduce, smallest first."""
        item, size, found = ITEM_SIZES[self.type], self.minbytes, dict[int, None]()
        while size <= (self.maxbytes or self.minbytes):
            found[max(1, size // item)] = None
            size *= self.factor
        return list(found)

    def repeats(self, count: int, device: str) -> tuple[int, int]:
        """Return the warm-ups and the iterations of a measurement."""
        if device != "cpu":
            return self.warm_ups, self.iterations
        fit = max(2, _CPU_BYTES // (count * ITEM_SIZES[self.type]))
        return min(self.warm_ups, fit // 2), min(self.iterations, fit)

    @model_validator(mode="after")
    def _has_a_size(self) -> Self:
        if self.maxbytes is not None and self.maxbytes < self.minbytes:
            raise SessionError(
                f"there is no size from {self.minbytes} to {self.maxbytes} bytes.",
                "-b is the smallest, -e the largest.",
                "Write -b 4K -e 256M, for instance.",
            )
        return self


class Timing(Value):
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


class Row(Value):
    """One size; size in bytes, count in elements."""

    size: int
    count: int
    out_of_place: Timing
    in_place: Timing

    @property
    def timings(self) -> tuple[Timing, Timing]:
        """Out of place, then in place, as the columns stand."""
        return self.out_of_place, self.in_place


class Seating(Value):
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


class Way(Value):
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


class Outcome(Value):
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
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4)
    return low, median, high

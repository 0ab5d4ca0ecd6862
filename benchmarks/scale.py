"""How the cost of placing, planning, choosing and meeting grows with the world.

`python benchmarks/scale.py` prints, for 1,000 to 1,000,000 ranks on nodes of 8, the
seconds and the peak memory of plan(), the microseconds of a look-up and of place() for
one rank, the seconds of conflicts(); the milliseconds of best_linked() for 4 of 4 to 16
devices and for k of 16; and those of a roll call of 4 to 1,024 ranks, each with its own
connection to one store. Medians of several runs, and the exponent of each growth: 1 is
linear, 0 is constant.
"""

import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from random import Random

from parts.crowd import roll_call_seconds

import gpumap

WORLDS = (1_000, 10_000, 100_000, 1_000_000)
RUNS = 5
LOOKUPS = 500
NODES = (4, 8, 12, 16)
KS = (2, 8, 12)
RANKS = (4, 16, 64, 256, 1024)


def main() -> None:
    """Print the table."""
    node = gpumap.machine("dgx-a100")
    columns = ("plan() s", "plan() MB", "plan[rank] us", "place() us", "conflicts() s")
    print("world size".rjust(12), *(name.rjust(14) for name in columns))
    table = [(world, measure(node, world)) for world in WORLDS]
    for world, row in table:
        print(f"{world:12,}", *(f"{value:14.4g}" for value in row))
    growth = [
        exponent(WORLDS, [row[column] for _, row in table])
        for column in range(len(columns))
    ]
    print("exponent".rjust(12), *(f"{value:14.2f}" for value in growth))
    _print_linked()
    _print_roll_calls()


def _print_linked() -> None:
    cases = [(n, 4) for n in NODES] + [(NODES[-1], k) for k in KS]
    heads = (*(f"{k} of {n}" for n, k in cases[: len(NODES)]), "exponent")
    more = [f"{k} of {n}" for n, k in cases[len(NODES) :]]
    print("\nbest_linked() ms".ljust(26), *(h.rjust(9) for h in (*heads, *more)))
    for name, kind in LINKS.items():
        found = [
            1e3 * seconds(partial(gpumap.best_linked, linked(n, kind), k))
            for n, k in cases
        ]
        growth = exponent(NODES, found[: len(NODES)])
        cells = (*found[: len(NODES)], growth, *found[len(NODES) :])
        print(f"{name:25}", *(f"{cell:9.2f}" for cell in cells))


def _print_roll_calls() -> None:
    found = [
        statistics.median(roll_call_seconds(n) for _ in range(RUNS)) for n in RANKS
    ]
    print(
        "\nroll call".ljust(12),
        *(f"{n:,} ranks".rjust(12) for n in RANKS),
        "  exponent",
    )
    growth = exponent(RANKS, found)
    print("ms".ljust(11), *(f"{1e3 * x:12.1f}" for x in found), f"{growth:10.2f}")
    each = (1e3 * x / n for x, n in zip(found, RANKS, strict=True))
    print("ms a rank".ljust(11), *(f"{x:12.3f}" for x in each))


def linked(count: int, kind: Callable[[int, int], gpumap.Link]) -> gpumap.Node:
    """Return a node of so many devices, linked in one way."""
    devices = tuple(gpumap.Device(kind="cuda", index=i) for i in range(count))
    links = tuple(kind(a, b) for a, b in combinations(range(count), 2))
    return gpumap.Node(hostname="n1", devices=devices, links=links)


def _switched(a: int, b: int) -> gpumap.Link:
    return gpumap.Link(a=a, b=b, nvlinks=6)


def _in_trees(a: int, b: int) -> gpumap.Link:
    if a // 8 != b // 8:
        return gpumap.Link(a=a, b=b, pcie="SYS")
    return gpumap.Link(a=a, b=b, pcie="PIX" if a // 4 == b // 4 else "PXB")


def _at_random(a: int, b: int) -> gpumap.Link:
    return gpumap.Link(a=a, b=b, nvlinks=Random(16 * a + b).randrange(4))  # noqa: S311 - for a test matrix


LINKS = {
    "NVSwitch": _switched,
    "PCIe trees, two sockets": _in_trees,
    "random": _at_random,
}


def measure(node: gpumap.Node, world: int) -> tuple[float, ...]:
    """Return the figures of one world size."""
    nodes, sizes = [node] * (world // 8), [8] * (world // 8)
    whole = gpumap.plan(nodes, sizes)
    launch = whole[world // 2].launch
    step = max(1, world // LOOKUPS)

    def look_up() -> None:
        for rank in range(0, world, step):
            whole[rank]

    def place() -> None:
        for _ in range(LOOKUPS):
            gpumap.place(launch, node)

    return (
        seconds(lambda: gpumap.plan(nodes, sizes)),
        megabytes(lambda: gpumap.plan(nodes, sizes)),
        seconds(look_up) / len(range(0, world, step)) * 1e6,
        seconds(place) / LOOKUPS * 1e6,
        seconds(lambda: gpumap.plan(nodes, sizes, strategy="modulo").conflicts()),
    )


def seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def megabytes(call: Callable[[], object]) -> float:
    """Return the peak of what Python allocates during a call, in 10^6 bytes."""
    tracemalloc.start()
    result = call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del result
    return peak / 1e6


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the slope of log y over log x by least squares."""
    logs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True)]
    mean_x = statistics.fmean(x for x, _ in logs)
    mean_y = statistics.fmean(y for _, y in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum(
        (x - mean_x) ** 2 for x, _ in logs
    )


if __name__ == "__main__":
    main()

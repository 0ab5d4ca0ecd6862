"""How the cost of placing and planning grows with the world.

`python benchmarks/scale.py` prints, for 1,000 to 1,000,000 ranks on nodes of 8, the
seconds and the peak memory of plan(), the microseconds of a look-up and of place() for
one rank, the seconds of conflicts(), and the exponent of the growth: 1 is linear, 0 is
constant; then the milliseconds of best_linked() for k of 16 devices. Medians of several
runs.
"""

import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from random import Random

import gpumap

WORLDS = (1_000, 10_000, 100_000, 1_000_000)
RUNS = 5
LOOKUPS = 500
KS = (2, 4, 8, 12)


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
    print("\nbest_linked(), 16 devices".ljust(26), *(f"k={k} ms".rjust(9) for k in KS))
    for name, sixteen in sixteens().items():
        times = [seconds(partial(gpumap.best_linked, sixteen, k)) for k in KS]
        print(f"{name:25}", *(f"{time * 1e3:9.1f}" for time in times))


def sixteens() -> dict[str, gpumap.Node]:
    """Return nodes of 16: all linked alike, a tree of switches, and at random."""
    random = Random(0)  # noqa: S311 - for a test matrix
    trees = {True: "PIX", False: "PXB"}
    kinds: dict[str, Callable[[int, int], gpumap.Link]] = {
        "NVSwitch": lambda a, b: gpumap.Link(a=a, b=b, nvlinks=6),
        "PCIe trees, two sockets": lambda a, b: gpumap.Link.model_validate(
            {
                "a": a,
                "b": b,
                "pcie": trees[a // 4 == b // 4] if a // 8 == b // 8 else "SYS",
            }
        ),
        "random": lambda a, b: gpumap.Link(a=a, b=b, nvlinks=random.randrange(4)),
    }
    devices = tuple(gpumap.Device(kind="cuda", index=i) for i in range(16))
    return {
        name: gpumap.Node(
            hostname="n1",
            devices=devices,
            links=tuple(link(a, b) for a, b in combinations(range(16), 2)),
        )
        for name, link in kinds.items()
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

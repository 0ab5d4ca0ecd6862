"""What a batch that is split by speed is worth to two ranks of unequal speed.

`python benchmarks/balance.py`: rank 1 computes k times as much for a sample as rank 0,
each on a core of its own. Batches are equal (DDP and DistributedSampler), balanced
(speeds={0: k, 1: 1}) or adapting (speeds="adapt", the last of three epochs). Each step
is printed as a share of the ideal, the sum of both ranks' speeds: it is compared with
the same step right after it, at the same time on both ranks, in which they exchange
nothing. Then two ranks of k = 3 and one process train on the same batches; returns 1 if
their losses differ. --plot draws their steps and these losses.
"""

import argparse
import logging
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from parts.figures import quartiles
from parts.progress import progress
from parts.uneven import WAYS, Job, Step, train

import gpumap
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.words import plural

__all__ = ["losses", "of_ideal", "shares", "speeds_alone", "taken"]

# The first steps of a session rebuild buckets and ask for memory.
_WARM_UPS = 2
# A forward and a backward, of the faster rank.
_LEAST_WORK = 3
_SHOWN = 3.0
_EPOCHS = 3
_MOST_APART = 1e-6

Ranks: TypeAlias = tuple[list[Step], ...]
Found: TypeAlias = dict[Job, list[Ranks]]
Progress: TypeAlias = Callable[[int], AbstractContextManager[Callable[[str], None]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 where the losses are not those of one process."""
    asked = _asked(arguments)
    # It pretends a device for each rank, so that speeds are written as on GPUs.
    os.environ[REHEARSAL] = "rtx3090x4"
    jobs = _jobs(asked)
    equal, balanced = _curves(asked)
    turns = [jobs[:: -1 if number % 2 else 1] for number in range(asked.rounds)]
    found = _run([*chain(*turns), equal, balanced], 2)
    [whole] = _run([balanced], 1)[balanced]
    [split] = found[balanced]
    print(
        f"2 ranks; batch {asked.batch}; {asked.rounds} {plural('round', asked.rounds)} "
        f"of {asked.steps} steps, "
        "all ways in turn; medians (quartiles) of the steps\n"
    )
    _print_speeds(found, jobs)
    every = (steps for job in jobs for ranks in found[job] for steps in ranks)
    part = taken(chain(*every))
    print(f"\nother programs took {part:.1%} of the time that ranks computed in")
    one, two = losses(whole), losses(split)
    difference = max(abs(a - b) for a, b in zip(one, two, strict=True))
    print(
        f"loss of one process and of {_joined(shares(split)[0])}: {len(one)} steps, "
        f"from {one[0]:.3f} to {one[-1]:.3f}, at most {difference:.1g} apart"
    )
    if asked.plot:
        from parts.uneven_pictures import draw  # noqa: PLC0415 - an extra has it

        draw({"equal": found[equal][0], "balanced": split}, one, two, asked.plot)
    return 0 if difference < _MOST_APART else 1


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare equal, balanced and adapting batches on unequal ranks."
    )
    add = parser.add_argument
    add("--k", type=float, nargs="+", default=[1.5, 2.0, 3.0, 4.0])
    # 1.5, 2, 3 and 4 to 1 divide it without remainder.
    add("--batch", type=int, default=60, help="60 by default")
    add("--steps", type=int, default=8, help="of an epoch, 8 by default")
    add("--rounds", type=int, default=1)
    add("--work", type=int, default=432, help="forwards of rank 0 for a sample")
    add("--plot", type=Path, metavar="FILE.png", help="and FILE-loss.png beside it")
    asked = parser.parse_args(arguments)
    if any(k < 1 or 2 * k % 1 for k in asked.k):
        parser.error("--k: write 1, 1.5, 2 and so on")
    if asked.batch < 2 or asked.batch % 2:  # noqa: PLR2004 - the two ranks
        parser.error("--batch: write an even number")
    if asked.work <= _LEAST_WORK:
        parser.error(f"--work: write more than {_LEAST_WORK}")
    if asked.steps <= _WARM_UPS or asked.rounds < 1:
        parser.error(f"write more than {_WARM_UPS} --steps, and 1 or more --rounds")
    if asked.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install gpumap-torch[bench]")
    return asked


def _jobs(asked: argparse.Namespace) -> list[Job]:
    """Return what is measured in each round; adapting starts with equal shares."""
    return [
        Job(
            way=way,
            k=k,
            batch=asked.batch,
            length=asked.batch * asked.steps,
            epochs=_EPOCHS if way == "adapting" else 1,
            work=asked.work,
        )
        for k in asked.k
        for way in WAYS
    ]


def _curves(asked: argparse.Namespace) -> tuple[Job, Job]:
    """Return longer jobs, equal and balanced, whose last batches are smaller."""
    equal, balanced = (
        Job(
            way=way,
            k=_SHOWN,
            batch=asked.batch,
            length=asked.batch * asked.steps + asked.batch // 2,
            epochs=_EPOCHS,
            work=asked.work,
        )
        for way in ("equal", "balanced")
    )
    return equal, balanced


def _run(jobs: list[Job], ranks: int) -> Found:
    """Run jobs one after another; return what each of their ranks has done."""
    found: Found = {}
    steps = gpumap.spawn(_trained, jobs, progress, nprocs=ranks)
    for job, *of_ranks in zip(jobs, *steps, strict=True):
        found.setdefault(job, []).append(tuple(of_ranks))
    return found


def _trained(jobs: list[Job], show: Progress) -> list[list[Step]]:
    """Train in this rank; rank 0 shows how far it is."""
    # Each session would say that it is a rehearsal.
    logging.getLogger("gpumap").setLevel(logging.ERROR)
    shows = gpumap.detect_launch().rank == 0
    steps: list[list[Step]] = []
    with show(len(jobs) if shows else 0) as done:
        for job in jobs:
            steps.append(train(job))
            done(f"{job.way}, k = {job.k:g}")
    return steps


def _print_speeds(found: Found, jobs: Sequence[Job]) -> None:
    print("     samples/s alone              of their sum")
    ways = (way.rjust(20) for way in WAYS)
    print("   k  rank 0  rank 1   n·min/sum", *ways, " adapting's shares, by epoch")
    for k in dict.fromkeys(job.k for job in jobs):
        runs = {job.way: found[job] for job in jobs if job.k == k}
        speeds = speeds_alone(runs["balanced"])
        cells = (
            "{1:.3f} ({0:.3f}-{2:.3f})".format(*quartiles(of_ideal(runs[way])))
            for way in WAYS
        )
        print(
            f"{k:4g}{speeds[0]:8.1f}{speeds[1]:8.1f}",
            f"{len(speeds) * min(speeds) / sum(speeds):11.3f}",
            *(cell.rjust(20) for cell in cells),
            "",
            ", ".join(map(_joined, shares(runs["adapting"][-1]))),
        )


def _joined(numbers: Sequence[int]) -> str:
    return "+".join(map(str, numbers))


def of_ideal(runs: Sequence[Ranks]) -> list[float]:
    """Return, for each step, all ranks' speed over the sum of those alone."""
    return [
        sum(step.samples / (step.ended - step.began) for step, _ in of_ranks)
        / sum(step.samples / alone for step, alone in of_ranks)
        for ranks in runs
        for of_ranks in zip(*map(_counted, ranks), strict=True)
    ]


def speeds_alone(runs: Sequence[Ranks]) -> list[float]:
    """Return each rank's samples per second, if ranks exchange nothing: the median."""
    return [
        statistics.median(
            step.samples / alone for steps in rounds for step, alone in _counted(steps)
        )
        for rounds in zip(*runs, strict=True)
    ]


def _counted(steps: Sequence[Step]) -> list[tuple[Step, float]]:
    """Return the steps that were also taken alone, but for the first of them."""
    both = [(step, step.alone) for step in steps if step.alone is not None]
    return both[_WARM_UPS:]


def taken(steps: Iterable[Step]) -> float:
    """Return which part of the time to compute in the ranks had no CPU for."""
    times = [(step.cpu, step.computed - step.began) for step in steps]
    cpu, wall = map(sum, zip(*times, strict=True))
    return 1 - cpu / wall


def shares(ranks: Ranks) -> list[tuple[int, ...]]:
    """Return the ranks' samples in the first step of each epoch."""
    return [
        tuple(step.samples for step in of_ranks)
        for number, of_ranks in enumerate(zip(*ranks, strict=True))
        if number == 0 or of_ranks[0].epoch != ranks[0][number - 1].epoch
    ]


def losses(ranks: Ranks) -> list[float]:
    """Return the mean loss over all ranks' samples of each step."""
    return [
        sum(step.samples * step.loss for step in of_ranks)
        / sum(step.samples for step in of_ranks)
        for of_ranks in zip(*ranks, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())

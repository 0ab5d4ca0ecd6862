"""What gpumap costs against hand-written torch, under the same launch.

`python benchmarks/overhead.py [JOBS]` runs two-process gloo jobs by both ways in turn,
10 of each by default after one that is not counted; with --peers also by Accelerate,
Lightning Fabric and pytorch-ignite, where they are installed. Prints medians of the
slower rank in milliseconds, and in brackets their ratio to hand-written torch; a step's
is to a wrap by hand in the same job, step by step in turn. "CPU" is what a rank's whole
process used, the mean of both: other programs disturb it less than the clock. The last
line counts the ranks that did not end with exit code 0 within 30 s; their jobs are left
out above.
"""

import argparse
import json
import math
import resource
import statistics
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from parts.figures import quartiles
from parts.one_rank import WAYS
from parts.two_ranks import start_ranks

_STEPS = 200
_PATIENCE = 30.0
_PHASES = (
    *("import", "set-up", "import + set-up", "first step", "step"),
    *("tear-down", "whole process", "CPU"),
)
_RANK = str(Path(__file__).with_name("parts") / "one_rank.py")

Times = dict[str, list[float]]


def main(jobs: int, *, peers: bool) -> None:
    """Print the table."""
    ways = [*WAYS] if peers else ["torch", "gpumap"]
    missing = [way for way in ways if find_spec(way) is None]
    ways = [way for way in ways if way not in missing]
    times: dict[str, Times] = {way: {} for way in ways}
    abnormal = dict.fromkeys(ways, 0)
    for number in range(jobs + 1):
        for way in ways[:: -1 if number % 2 else 1]:
            ranks, ended = _job(way)
            abnormal[way] += ended
            # The first job warms the files' cache up.
            for phase in ranks[0] if ranks and number else ():
                slower = max(rank[phase] for rank in ranks) * 1000
                times[way].setdefault(phase, []).append(slower)
    _print(times, abnormal, 2 * (jobs + 1))
    for way in missing:
        print(f"{way} is not installed")


def _job(way: str) -> tuple[list[dict[str, float]], int]:
    """Run a job; return its ranks' seconds, and how many ranks ended abnormally.

    The seconds are empty if one did.
    """
    began, used = time.perf_counter(), _seconds_of_children()
    ranks = start_ranks(_RANK, way, str(_STEPS))
    seconds: list[dict[str, float]] = []
    for rank in ranks:
        try:
            out, _ = rank.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            rank.kill()
            out, _ = rank.communicate()
        whole = {"whole process": time.perf_counter() - began}
        if rank.returncode == 0:
            seconds.append(json.loads(out.splitlines()[-1]) | whole)
    cpu = {"CPU": (_seconds_of_children() - used) / len(ranks)}
    seconds = [rank | cpu for rank in seconds]
    abnormal = sum(rank.returncode != 0 for rank in ranks)
    return ([] if abnormal else seconds), abnormal


def _seconds_of_children() -> float:
    """Return the CPU seconds, user's and system's, of all processes waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _print(times: dict[str, Times], abnormal: dict[str, int], ranks: int) -> None:
    print("ms".ljust(16), "spread".rjust(8), *(way.rjust(22) for way in times))
    for phase in _PHASES:
        low, median, high = quartiles(times["torch"].get(phase, [math.nan]))
        cells = [_cell(times, way, phase) for way in times]
        print(f"{phase:16} {100 * (high - low) / median:6.1f} %", *cells)
    counts = (f"{count} of {ranks}".rjust(22) for count in abnormal.values())
    print("abnormal exits".ljust(25), *counts)


def _cell(times: dict[str, Times], way: str, phase: str) -> str:
    if phase not in times[way]:
        return "none ended well".rjust(22)
    own = statistics.median(times[way][phase])
    by_hand = times["torch"].get(phase, [math.nan])
    if phase == "step":
        by_hand = times[way]["step by hand"]
    return f"{own:.3f} ({own / statistics.median(by_hand):.3f})".rjust(22)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What gpumap costs.")
    parser.add_argument("jobs", nargs="?", type=int, default=10)
    parser.add_argument("--peers", action="store_true", help="compare others too")
    asked = parser.parse_args()
    main(asked.jobs, peers=asked.peers)

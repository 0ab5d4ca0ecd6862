"""What gpumap costs against hand-written torch, under the same launch.

`python benchmarks/overhead.py [JOBS]` runs two-process gloo jobs by both ways in turn,
15 of each by default after one that is not counted, and prints medians of the slower
rank and their ratio. Steps are compared inside one job, a step by gpumap's wrap and a
step by hand in turn. Tear-down: torch's destroy returns at once because the group lives
on until the process ends; gpumap's ends the group, after all ranks have met.
"""

import statistics
import sys

from two_ranks import WAYS, run_job

STEPS = 200
PHASES = ("import", "set-up", "step", "tear-down", "whole process")


def main(jobs: int) -> None:
    """Print the table."""
    seen: dict[tuple[str, str], list[float]] = {
        (way, phase): [] for way in WAYS for phase in PHASES
    }
    for n in range(jobs + 1):
        for way in WAYS if n % 2 else reversed(WAYS):
            ranks = run_job(way, STEPS)
            if not n:
                continue
            for phase in {*PHASES, "step by hand"} & set(ranks[0]):
                slower = max(rank[phase] for rank in ranks) * 1000
                key = ("torch", "step") if phase == "step by hand" else (way, phase)
                seen[key].append(slower)
    heads = ("torch ms", "gpumap ms", "ratio", "spread")
    print("phase".ljust(14), *(head.rjust(11) for head in heads))
    for phase in PHASES:
        by_hand, by_gpumap = (seen[way, phase] for way in WAYS)
        low, _, high = statistics.quantiles(by_hand, n=4)
        hand, ours = statistics.median(by_hand), statistics.median(by_gpumap)
        spread = 100 * (high - low) / hand
        print(
            f"{phase:14} {hand:11.3f} {ours:11.3f} {ours / hand:11.3f} {spread:9.1f} %"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)

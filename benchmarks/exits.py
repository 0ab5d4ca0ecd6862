"""How many ranks end abnormally after all their work was right.

`python benchmarks/exits.py [JOBS]` runs two-process gloo jobs, 60 by default, by
gpumap and by hand-written torch in turn, and counts exit codes other than 0.
"""

import sys
from collections import Counter

from two_ranks import WAYS, run_job


def main(jobs: int) -> None:
    """Print both counts."""
    codes = {way: Counter[int]() for way in WAYS}
    for n in range(jobs):
        for way in WAYS:
            codes[way].update(rank.code for rank in run_job(way, 1))
        if sys.stderr.isatty():
            print(f"\r{n + 1}/{jobs}", end="", file=sys.stderr)
    print("way".ljust(8), "ranks".rjust(6), "abnormal".rjust(9), "  exit codes")
    for way, seen in codes.items():
        abnormal = seen.total() - seen[0]
        others = {code: seen[code] for code in sorted(seen) if code}
        print(
            way.ljust(8), f"{seen.total():6}", f"{abnormal:9}", f"  {others or 'all 0'}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)

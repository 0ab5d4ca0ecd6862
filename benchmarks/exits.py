"""How many ranks end abnormally after all their work was right.

`python benchmarks/exits.py [JOBS]` runs two-process gloo jobs, 20 by default of each
way, one by hand-written torch and one by gpumap at the same time, and counts exit codes
other than 0. Both are as short as a tutorial: begin, wrap, one backward, end. Whether a
rank dies is a race, so the counts of hand-written torch vary from run to run.
"""

import sys
from collections import Counter

from parts.two_ranks import start_ranks

SCRIPTS = {
    "torch": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.ones(4, 2)).sum().backward()
dist.destroy_process_group()
""",
    "gpumap": """
import torch
import gpumap

with gpumap.ddp_session(torch.nn.Linear(2, 1)) as model:
    model(torch.ones(4, 2)).sum().backward()
""",
}


def main(jobs: int) -> None:
    """Print both counts."""
    codes = {way: Counter[int]() for way in SCRIPTS}
    for n in range(jobs):
        started = {way: start_ranks("-c", script) for way, script in SCRIPTS.items()}
        for way, ranks in started.items():
            for rank in ranks:
                rank.communicate(timeout=120)
                codes[way][rank.returncode] += 1
        if sys.stderr.isatty():
            print(f"\r{n + 1}/{jobs}", end="", file=sys.stderr)
    print("way".ljust(8), "ranks".rjust(6), "abnormal".rjust(9), "  exit codes")
    for way, seen in codes.items():
        others = {code: seen[code] for code in sorted(seen) if code}
        abnormal = seen.total() - seen[0]
        print(f"{way:8} {seen.total():6} {abnormal:9}   {others or 'all 0'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)

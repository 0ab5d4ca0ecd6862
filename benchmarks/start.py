"""What it gains to import what DDP needs while the communicator forms.

`python benchmarks/start.py [JOBS]` runs two-process jobs, 7 of each way by default, on
the pretended accelerator of tests/accelerator, whose communicator takes 2 s to form.
On gloo, whose group forms at once, both ways are the same. Rank 1 comes 5 s after
rank 0. Prints the median seconds from its entering the session to its first step: with
the import beside the forming and with the import after it, in turn, and their ratio.
"""

import os
import statistics
import sys
import time
from pathlib import Path

from parts.two_ranks import start_ranks

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from helpers.accelerator import accelerator

WAYS = ("beside", "after")
INIT = "2"


def rank(way: str) -> None:
    """Be a rank; print the seconds to the first step."""
    import torch  # noqa: PLC0415 - only ranks need it

    import gpumap  # noqa: PLC0415
    from gpumap.runtime import wrapping  # noqa: PLC0415

    if way == "after":
        imports, calls = wrapping.import_what_ddp_needs, []

        def second_time() -> None:
            calls.append(way)
            if len(calls) > 1:
                imports()

        wrapping.import_what_ddp_needs = second_time
    model = torch.nn.Linear(4, 1)
    if os.environ["RANK"] == "1":
        time.sleep(5)
    began = time.perf_counter()
    with gpumap.ddp_session(model) as m:
        m(torch.ones(2, 4, device=gpumap.current().device)).sum().backward()
        print(time.perf_counter() - began, flush=True)


def _seconds(way: str) -> float:
    ranks = start_ranks(__file__, "rank", way)
    outs = [process.communicate(timeout=120)[0] for process in ranks]
    return float(outs[1].split()[-1])


def main(jobs: int) -> None:
    """Print the medians and their ratio."""
    os.environ.update({**accelerator(), "PRETEND_INIT": INIT})
    found = [[_seconds(way) for way in WAYS] for _ in range(jobs)]
    beside, after = map(statistics.median, zip(*found, strict=True))
    print(f"beside {beside:.2f} s, after {after:.2f} s: {beside / after:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 7)

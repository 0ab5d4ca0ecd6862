"""Two-process gloo jobs, by gpumap and by hand-written torch, for the benchmarks.

`python benchmarks/two_ranks.py gpumap|torch STEPS` is one rank; it prints its times as
JSON.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

WAYS = ("torch", "gpumap")


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start_ranks(*arguments: str) -> list[subprocess.Popen[str]]:
    """Start both ranks of a job: Python with these arguments, and a port of its own."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]


def run_job(way: str, steps: int) -> list[dict[str, float]]:
    """Run a job and return each rank's seconds."""
    began = time.perf_counter()
    ranks = start_ranks(__file__, way, str(steps))
    seconds = []
    for rank in ranks:
        out, _ = rank.communicate(timeout=120)
        times = json.loads(out)
        times["whole process"] = time.perf_counter() - began
        seconds.append(times)
    return seconds


def one_rank(way: str, steps: int) -> None:
    """Import, set up, train, tear down; print the seconds of each."""
    times: dict[str, float] = {}
    began = time.perf_counter()
    import torch

    if way == "gpumap":
        import gpumap

        gpumap.ddp_session  # noqa: B018 - loads what a session needs
    times["import"] = time.perf_counter() - began

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )
    x = torch.randn(64, 256)
    if way == "gpumap":
        with_gpumap(model, x, steps, times)
    else:
        with_torch(model, x, steps, times)
    print(json.dumps(times), flush=True)


def with_gpumap(
    model: "nn.Module", x: "Tensor", steps: int, times: dict[str, float]
) -> None:
    """Use a session; in it, compare its steps with those of a wrap by hand."""
    import gpumap

    other = deepcopy(model)
    began = time.perf_counter()
    with gpumap.ddp_session(model) as m:
        times["set-up"] = time.perf_counter() - began
        compare(m, other, x, steps, times)
        began = time.perf_counter()
    times["tear-down"] = time.perf_counter() - began


def compare(
    m: "nn.Module", other: "nn.Module", x: "Tensor", steps: int, times: dict[str, float]
) -> None:
    """Take steps with both wraps in turn; keep the median of each."""
    from torch.nn.parallel import DistributedDataParallel

    plain = DistributedDataParallel(other)
    each = [(step(m, x), step(plain, x)) for _ in range(steps)]
    for name, seconds in zip(
        ("step", "step by hand"), zip(*each, strict=True), strict=True
    ):
        times[name] = statistics.median(seconds[steps // 10 :])


def with_torch(
    model: "nn.Module", x: "Tensor", steps: int, times: dict[str, float]
) -> None:
    """Use what every tutorial has."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    began = time.perf_counter()
    dist.init_process_group("gloo")
    m = DistributedDataParallel(model)
    times["set-up"] = time.perf_counter() - began
    for _ in range(2 * steps):
        step(m, x)
    began = time.perf_counter()
    dist.destroy_process_group()
    times["tear-down"] = time.perf_counter() - began


def step(m: "nn.Module", x: "Tensor") -> float:
    """Run forward and backward; return the seconds."""
    began = time.perf_counter()
    m(x).sum().backward()
    return time.perf_counter() - began


if __name__ == "__main__":
    one_rank(sys.argv[1], int(sys.argv[2]))

"""Two-process gloo jobs, by gpumap and by hand-written torch, for the benchmarks.

`python benchmarks/two_ranks.py gpumap|torch STEPS` is one rank; it prints its times as
JSON. With one step it is what tutorials show: begin, wrap, one backward, destroy, exit.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

WAYS = ("torch", "gpumap")


@dataclass(frozen=True)
class Rank:
    """What became of one rank: its exit code and its times in seconds."""

    code: int
    times: dict[str, float]


def run_job(way: str, steps: int) -> list[Rank]:
    """Run both ranks of a job and return what became of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.perf_counter()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, way, str(steps)],
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
    ended = []
    for rank in ranks:
        out, _ = rank.communicate(timeout=120)
        times = json.loads(out) if out.strip() else {}
        times["whole process"] = time.perf_counter() - began
        ended.append(Rank(rank.returncode, times))
    return ended


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
    """Use a session; with many steps, compare them with those of a wrap by hand."""
    import gpumap

    other = deepcopy(model)
    began = time.perf_counter()
    with gpumap.ddp_session(model) as m:
        times["set-up"] = time.perf_counter() - began
        step(m, x)
        if steps > 1:
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
    for _ in range(2 * steps - 1):
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

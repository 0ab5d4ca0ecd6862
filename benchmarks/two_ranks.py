"""Two-process gloo jobs, by gpumap and by hand-written torch, for the benchmarks.

`python benchmarks/two_ranks.py gpumap|torch` is one rank; it prints its times as JSON.
"""

import json
import os
import socket
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

WARM_UP = 20
STEPS = 200
WAYS = ("torch", "gpumap")


@dataclass(frozen=True)
class Rank:
    """What became of one rank: its exit code and its times in seconds."""

    code: int
    times: dict[str, float]


def run_job(way: str) -> list[Rank]:
    """Run both ranks of a job and return what became of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.perf_counter()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, way],
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


def one_rank(way: str) -> None:
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
        with_gpumap(model, x, times)
    else:
        with_torch(model, x, times)
    print(json.dumps(times), flush=True)


def with_gpumap(model: "nn.Module", x: "Tensor", times: dict[str, float]) -> None:
    """Use a session; inside it, compare its steps with those of a wrap by hand."""
    from torch.nn.parallel import DistributedDataParallel

    import gpumap

    other = deepcopy(model)
    began = time.perf_counter()
    with gpumap.ddp_session(model) as m:
        times["set-up"] = time.perf_counter() - began
        for _ in range(WARM_UP):
            step(m, x)
        plain = DistributedDataParallel(other)
        ours: list[float] = []
        by_hand: list[float] = []
        for _ in range(STEPS + WARM_UP):
            ours.append(step(m, x))
            by_hand.append(step(plain, x))
        times["step"] = sorted(ours[WARM_UP:])[STEPS // 2]
        times["step by hand"] = sorted(by_hand[WARM_UP:])[STEPS // 2]
        del plain
        began = time.perf_counter()
    times["tear-down"] = time.perf_counter() - began


def with_torch(model: "nn.Module", x: "Tensor", times: dict[str, float]) -> None:
    """Use what every tutorial has."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    began = time.perf_counter()
    dist.init_process_group("gloo")
    m = DistributedDataParallel(model)
    times["set-up"] = time.perf_counter() - began
    for _ in range(WARM_UP + 2 * (WARM_UP + STEPS)):
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
    one_rank(sys.argv[1])

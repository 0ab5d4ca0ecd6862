"""Starting two processes: gpumap.spawn against torch's own ways.

`python benchmarks/launch.py [ROUNDS]`: in each round, 5 by default, a fresh Python for
each way, in turn, calls it four times; each call starts two ranks that open a group,
wrap a model, take one step and close. Prints the medians of the first call and of the
later ones, and their ratio to torch.multiprocessing.spawn's.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from parts.two_ranks import free_port
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

import gpumap

CALLS = 4


def by_gpumap() -> None:
    """Take one step in a session."""
    with gpumap.ddp_session(torch.nn.Linear(2, 1), device="cpu") as model:
        model(torch.ones(1, 2)).sum().backward()


def by_hand() -> None:
    """Take one step as tutorials do."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    dist.barrier()  # without it some ranks abort at exit
    dist.destroy_process_group()


def numbered(rank: int, port: int) -> None:
    """Be a rank of mp.spawn."""
    names = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    by_hand()


def elastic(start_method: str) -> None:
    """Start two ranks by torchrun's own function."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        start_method=start_method,
        max_restarts=0,
    )
    elastic_launch(config, by_hand)()


def by_torch_spawn() -> None:
    """Start two ranks by torch's spawn."""
    start: Callable[..., object] = mp.spawn  # untyped
    start(numbered, (free_port(),), nprocs=2)


WAYS: dict[str, Callable[[], object]] = {
    "torch.multiprocessing.spawn": by_torch_spawn,
    "elastic_launch, spawn": lambda: elastic("spawn"),
    "elastic_launch, fork": lambda: elastic("fork"),
    "gpumap.spawn": lambda: gpumap.spawn(by_gpumap, nprocs=2),
}


def timed(way: str) -> list[float]:
    """Return the seconds of each call in this process."""
    seconds = []
    for _ in range(CALLS):
        began = time.perf_counter()
        WAYS[way]()
        seconds.append(time.perf_counter() - began)
    return seconds


def main(rounds: int) -> None:
    """Print the table."""
    first: dict[str, list[float]] = {way: [] for way in WAYS}
    later: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            done = subprocess.run(
                [sys.executable, __file__, "--way", way],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            if done.returncode:
                print(f"{way} failed: {done.stderr.strip().splitlines()[-1]}")
                continue
            seconds = json.loads(done.stdout.splitlines()[-1])
            first[way].append(seconds[0])
            later[way] += seconds[1:]
    own = "torch.multiprocessing.spawn"
    print(f"{'way':30}{'first s':>10}{'ratio':>8}{'later s':>10}{'ratio':>8}")
    for way in WAYS:
        row = f"{way:30}"
        for table in (first, later):
            median = statistics.median(table[way])
            row += f"{median:10.3f}{median / statistics.median(table[own]):8.3f}"
        print(row)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        print(json.dumps(timed(sys.argv[2])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)

"""What the processes that spawn() starts do in its tests."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import gpumap


class Stubborn(Exception):  # noqa: N818 - a user's own
    """An exception that cannot be pickled and loaded again."""

    def __init__(self, one: int, two: int) -> None:
        """Take more arguments than it keeps."""
        super().__init__(f"{one} and {two}")


def who(*words: str, **more: str) -> dict[str, Any]:
    """Return what a rank knows of itself."""
    with gpumap.session(start_timeout=30, timeout=30) as s:
        device = s.placement.device
        return {
            "rank": s.rank,
            "size": s.world_size,
            "launcher": s.launch.launcher,
            "device": f"{device.kind}:{device.index}",
            "words": (words, more),
            "threads": torch.get_num_threads(),
            "pid": os.getpid(),
        }


def train(value: float) -> list[list[float]]:
    """Return the averaged gradient of one step."""
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    with gpumap.ddp_session(torch.nn.Linear(2, 1), start_timeout=30, timeout=30) as m:
        m(torch.full((4, 2), value * rank)).sum().backward()
        grad: list[list[float]] = m.module.weight.grad.tolist()
        return grad


def fails(how: str, victim: int = 1) -> int:
    """Fail in one rank, while the others go on."""
    with gpumap.session(start_timeout=30, timeout=30) as s:
        if s.rank == victim:
            fail(how)
        if how == "alone":
            time.sleep(60)
        for _ in range(200):
            torch.distributed.all_reduce(torch.ones(1))
            time.sleep(0.05)
    return s.rank


def fail(how: str) -> None:
    """Do to this process what is to be done."""
    if how == "raise":
        raise KeyError("no such sample")
    if how == "stubborn":
        raise Stubborn(1, 2)
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(7)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how in ("kill", "alone"):
        os.kill(os.getpid(), signal.SIGKILL)


def without_a_session(rank_that_fails: int) -> None:
    """Fail in one rank, while the others sleep outside of any session."""
    if int(os.environ["RANK"]) == rank_that_fails:
        raise OSError("disc full")
    time.sleep(60)


def ends_early() -> str | None:
    """Leave by sys.exit(0) in one rank."""
    if os.environ["RANK"] == "0":
        sys.exit(0)
    return "returned"


def returns_a_lock() -> object:
    """Return what cannot be pickled."""
    return threading.Lock()


def sleeps(folder: str) -> None:
    """Say that this process is there, and sleep."""
    Path(folder, os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(60)

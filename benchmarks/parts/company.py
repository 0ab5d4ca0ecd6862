"""Sessions among what a real script has around it, one after another.

`python benchmarks/parts/company.py COUNT`, in each rank of a job: prints what was not
as it should be, and what the process holds, as JSON. All ranks choose alike: DataLoader
workers that persist or not, forks, a pool, a subprocess, a handler of the user's that
gets its signal, a thread, and in every third session an error in one rank or in both.
"""

import gc
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import gpumap

__all__ = ["Held", "held", "sessions_in_company"]

# How long a session may take, whatever happens in it.
_BOUND = 20.0
# After a step, gloo's threads take Python's lock to let go of it. A child that is
# forked at that moment may hang under Python 3.11, with gpumap and without.
_SETTLES = 0.05
_DATA = TensorDataset(torch.ones(32, 2))

Held = dict[str, object]
_kept: list[Any] = []


def held() -> Held:
    """Return what this process holds: files, threads, MiB of memory, its excepthook."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
    return {
        "open files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "Python threads": threading.active_count(),
        "children": len(multiprocessing.active_children()),
        "memory MiB": round(resident, 1),
        "excepthook": sys.excepthook is sys.__excepthook__,
        "variables": "GLOO_SOCKET_IFNAME" in os.environ,
    }


def _persistent(model: torch.nn.Module) -> None:
    """Keep workers that persist, and their iterator, beyond the block."""
    loader = DataLoader(_DATA, 8, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    model(next(iterator)[0]).sum().backward()
    _kept.append(iterator)


def _loader(model: torch.nn.Module) -> None:
    """Run workers through an epoch."""
    for (batch,) in DataLoader(_DATA, 8, num_workers=2):
        model(batch).sum().backward()


def _child(_: torch.nn.Module) -> None:
    """Keep a child that outlives the block."""
    context = multiprocessing.get_context("fork")
    child = context.Process(target=time.sleep, args=(60,))
    child.start()
    _kept.append(child)


def _terminated(_: torch.nn.Module) -> None:
    """End a child by SIGTERM."""
    _child(_)
    child = _kept.pop()
    child.terminate()
    child.join()


def _runs_on(_: torch.nn.Module) -> None:
    """Fork a child that leaves by an exception, through the block."""
    pid = os.fork()
    if pid == 0:
        raise _ChildIsDone
    os.waitpid(pid, 0)


def _pool(_: torch.nn.Module) -> None:
    """Run a pool, whose workers are terminated."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(abs, range(4))


def _subprocess(_: torch.nn.Module) -> None:
    """Keep a program that outlives the block."""
    _kept.append(subprocess.Popen(["sleep", "60"]))  # noqa: S607 - found where it is


def _handler(_: torch.nn.Module) -> None:
    """Handle SIGTERM, and get one."""
    heard: list[int] = []

    def hear(number: int, _frame: FrameType | None) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGTERM, hear)
    os.kill(os.getpid(), signal.SIGTERM)
    while not heard:
        time.sleep(0.01)
    signal.signal(signal.SIGTERM, before)


def _thread(_: torch.nn.Module) -> None:
    """Keep a thread that outlives the block for a moment."""
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
    _kept.append(thread)


_COMPANY: tuple[Callable[[torch.nn.Module], None], ...] = (
    _persistent,
    _loader,
    _child,
    _terminated,
    _runs_on,
    _pool,
    _subprocess,
    _handler,
    _thread,
)


class _ChildIsDone(BaseException):
    """Takes a forked child out of everything that its parent is in."""


class _PlannedError(Exception):
    """The error of a session that is to fail."""


def sessions_in_company(count: int) -> tuple[Held, Held, list[str]]:
    """Open and leave so many sessions.

    Returns what is held after a tenth of them, what at the end, and what was not as it
    should be.
    """
    odd: list[str] = []
    first: Held = {}
    for number in range(count):
        began = time.monotonic()
        expected, ended = _one(number)
        took = time.monotonic() - began
        if ended not in expected:
            odd.append(f"session {number} ended with {ended}, expected {expected}")
        if took > _BOUND:
            odd.append(f"session {number} took {took:.1f} s")
        _let_go()
        if number == max(count // 10, 3) - 1:
            first = held()
    return first, held(), odd


def _one(number: int) -> tuple[list[str], str]:
    """Open and leave one session; return how it may end, and how it did."""
    chance = random.Random(number)  # noqa: S311 - the same on every rank
    company = chance.sample(_COMPANY, 3)
    fails = number % 3 == 2  # noqa: PLR2004 - every third
    place = chance.randrange(len(company) + 1) if fails else None
    guilty = chance.choice([(0,), (1,), (0, 1)])
    expected = ["nothing"]
    try:
        model = torch.nn.Linear(2, 1)
        limits: dict[str, Any] = {"start_timeout": 60, "timeout": 15, "device": "cpu"}
        with gpumap.ddp_session(model, **limits) as m:
            session = gpumap.current()
            if fails and session.world_size == 1:
                guilty = (0,)
            if fails:
                expected = ["own"] if session.rank in guilty else ["told"]
            for step in range(len(company) + 1):
                m(torch.ones(1, 2)).sum().backward()
                if step == place and session.rank in guilty:
                    raise _PlannedError(session.rank)  # noqa: TRY301 - as a user's
                if step < len(company):
                    time.sleep(_SETTLES)
                    company[step](m)
            dist.barrier()
    except _ChildIsDone:
        os._exit(0)
    except _PlannedError:
        return expected, "own"
    except gpumap.SessionError as error:
        named = set(error.ranks) <= set(guilty) and bool(error.ranks)
        return expected, "told" if named else f"{error}"
    return expected, "nothing"


def _let_go() -> None:
    """End what outlived the block."""
    for thing in _kept:
        if isinstance(thing, subprocess.Popen | multiprocessing.Process):
            thing.kill()
        if isinstance(thing, subprocess.Popen):
            thing.wait()
        elif isinstance(thing, threading.Thread):
            thing.join()
    _kept.clear()  # iterators first: torch minds whoever kills their workers
    gc.collect()
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


if __name__ == "__main__":
    print(json.dumps(sessions_in_company(int(sys.argv[1]))), flush=True)

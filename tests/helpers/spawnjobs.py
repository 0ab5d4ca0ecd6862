"""Functions that the tests of spawn() run in its processes."""

import atexit
import dataclasses
import functools
import multiprocessing
import multiprocessing.util
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import gpumap


class Stubborn(Exception):  # noqa: N818 - a user's own
    """An exception that cannot be pickled and loaded again."""

    def __init__(self, one: int, two: int) -> None:
        """Take more arguments than it keeps."""
        super().__init__(f"{one} and {two}")


def who(*words: str, **more: str) -> dict[str, Any]:
    """Return what a rank knows about itself."""
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
    """Fail in the way that how names."""
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
    if how == "real-time":
        os.kill(os.getpid(), signal.SIGRTMIN + 3)


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
    """Write this process's id into a file, and sleep."""
    Path(folder, os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(60)


def draws() -> tuple[float, float, float]:
    """Return random numbers of torch, Python and NumPy, without a seed."""
    return torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002, S311


def surroundings(variable: str) -> dict[str, Any]:
    """Return what a process takes over from its parent."""
    umask = os.umask(0)
    os.umask(umask)
    os.write(1, b"written to the standard output\n")
    return {
        "variable": os.environ.get(variable),
        "threads": torch.get_num_threads(),
        "folder": str(Path.cwd()),
        "temporary": tempfile.gettempdir(),
        "umask": umask,
        "cpus": os.sched_getaffinity(0),
        "method": multiprocessing.get_start_method(),
    }


def loads(method: str | None) -> list[int]:
    """Load batches by workers, from a data set that cannot be pickled."""
    data = [torch.tensor([n]) for n in range(600)]
    with gpumap.session(start_timeout=30, timeout=30):
        loader: Any = DataLoader(
            data,  # type: ignore[arg-type]
            100,
            num_workers=1,
            collate_fn=lambda batch: sum(batch, torch.zeros(1)),
            multiprocessing_context=method,
        )
        return [int(batch) for batch in loader]


def write(path: str, delay: float = 0.1) -> None:
    """Write a file after a delay."""
    time.sleep(delay)
    Path(path).write_text("saved")


def leaves_work(folder: str) -> str:
    """Return, and leave something to a thread, to atexit and to multiprocessing."""
    rank = os.environ["RANK"]
    threading.Thread(target=write, args=(f"{folder}/thread{rank}", 6.0)).start()
    atexit.register(write, f"{folder}/atexit{rank}")
    multiprocessing.util.Finalize(
        None, write, args=(f"{folder}/final{rank}",), exitpriority=1
    )
    return "returned"


def exits_after(how: str) -> str:
    """Return, and in rank 1 fail when Python exits."""
    if os.environ["RANK"] == "1":
        atexit.register(fail, how)
    return "returned"


class NoText(Exception):  # noqa: N818 - a user's own
    """An exception whose text fails."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError


class OnlyThere(Exception):  # noqa: N818 - a user's own
    """An exception that only the process that raised it can unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle this process's id."""
        return only_in, (os.getpid(),)


def only_in(pid: int) -> OnlyThere:
    """Return the exception in the process with this id, and fail in any other."""
    if os.getpid() != pid:
        raise RuntimeError("another process")
    return OnlyThere("x")


class Deadly(Exception):  # noqa: N818 - a user's own
    """An exception that ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """End the process when unpickled."""
        return os._exit, (9,)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):  # noqa: N818 - a user's own
    """An exception that takes no notes."""

    code: int


def raises(kind: str) -> None:
    """Raise in rank 1, inside of a session."""
    kinds: dict[str, BaseException] = {
        "no text": NoText(),
        "only there": OnlyThere("x"),
        "deadly": Deadly("x"),
        "frozen": Frozen(3),
    }
    with gpumap.session(start_timeout=30, timeout=30) as s:
        if s.rank == 1:
            raise kinds[kind]
        torch.distributed.all_reduce(torch.ones(1))


def one_after_the_other(in_session: bool) -> None:  # noqa: FBT001 - spawn passes it on
    """Fail in rank 0 with the words "failed first", and a second later in rank 1."""
    if in_session:
        with gpumap.session(start_timeout=30, timeout=30) as s:
            if s.rank == 0:
                raise ValueError("the sanity check failed first")
            torch.distributed.all_reduce(torch.ones(1))
    if os.environ["RANK"] == "0":
        raise ValueError("the sanity check failed first")
    time.sleep(1)
    raise OSError("disc full")


class Unloadable:
    """A result that cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Fail when unpickled."""
        return int, ("no number",)


def returns_what_cannot_be_loaded() -> object:
    """Return a result that cannot be unpickled."""
    return Unloadable()


def configured(function: Callable[[str], str]) -> Callable[[], str]:
    """Give a function its argument, as configuration libraries do."""

    @functools.wraps(function)
    def inside() -> str:
        return function("a configuration")

    return inside


@configured
def reads(configuration: str) -> str:
    """Return the argument that the decorator passed."""
    return configuration


def comes_late(seconds: float) -> int:
    """Let rank 1 come to the roll call some seconds after rank 0."""
    if os.environ["RANK"] == "1":
        time.sleep(seconds)
    with gpumap.session(device="cpu") as s:
        return s.rank


def opens_alone(results: Any, group: str) -> None:
    """Open a session in a process that multiprocessing has started."""
    if group == "in a group":
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with gpumap.session(device="cpu") as s:
            results.put(s.world_size)
    except gpumap.LaunchError as error:
        results.put(error.happened + error.hint)


def placed() -> str:
    """Return the device that this rank is mapped to."""
    with gpumap.session() as opened:
        device = opened.placement.device
        return f"{device.kind}:{device.index}"


def flat() -> None:
    """Open a session by start(); rank 1 raises, and rank 0 goes on to a collective."""
    session = gpumap.start(device="cpu")
    dist.all_reduce(torch.ones(1))
    if session.rank == 1:
        raise ValueError("boom")
    dist.all_reduce(torch.ones(1))

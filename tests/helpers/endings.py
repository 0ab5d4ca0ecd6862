"""Scripts that end a session in some way: `python endings.py CASE [HOW]`."""

import asyncio
import atexit
import ctypes
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.context import ForkProcess
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import gpumap
from gpumap.rendezvous.gloo_sockets import GlooConnections
from gpumap.rendezvous.store_client import Client
from gpumap.runtime import process_group

RANK = int(os.environ.get("RANK", "0"))
HOW = sys.argv[2] if sys.argv[2:] else ""
LIMIT = float(os.environ.get("LIMIT", "20"))
DATA = TensorDataset(torch.ones(16, 2))


def say(*parts: object) -> None:
    """Write one line at once, so that the lines of two ranks do not mix."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")
    sys.stdout.flush()


def ddp(**options: Any) -> Any:
    """Open a session with short time limits around a small model."""
    limits = {"start_timeout": LIMIT, "timeout": LIMIT}
    return gpumap.ddp_session(nn.Linear(2, 1), **{**limits, **options})


def step(m: nn.Module) -> None:
    m(torch.ones(4, 2)).sum().backward()


def reduce() -> None:
    dist.all_reduce(torch.ones(1))


def fork(work: Callable[[], object]) -> ForkProcess:
    """Start a child of this process that runs a function."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    return child


# Children that outlive the block.


def outlived() -> None:
    """Leave the block, or fail in it, while a child process lives on."""
    began = time.monotonic()
    keep = None
    try:
        with ddp() as m:
            keep = start_child(m)
            if RANK == 1 and os.environ.get("FAILS"):
                raise ValueError("in the loop")
            for _ in range(3):
                step(m)
    except Exception as error:
        say("error", type(error).__name__, *str(error).splitlines())
        say("notes", *getattr(error, "__notes__", []))
    say(f"left after {time.monotonic() - began:.1f} s")
    stop_child(keep)


def start_child(m: nn.Module) -> Any:
    """Start a child that lives on after the block."""
    if HOW in ("persistent", "iterator"):
        loader = DataLoader(DATA, 2, num_workers=1, persistent_workers=True)
        iterator = iter(loader)
        m(next(iterator)[0]).sum().backward()
        return iterator
    if HOW == "subprocess":
        return subprocess.Popen(["sleep", "60"])
    return fork(lambda: time.sleep(60))


def stop_child(keep: Any) -> None:
    """End the child, so that the test leaves nothing behind."""
    for child in multiprocessing.active_children():
        child.kill()
    if isinstance(keep, subprocess.Popen):
        keep.kill()
        keep.wait()


def runs_on() -> None:
    """Fork a child inside the block; the child leaves the block as well."""
    with ddp() as m:
        step(m)
        child = os.fork()
        if child == 0:
            if HOW == "raises":
                raise ValueError("in the child")
            if HOW == "exits":
                sys.exit(7)
        else:
            say("child's status", os.waitpid(child, 0)[1])
            step(m)
            store = gpumap.current().store
            store.set(f"still/{RANK}", "here")
            store.wait(["still/0", "still/1"])
    say("out of the block, in the", "parent" if child else "child")
    if child == 0:
        return
    with ddp() as m:
        step(m)
    say("another session ended")


def opens_one() -> None:
    """Open a session in a forked child, inside its parent's session and after it."""

    def child(when: str) -> None:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return
        try:
            with gpumap.session(start_timeout=10):
                say(when, "opened one")
        except gpumap.GpumapError as error:
            say(when, error.happened)
        sys.exit(0)

    with ddp() as m:
        child("inside:")
        say("rank", gpumap.current().rank)
        step(m)
    child("afterwards:")
    with ddp() as m:
        step(m)
    say("another session ended")


def keeps_group() -> None:
    """Fork a child after the block, while the user still refers to the group."""
    with gpumap.session(start_timeout=LIMIT, timeout=LIMIT):
        wrapped = DistributedDataParallel(nn.Linear(2, 1))
        step(wrapped)
    child = os.fork()
    if child == 0:
        sys.exit(7)
    for _ in range(100):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            say("child's status", status)
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    say("the child did not end")


# Signals.


def child_terminated() -> None:
    """End a child by SIGTERM, and train on for longer than gpumap's watch of it."""
    with ddp() as m:
        if HOW == "process":
            child = fork(lambda: time.sleep(60))
            time.sleep(0.3)
            child.terminate()
            child.join()
            say("child", child.exitcode)
        if HOW == "pool":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                say(pool.map(abs, [-1, 1]))
        if HOW == "loader":
            iterator: Any = iter(DataLoader(DATA, 2, num_workers=2))
            next(iterator)
            for worker in iterator._workers:  # noqa: SLF001 - torch has no public way
                os.kill(worker.pid, signal.SIGTERM)
        if HOW == "C":
            # C's fork, which does not run Python's hooks.
            pid = ctypes.CDLL(None).fork()
            if pid == 0:
                try:
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(1)
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
        time.sleep(6.5)
        step(m)
    say("ended well")


def own_handler() -> None:
    """Set a SIGTERM handler in the block that runs for longer than gpumap's watch."""
    done: list[str] = []

    def save(*_: object) -> None:
        time.sleep(6.5)
        done.append("saved")

    with ddp() as m:
        step(m)
        if HOW == "asyncio":

            async def wait() -> None:
                saved = asyncio.Event()

                def save_and_tell() -> None:
                    save()
                    saved.set()

                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGTERM, save_and_tell)
                os.kill(os.getpid(), signal.SIGTERM)
                await saved.wait()

            asyncio.run(wait())
        else:
            signal.signal(signal.SIGTERM, save)
            os.kill(os.getpid(), signal.SIGTERM)
        step(m)
    say(*done, "and went on;", signal.getsignal(signal.SIGTERM) is save)


def saves_while_leaving() -> None:
    """Handle Terminated for longer than gpumap's watch of SIGTERM."""
    with ddp():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        finally:
            time.sleep(6.5)
            say("saved")


def two_in_a_row() -> None:
    """Print whether a session leaves a SIGTERM handler, descriptor or thread."""
    for _ in range(2):
        with ddp():
            pass
        say(
            signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
            signal.set_wakeup_fd(-1),
            [t.name for t in threading.enumerate() if t.name.startswith("gpumap")],
        )


# Sessions that nobody leaves.


def flat() -> None:
    """Open a session that is not left before the script ends."""
    stack = ExitStack()
    if HOW == "dropped":
        gpumap.session(start_timeout=LIMIT, timeout=LIMIT).__enter__()
    elif HOW == "kept":
        kept.append(gpumap.session(start_timeout=LIMIT, timeout=LIMIT))
        kept[0].__enter__()
    else:
        stack.enter_context(gpumap.session(start_timeout=LIMIT, timeout=LIMIT))
        kept.append(stack)
    # From exit on, refuse to start threads, as Python does from 3.12 on.
    atexit.register(refuse_threads)
    reduce()
    if HOW == "raises" and RANK == 1:
        raise ValueError("boom")
    if HOW == "exits" and RANK == 1:
        sys.exit(3)
    reduce()
    if HOW == "closes":
        stack.close()
    say("end", dist.is_initialized())


kept: list[Any] = []


def refuse_threads() -> None:
    def start(_: object) -> NoReturn:
        say("a thread was started")
        raise RuntimeError("can't create new thread at interpreter shutdown")

    threading.Thread.start = start  # type: ignore[assignment,method-assign]


def flat_child() -> None:
    """Open a session in a child of multiprocessing that returns without leaving it."""

    def child() -> None:
        kept.append(ExitStack())
        opened = kept[0].enter_context(gpumap.session(timeout=LIMIT))
        if HOW == "raises" and RANK == 1:
            raise ValueError("boom")
        reduce()
        say("rank", opened.rank)

    process = fork(child)
    process.join(40)
    say("child", process.exitcode)


# Cases in which one rank's behaviour affects the others.


def rank_0_evaluates() -> None:
    """Let rank 0 stay in the block for longer than a collective may take."""
    with ddp(timeout=2) as m:
        step(m)
        if RANK == 0:
            time.sleep(7)
    say("ended well")


def waits_in_own_group() -> None:
    """Fail on rank 1 while rank 0 waits for it in a group that the user keeps."""
    began = time.monotonic()
    try:
        with ddp():
            kept.append(dist.new_group([0, 1]))
            kept.append(DistributedDataParallel(nn.Linear(2, 1)))
            if RANK == 1:
                time.sleep(0.5)
                raise ValueError("rank 1 only")
            dist.all_reduce(torch.ones(1), group=kept[0])
    except Exception as error:
        kept.append(error)
        say(f"after {time.monotonic() - began:.1f} s:", type(error).__name__)
        say("text", str(error).splitlines()[0])
        say("notes", *getattr(error, "__notes__", []))
        say("connected", GlooConnections(everything=True).intact([1]))
    # The process lives on, as one that reports the error or tries again.
    time.sleep(3)


def gloo_stays() -> None:
    """Fail on rank 1, whose connections stay, while rank 0 is in an all-reduce."""
    vars(process_group)["GLOO_FAILS"] = 1.0
    GlooConnections.shut_down = lambda self: None  # type: ignore[method-assign] # noqa: ARG005
    try:
        with ddp():
            kept.append(dist.group.WORLD)
            reduce()
            if RANK == 1:
                raise ValueError("rank 1 only")
            reduce()
    except ValueError:
        time.sleep(6)


def constructor() -> None:
    """Let moving the model fail on rank 1, while the other rank wraps its model."""

    class Stays(nn.Linear):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            if RANK == 1:
                raise ValueError("cannot be moved")
            return super().to(*args, **kwargs)

    began = time.monotonic()
    try:
        with gpumap.ddp_session(Stays(2, 1), start_timeout=LIMIT, timeout=LIMIT):
            pass
    except Exception as error:
        kept.append(error)
        say(f"after {time.monotonic() - began:.1f} s:", type(error).__name__)
        say("text", str(error).splitlines()[0])
        say("connected", GlooConnections(everything=True).intact([1]))
    time.sleep(3)


def destroys() -> None:
    """Call destroy_process_group inside the block, as old scripts do."""
    with ddp() as m:
        step(m)
        dist.destroy_process_group()
    say("ended well")


def destroy_fails() -> None:
    """Let destroy_process_group fail on rank 1."""
    real = dist.destroy_process_group

    def planted(*_: object) -> None:
        raise RuntimeError("planted")

    try:
        with ddp() as m:
            step(m)
            if RANK == 1:
                dist.destroy_process_group = planted  # type: ignore[assignment]
    except gpumap.SessionError as error:
        say("error", *str(error).splitlines())
    try:
        with ddp(start_timeout=3):
            say("a second one opened")
    except gpumap.GpumapError as error:
        say("second", *str(error).splitlines())
    dist.destroy_process_group = real
    if dist.is_initialized():
        real()


def uneven() -> None:
    """Make one step more on rank 1."""
    began = time.monotonic()
    try:
        with ddp(timeout=60) as m:
            for _ in range(3 + RANK):
                step(m)
    except gpumap.SessionError as error:
        say(f"after {time.monotonic() - began:.1f} s:", *str(error).splitlines())
        say("ranks", error.ranks)


def uneven_after_another() -> None:
    """Make a collective on rank 1 alone, after a session with collectives of both."""
    with gpumap.session(timeout=60):
        for _ in range(5):
            reduce()
    try:
        with gpumap.session(timeout=60):
            if RANK:
                reduce()
    except gpumap.SessionError as error:
        say(*str(error).splitlines())


def joined() -> None:
    """Make four steps more on rank 1, inside of DDP's join()."""
    with ddp() as m:
        with m.join():
            for _ in range(3 + 4 * RANK):
                step(m)
        # Longer than a rank at its end takes to find an unfinished collective.
        time.sleep(2 * RANK)
    say("ended well")


def works_on_after_another() -> None:
    """Make collectives in a group of rank 1 alone, while rank 0 is at its end."""
    with ddp():
        alone = dist.new_group([1])
        reduce()
        for _ in range(40 * RANK):
            dist.all_reduce(torch.ones(1), group=alone)
            time.sleep(0.05)
    say("ended well")


def slow() -> None:
    """Keep rank 1 away for longer than a collective may take."""
    try:
        with ddp(timeout=3) as m:
            step(m)
            if RANK == 1:
                load_data()
            step(m)
    except gpumap.SessionError as error:
        say("error", *str(error).splitlines())
        say("ranks", error.ranks)


def load_data() -> None:
    time.sleep(6)


def differs() -> None:
    """Start with models, options or kinds of session that differ between ranks."""
    if HOW == "shape":
        opened: Any = gpumap.ddp_session(
            nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2 + RANK)), start_timeout=LIMIT
        )
    elif HOW == "option":
        options = {"find_unused_parameters": True} if RANK else {}
        opened = ddp(**options)
    else:
        opened = ddp() if RANK else gpumap.session(start_timeout=LIMIT)
    with opened:
        pass


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """An error to which neither a note nor a traceback can be added."""

    code: int


class BadNotesError(Exception):
    """An error whose __notes__ is not a list."""

    __notes__ = 5  # type: ignore[assignment]


def odd_error() -> None:
    """Raise an error on rank 1 that is hard to describe."""
    errors: dict[str, BaseException] = {
        "frozen": FrozenError(3),
        "notes": BadNotesError("odd"),
        "stop": StopIteration("over"),
    }
    error = errors[HOW]
    try:
        with ddp():
            if RANK == 1:
                raise error
            reduce()
    except BaseException as caught:
        say("same", caught is error, type(caught).__name__)
        say("text", *str(caught).splitlines())
        say("notes", getattr(caught, "__notes__", None))


def asks_in_vain() -> None:
    """Stop rank 1; on rank 0 find out who is silent, and be ended meanwhile."""
    with ddp(timeout=2) as m:
        step(m)
        if RANK == 1:
            say("stops")
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            step(m)
        except RuntimeError:
            say("asks")
            raise


def waits_at_end() -> None:
    """Let rank 0 wait at the end for rank 1."""
    with ddp():
        reduce()
        say("there")
        if RANK == 1:
            time.sleep(8)


def patient() -> None:
    """Count the requests to the store while rank 0 waits for rank 1."""
    asked: list[str] = []
    real = Client._request  # noqa: SLF001 - where every request passes

    def counting(self: Client, number: int, *fields: bytes) -> Any:
        asked.append(threading.current_thread().name)
        return real(self, number, *fields)

    if RANK == 1 and HOW == "start":
        time.sleep(8)
    if RANK == 0:
        Client._request = counting  # type: ignore[method-assign] # noqa: SLF001
    with ddp():
        if HOW == "body" and RANK == 0:
            time.sleep(0.5)
            asked.clear()
            time.sleep(3)
            say("asked", len(asked))
        if RANK == 1 and HOW in ("end", "body"):
            time.sleep(8)
        if HOW == "end":
            asked.clear()
    if HOW != "body":
        say("asked", len(asked))


if __name__ == "__main__":
    warnings.simplefilter("error")
    for message in ("This process .* is multi-threaded", "os.fork"):
        warnings.filterwarnings("ignore", message)
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    globals()[sys.argv[1]]()

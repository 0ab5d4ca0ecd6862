"""What a script does around the end of its session: `python endings.py CASE [HOW]`."""

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

RANK = int(os.environ.get("RANK", "0"))
HOW = sys.argv[2] if sys.argv[2:] else ""
LIMIT = float(os.environ.get("LIMIT", "20"))
DATA = TensorDataset(torch.ones(16, 2))


def say(*parts: object) -> None:
    """Write one line at once, so that two ranks' lines do not run into each other."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")
    sys.stdout.flush()


def ddp(**options: Any) -> Any:
    """Open a session with short limits around a small model."""
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
    """Leave the block, or fail in it, while a child of one kind lives on."""
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
    """Start what lives on after the block."""
    if HOW in ("persistent", "iterator"):
        loader = DataLoader(DATA, 2, num_workers=1, persistent_workers=True)
        iterator = iter(loader)
        m(next(iterator)[0]).sum().backward()
        return iterator
    if HOW == "subprocess":
        return subprocess.Popen(["sleep", "60"])
    return fork(lambda: time.sleep(60))


def stop_child(keep: Any) -> None:
    """End it, so that the test leaves nothing behind."""
    for child in multiprocessing.active_children():
        child.kill()
    if isinstance(keep, subprocess.Popen):
        keep.kill()
        keep.wait()


def runs_on() -> None:
    """A child that is forked in the block runs on out of it, as Python does."""
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
    """A child opens a session, inside of its parent's and after it."""

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
    """A child is forked after the block, while the user still refers to the group."""
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
    """A child is ended by SIGTERM, and the session goes on for longer than a watch."""
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
            # A fork that Python knows nothing of.
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
    """A handler that the user sets inside saves for longer than a watch."""
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
    """What the user does about Terminated takes longer than a watch."""
    with ddp():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        finally:
            time.sleep(6.5)
            say("saved")


def two_in_a_row() -> None:
    """Nothing of the answer to SIGTERM is left between two sessions."""
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
    """A script that opens a session and goes on to its end."""
    stack = ExitStack()
    if HOW == "dropped":
        gpumap.session(start_timeout=LIMIT, timeout=LIMIT).__enter__()
    elif HOW == "kept":
        kept.append(gpumap.session(start_timeout=LIMIT, timeout=LIMIT))
        kept[0].__enter__()
    else:
        stack.enter_context(gpumap.session(start_timeout=LIMIT, timeout=LIMIT))
        kept.append(stack)
    # From now on Python refuses to start threads, as of 3.12 it does by itself.
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
    """A child of multiprocessing's opens a session and returns."""

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


# What one rank does, and the others hear.


def rank_0_evaluates() -> None:
    """Longer than a collective may take."""
    with ddp(timeout=2) as m:
        step(m)
        if RANK == 0:
            time.sleep(7)
    say("ended well")


def waits_in_own_group() -> None:
    """Rank 1 fails while rank 0 waits for it in a group that the user keeps."""
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
    # The process lives on, to report or to try again.
    time.sleep(3)


def constructor() -> None:
    """The model of rank 1 fails at being moved, with the others at the wrap."""

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
    """A line of the old boilerplate is left in the body."""
    with ddp() as m:
        step(m)
        dist.destroy_process_group()
    say("ended well")


def destroy_fails() -> None:
    """The group of rank 1 refuses to end."""
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
    """Rank 1 makes one step more."""
    began = time.monotonic()
    try:
        with ddp(timeout=60) as m:
            for _ in range(3 + RANK):
                step(m)
    except gpumap.SessionError as error:
        say(f"after {time.monotonic() - began:.1f} s:", *str(error).splitlines())
        say("ranks", error.ranks)


def uneven_after_another() -> None:
    """Rank 1 makes a collective alone, after a session in which both made many."""
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
    """Rank 1 makes four steps more, inside of what torch has for that."""
    with ddp() as m:
        with m.join():
            for _ in range(3 + 4 * RANK):
                step(m)
        # Longer than a watch of collectives looks.
        time.sleep(2 * RANK)
    say("ended well")


def works_on_after_another() -> None:
    """Rank 1 makes collectives in a group of its own while rank 0 is at its end."""
    with ddp():
        alone = dist.new_group([1])
        reduce()
        for _ in range(40 * RANK):
            dist.all_reduce(torch.ones(1), group=alone)
            time.sleep(0.05)
    say("ended well")


def slow() -> None:
    """Rank 1 is away for longer than a collective may take."""
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
    """The ranks' models, options or sessions are not alike."""
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
    """An error that takes neither a note nor a traceback."""

    code: int


class BadNotesError(Exception):
    """An error whose notes are none."""

    __notes__ = 5  # type: ignore[assignment]


def odd_error() -> None:
    """Rank 1 raises what is hard to tell of."""
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
    """Rank 1 stops; rank 0 works out who is silent, and is then told to end."""
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
    """Rank 0 waits for rank 1 at the end."""
    with ddp():
        reduce()
        say("there")
        if RANK == 1:
            time.sleep(8)


def patient() -> None:
    """How often the store is asked while this rank waits for another."""
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

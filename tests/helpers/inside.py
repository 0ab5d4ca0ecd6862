"""Scripts that wrap models and take turns: `python inside.py CASE [HOW]`."""

import dataclasses
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gpumap
from gpumap.rendezvous.store_client import Client

RANK = int(os.environ.get("RANK", "0"))
HOW = sys.argv[2] if sys.argv[2:] else ""
LIMIT = float(os.environ.get("LIMIT", "30"))


def say(*parts: object) -> None:
    """Write one line at once, so that the lines of two ranks do not mix."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")
    sys.stdout.flush()


def session(**options: Any) -> Any:
    """Open a session with short time limits."""
    return gpumap.session(start_timeout=LIMIT, timeout=LIMIT, **options)


def told(work: Callable[[], object]) -> None:
    """Print how a session ends."""
    began = time.monotonic()
    try:
        work()
    except BaseException as error:
        say(type(error).__name__, *str(error).splitlines())
        say("notes", *getattr(error, "__notes__", []))
        say("ranks", getattr(error, "ranks", None))
    else:
        say("ended well")
    say(f"after {time.monotonic() - began:.1f} s")


def threads() -> list[str]:
    """Return the names of the kernel's threads of this process that serve a group."""
    names = [p.read_text().strip() for p in Path("/proc/self/task").glob("*/comm")]
    return sorted(name for name in names if "gloo" in name)


# Several models.


def gan() -> None:
    """Train two models in one session; rank r's inputs are r."""
    with session() as s:
        torch.manual_seed(RANK)
        one, other = s.wrap(nn.Linear(2, 1)), s.wrap(nn.Linear(3, 1), static_graph=True)
        for m, width in ((one, 2), (other, 3)):
            m(torch.full((4, width), float(RANK))).sum().backward()
            say("grad", m.module.weight.grad.tolist(), m.static_graph)
    for m in (one, other):
        told(lambda m=m: m(torch.ones(1, 1)))  # type: ignore[misc]
    say("threads", threads())


def second() -> None:
    """Wrap a second model, in ddp_session, that is not the same on all ranks."""

    def work() -> None:
        model = nn.Linear(2, 1)
        with gpumap.ddp_session(model, start_timeout=LIMIT, timeout=LIMIT):
            dist.barrier()
            s = gpumap.current()
            if HOW == "shape":
                s.wrap(nn.Linear(2, 2 + RANK))
            if HOW == "option":
                s.wrap(nn.Linear(2, 1), broadcast_buffers=RANK == 0)
            if HOW == "frozen":
                s.wrap(nn.Linear(2, 2) if RANK else nn.ReLU())
            if HOW == "fewer" and RANK == 0:
                s.wrap(nn.Linear(2, 2))
            if HOW == "fails":
                wrap_or_fail(s)
            if HOW == "killed":
                if RANK == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                s.wrap(nn.Linear(2, 2))

    told(work)


def wrap_or_fail(s: gpumap.Session) -> None:
    if RANK == 1:
        raise ValueError("boom")
    s.wrap(nn.Linear(2, 2))


def caught() -> None:
    """Go on after a wrap that all ranks refused."""
    with session() as s:
        try:
            s.wrap(nn.Linear(2, 2 + RANK))
        except gpumap.RollCallError:
            say("caught")
        m = s.wrap(nn.Linear(2, 1))
        m(torch.ones(4, 2)).sum().backward()
    say("ended well")


def balanced() -> None:
    """Wrap a second model where the ranks split a batch."""

    def work() -> None:
        balance = gpumap.Balance(batch=8, speeds={"cpu": 1.0})
        with gpumap.ddp_session(nn.Linear(2, 1), balance=balance, start_timeout=LIMIT):
            gpumap.current().wrap(nn.Linear(2, 1))

    told(work)


def adopted() -> None:
    """Wrap and take turns in a session that has found a group of the user's."""
    if HOW == "file":
        store = dist.FileStore(os.environ["FOLDER"] + "/store", 2)
        dist.init_process_group("gloo", store=store, rank=RANK, world_size=2)
    else:
        dist.init_process_group("gloo")
    with session() as s:
        m = s.wrap(nn.Linear(2, 1))
        with s.rank_zero_first():
            say("in")
        m(torch.ones(4, 2)).sum().backward()
    dist.destroy_process_group()
    told(lambda: m(torch.ones(4, 2)))


def forked() -> None:
    """Use a session in a forked child of its process."""
    with session() as s:
        child = os.fork()
        if child == 0:
            told(lambda: s.wrap(nn.Linear(2, 1)))
            told(s.rank_zero_first().__enter__)
            told(s.close)
            os._exit(0)
        os.waitpid(child, 0)
        s.wrap(nn.Linear(2, 1))
    say("ended well")


def by_hand() -> None:
    """Wrap a model by torch's own class, and keep it after the session."""
    with session():
        m = DistributedDataParallel(nn.Linear(2, 1))
        m(torch.ones(4, 2)).sum().backward()
    say("group", dist.is_initialized(), "threads", len(threads()) > 0)
    m(torch.ones(4, 2)).sum().backward()
    say("it still trains")
    # Who lets go of the model holds the interpreter and waits for the group's threads.
    # If these have just ended a collective, they wait for the interpreter: torch 2.13.
    time.sleep(1)


def requests() -> None:
    """Count the requests to the store for ddp_session's model and for another one."""
    asked: list[bytes] = []
    real = Client._request  # noqa: SLF001 - where every request passes

    def counting(self: Client, number: int, *fields: bytes) -> Any:
        asked.extend(field for field in fields if b"/wrap/" in field)
        return real(self, number, *fields)

    Client._request = counting  # type: ignore[method-assign] # noqa: SLF001
    with gpumap.ddp_session(nn.Linear(2, 1), start_timeout=LIMIT, timeout=LIMIT):
        say("the first", len(asked))
        gpumap.current().wrap(nn.Linear(2, 1))
        say("the second", len(asked) > 0)


def logged() -> None:
    """Log what a session says of its start."""
    logging.basicConfig(level=os.environ["LEVEL"])
    with session():
        pass


# Flat scripts.


def flat() -> None:
    """Open a session by start(), and leave it in some way."""
    if HOW == "below":
        try:
            raise ImportError("no faster way here")
        except ImportError:
            s = gpumap.start(start_timeout=LIMIT, timeout=LIMIT)
            time.sleep(2 * RANK)
            dist.all_reduce(torch.ones(1))
            s.close()
        say("closed")
        return
    s = gpumap.start(start_timeout=LIMIT, timeout=LIMIT)
    dist.all_reduce(torch.ones(1))
    if HOW == "closes":
        s.close()
        s.close()
        say("closed", dist.is_initialized())
        with session() as again:
            s.close()
            say("another one", again.world_size)
    if HOW == "raises" and RANK == 1:
        raise ValueError("boom")
    if HOW == "finally":
        try:
            if RANK == 1:
                raise ValueError("boom")
            dist.all_reduce(torch.ones(1))
        finally:
            s.close()
    say("end", dist.is_initialized())


# One rank goes first.


def turns() -> None:
    """Write a file on the first rank, and read it on the others."""
    with session() as s:
        file = Path(os.environ["FOLDER"]) / "shared"
        for number in range(3):
            with s.rank_zero_first(local=number == 1):
                if RANK == 0:
                    time.sleep(0.5)
                    file.write_text(f"{number}")
                say("read", file.read_text())
            dist.barrier()
        with s.rank_zero_first(), s.rank_zero_first(local=True):
            say("nested")
    say("ended well")


def nodes() -> None:
    """Take turns on two nodes of one rank each: neither waits for the other."""
    with session() as s:
        with s.rank_zero_first(local=True):
            dist.barrier()  # which would not end if one waited
        say("node", s.node_rank)


def turn() -> None:
    """Let the first rank's turn end in some way."""

    def work() -> None:
        with session() as s:
            dist.barrier()  # gloo's ranks do not form their group at the same time
            if HOW == "caught":
                try:
                    take(s)
                except (ValueError, gpumap.SessionError) as error:
                    say("caught", *str(error).splitlines())
                dist.all_reduce(torch.ones(1))
                return
            take(s)

    told(work)


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """An error to which neither a note nor a traceback can be added."""

    code: int


def take(s: gpumap.Session) -> None:
    if HOW == "fewer" and RANK == 0:
        return
    with s.rank_zero_first(timeout=1 if HOW == "late" else 30):
        say("in")
        if RANK:
            return
        if HOW in ("raises", "caught"):
            raise ValueError("no space left")
        if HOW == "frozen":
            raise FrozenError(3)
        if HOW == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if HOW == "late":
            time.sleep(3)
        if HOW == "waits":
            time.sleep(8)
        if HOW == "wraps":
            s.wrap(nn.Linear(2, 1))


if __name__ == "__main__":
    warnings.simplefilter("error")
    for message in ("This process .* is multi-threaded", "os.fork"):
        warnings.filterwarnings("ignore", message)
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    # What is logged of another rank's failure comes at any time, and is not read here.
    logging.getLogger("gpumap").addHandler(logging.NullHandler())
    globals()[sys.argv[1]]()

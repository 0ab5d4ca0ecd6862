"""The parent's side of spawn: receives the ranks' messages, and ends all processes."""

import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import NoReturn

import torch.distributed as dist

from gpumap.errors import GpumapError, SessionError
from gpumap.notes import note
from gpumap.rendezvous import keys
from gpumap.rendezvous.journal import Journal
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.messages import signal_name
from gpumap.rendezvous.rendezvous import session_prefix
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.rendezvous.torch_keys import TorchKeys
from gpumap.spawning.child import Raised, Raising, Returned
from gpumap.spawning.pickling import loads
from gpumap.time_limits import FAIL_BY_THEMSELVES, LEAVE_WHEN_TOLD
from gpumap.words import plural

__all__ = ["Rank", "end_all", "first_failed", "raise_from", "watch"]


@dataclass
class Rank:
    """A child process and its messages.

    Attributes:
        rank: Its rank.
        process: The child.
        channel: The pipe on which it sends Started, then Returned or Raised.
        started: Whether it has loaded the function.
        message: Its Returned or Raised; None while the function runs.
        raising: Its exception as text, which it sends before Raised.
        silent: Whether it has closed the pipe.
        closed: Whether no message will follow: its process has ended, or it raised.
    """

    rank: int
    process: ForkServerProcess
    channel: connection.Connection
    started: bool = False
    message: Returned | Raised | None = None
    raising: Raising | None = None
    silent: bool = False
    closed: bool = False

    def listen(self) -> None:
        """Receive the process's messages, after checking whether it has ended.

        In this order its last message is not lost.
        """
        gone = not self.process.is_alive()
        try:
            while self.channel.poll():
                said = self.channel.recv()
                self.started = True
                if isinstance(said, Returned | Raised):
                    self.message = said
                elif isinstance(said, Raising):
                    self.raising = said
        except (EOFError, OSError):
            self.silent = True
        self.closed = gone or isinstance(self.message, Raised)

    @property
    def failed(self) -> bool:
        """Whether it ended, but not by returning and with an exit code of 0."""
        well = isinstance(self.message, Returned) and self.process.exitcode == 0
        return self.closed and not well


def watch(ranks: Sequence[Rank], seconds: float, began: float) -> list[Rank]:
    """Wait until all ranks have ended, or for some time after the first failure.

    The ranks have `seconds` to start, counted from `began`.

    Returns the ranks that failed, in order.

    Raises:
        SessionError: Some have not started within the seconds.
    """
    deadline = began + seconds
    failed: list[Rank] = []
    while waiting := [rank for rank in ranks if not rank.closed]:
        limited = failed or not all(rank.started for rank in ranks)
        left = max(deadline - time.monotonic(), 0.0) if limited else None
        channels = [rank.channel for rank in waiting if not rank.silent]
        sentinels = [rank.process.sentinel for rank in waiting]
        ready = connection.wait([*channels, *sentinels], left)
        for rank in waiting:
            rank.listen()
            if rank.failed:
                if not failed:
                    deadline = time.monotonic() + min(seconds, FAIL_BY_THEMSELVES)
                failed.append(rank)
        if not ready and limited:
            if not failed:
                raise _late([rank.rank for rank in ranks if not rank.started], seconds)
            break
    return failed


def first_failed(store: dist.Store) -> tuple[int, ...]:
    """Return which ranks failed first in their last session, from the store."""
    client = TorchKeys(store)
    ranks: tuple[int, ...] = ()
    with contextlib.suppress(StoreLostError, GpumapError):
        for number in itertools.count(1):
            session = SessionStore(client, session_prefix(number))
            if not session.has(keys.TERMS):
                break
            outcome = Journal(session).find("outcome")
            if outcome is not None:
                ranks = outcome.fault.ranks if outcome.fault else ()
    return ranks


def raise_from(rank: Rank, store: dist.Store) -> NoReturn:
    """Raise a rank's exception, or an error that explains its exit code."""
    who = _named(rank, store)
    said, code = rank.message, rank.process.exitcode
    if isinstance(said, Raised):
        error = _loaded(said)
        if not isinstance(error, Exception):
            error = SessionError(f"{who} ended with {said.described}.")
        note(error, f"gpumap: {who} raised it; exit code {said.code}. There:")
        note(error, said.traceback.rstrip())
        raise error
    if rank.raising is not None:
        raise SessionError(
            f"{who} ended with {rank.raising.described}.",
            f"{rank.raising.traceback.rstrip()}",
            f"To send that error here ended the process, with exit code {code}.",
        )
    if isinstance(said, Returned):
        ended = f"exit code {code}" if (code or 0) >= 0 else signal_name(-(code or 0))
        raise SessionError(
            f"{who} returned, and then ended with {ended}.",
            "A thread of its own, a function of atexit's or a library ended it.",
            "See what it printed last.",
        )
    if code is not None and code < 0:
        raise SessionError(
            f"{who} was killed by {signal_name(-code)}.",
            "It said nothing before.",
            "SIGKILL is mostly the system's, out of memory: see the kernel's log. "
            "SIGSEGV and SIGABRT come from a library.",
        )
    if not rank.started:
        raise SessionError(
            f"{who} could not import this script; exit code {code}.",
            "Its own error stands above.",
            "If it says so, put what starts the training under "
            '`if __name__ == "__main__":`.',
        )
    raise SessionError(
        f"{who} ended with exit code {code} and returned nothing.",
        "os._exit() or a library ended it.",
        "See what it printed last.",
    )


def _loaded(said: Raised) -> BaseException | None:
    """Return the exception itself; None if it cannot be unpickled in this process."""
    with contextlib.suppress(Exception):
        error = None if said.error is None else loads(said.error)
        return error if isinstance(error, BaseException) else None
    return None


def end_all(ranks: Sequence[Rank], seconds: float) -> None:
    """End every process; those that are not done get SIGTERM, then SIGKILL.

    seconds: how long they may take to exit, five at most.
    """
    started = [rank for rank in ranks if rank.process.pid is not None]
    try:
        for rank in started:
            if rank.message is None:
                rank.process.terminate()
        deadline = time.monotonic() + min(seconds, LEAVE_WHEN_TOLD)
        for rank in started:
            rank.process.join(max(deadline - time.monotonic(), 0.0))
    finally:
        for rank in started:
            if rank.process.is_alive():
                rank.process.kill()
            rank.process.join()
            rank.process.close()
            rank.channel.close()


def _named(rank: Rank, store: dist.Store) -> str:
    """Return a rank with its process and, once it has joined a session, its device."""
    session = SessionStore(TorchKeys(store), session_prefix(1))
    with contextlib.suppress(StoreLostError, GpumapError):
        if session.has(keys.rank(rank.rank)):
            member = session.read(keys.rank(rank.rank), Member)
            return f"{member}, on {member.device},"
    return f"rank {rank.rank} (pid {rank.process.pid})"


def _late(missing: list[int], seconds: float) -> SessionError:
    return SessionError(
        f"{plural('rank', len(missing))} {', '.join(map(str, missing))} did not start "
        f"within {seconds:g} s.",
        "A new process first imports the script.",
        "Move slow work out of the script's top level, or give start_timeout=… more.",
    )

"""The parent's side of spawn: hears what the ranks say, and ends all of them."""

import contextlib
import pickle
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import NoReturn

import torch.distributed as dist

from gpumap.errors import GpumapError, SessionError
from gpumap.runtime.board import Board, StoreLostError
from gpumap.runtime.rendezvous import session_prefix
from gpumap.runtime.rollcall import Member
from gpumap.runtime.spawned import Raised, Returned

__all__ = ["Rank", "end_all", "raise_from", "watch"]

# How long the other ranks may take to fail by themselves, then to leave when told to.
_GRACE_SECONDS, _LEAVE_SECONDS = 3.0, 5.0


@dataclass
class Rank:
    """A process, and what it has said.

    Attributes:
        rank: Its rank.
        process: It.
        channel: Where it says what came of it.
        started: Whether it has loaded the function.
        message: What came of it.
        closed: Whether it will say no more.
    """

    rank: int
    process: ForkServerProcess
    channel: connection.Connection
    started: bool = False
    message: Returned | Raised | None = None
    closed: bool = False

    def listen(self) -> None:
        """Take what the process says; its end first, so that no last word is lost."""
        gone = not self.process.is_alive()
        with contextlib.suppress(EOFError, OSError):
            while self.channel.poll():
                said = self.channel.recv()
                self.started = True
                self.message = said if isinstance(said, Returned | Raised) else None
        # Without a message its exit code is what it says.
        self.closed = gone or self.message is not None

    @property
    def failed(self) -> bool:
        """Whether it ended, and other than by returning."""
        return self.closed and not isinstance(self.message, Returned)

    @property
    def follows(self) -> bool:
        """Whether it failed because another rank had."""
        return isinstance(self.message, Raised) and self.message.follows


def watch(ranks: Sequence[Rank], seconds: float) -> list[Rank]:
    """Wait until all ranks have ended, or some time after the first that failed.

    Returns those that failed, in order.

    Raises:
        SessionError: Some have not started within the seconds.
    """
    deadline = time.monotonic() + seconds
    failed: list[Rank] = []
    while waiting := [rank for rank in ranks if not rank.closed]:
        limited = failed or not all(rank.started for rank in ranks)
        left = max(deadline - time.monotonic(), 0.0) if limited else None
        channels = [rank.channel for rank in waiting]
        sentinels = [rank.process.sentinel for rank in waiting]
        ready = connection.wait([*channels, *sentinels], left)
        for rank in waiting:
            rank.listen()
            if rank.failed:
                if not failed:
                    deadline = time.monotonic() + min(seconds, _GRACE_SECONDS)
                failed.append(rank)
        if not ready and limited:
            if not failed:
                raise _late([rank.rank for rank in ranks if not rank.started], seconds)
            break
    return failed


def raise_from(rank: Rank, store: dist.Store, seconds: float) -> NoReturn:
    """Raise what a rank raised, or what its exit code tells."""
    who = _named(rank, store, seconds)
    said, code = rank.message, rank.process.exitcode
    if isinstance(said, Raised):
        error = pickle.loads(said.error) if said.error else None  # noqa: S301 - from our own pipe
        if not isinstance(error, Exception):
            error = SessionError(f"{who} ended with {said.described}.")
        error.add_note(f"gpumap: {who} raised it; exit code {said.code}. There:")
        error.add_note(said.traceback.rstrip())
        raise error
    if code is not None and code < 0:
        raise SessionError(
            f"{who} was killed by {signal.Signals(-code).name}.",
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


def end_all(ranks: Sequence[Rank], seconds: float) -> None:
    """End every process: those that are done by themselves, the others told or forced.

    seconds is how long they may take for it, five at most.
    """
    started = [rank for rank in ranks if rank.process.pid is not None]
    try:
        for rank in started:
            if rank.message is None:
                rank.process.terminate()
        deadline = time.monotonic() + min(seconds, _LEAVE_SECONDS)
        for rank in started:
            rank.process.join(max(deadline - time.monotonic(), 0.0))
    finally:
        for rank in started:
            if rank.process.is_alive():
                rank.process.kill()
            rank.process.join()
            rank.process.close()
            rank.channel.close()


def _named(rank: Rank, store: dist.Store, seconds: float) -> str:
    """Return a rank with its process and, once it answered the roll, its device."""
    board = Board(dist.PrefixStore(session_prefix(1), store), min(seconds, 1.0))
    try:
        if board.has(f"rank/{rank.rank}"):
            member = board.wait(f"rank/{rank.rank}", Member, 1.0)
            return f"{member}, on {member.device}," if member else f"rank {rank.rank}"
    except (StoreLostError, GpumapError):
        pass
    return f"rank {rank.rank} (pid {rank.process.pid})"


def _late(missing: list[int], seconds: float) -> SessionError:
    return SessionError(
        f"rank{'s'[: len(missing) > 1]} {', '.join(map(str, missing))} did not start "
        f"within {seconds:g} s.",
        "A new process first imports the script.",
        "Move slow work out of the script's top level, or give start_timeout=… more.",
    )

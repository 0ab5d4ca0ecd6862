"""SIGTERM inside a session: it leaves as from an error, and the exit code is 143."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

__all__ = ["Sigterm", "Terminated", "leaving_on_sigterm"]

# How long a session may take to leave at most, where a library holds its thread.
_LEAVE_SECONDS = 5.0
_CODE = 128 + signal.SIGTERM


class Terminated(SystemExit):
    """What SIGTERM raises inside a session."""

    def __init__(self) -> None:
        """Exit as shells tell of a SIGTERM."""
        super().__init__(_CODE)

    def __str__(self) -> str:
        """Return the signal's name."""
        return "SIGTERM"


@dataclass
class Sigterm:
    """The session's answer to SIGTERM.

    Attributes:
        seconds: How long the session may take to leave.
        last_words: Called where the session cannot leave by itself, before the process
            is ended all the same.
    """

    seconds: float
    last_words: Callable[[], None] = lambda: None
    left: threading.Event = field(default_factory=threading.Event)


@contextmanager
def leaving_on_sigterm(seconds: float) -> Generator[Sigterm, None, None]:
    """Raise Terminated on SIGTERM inside the block, unless the user handles it.

    A handler of Python's runs between two steps of Python. Where the main thread stands
    in a library meanwhile, waiting for a rank that will not answer, a thread ends the
    process after so many seconds, five at most.
    """
    answer = Sigterm(min(seconds, _LEAVE_SECONDS))
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield answer
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the next one ends it at once
        raise Terminated

    signal.signal(signal.SIGTERM, leave)
    try:
        with _watched(answer):
            yield answer
    finally:
        if signal.getsignal(signal.SIGTERM) is leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _watched(answer: Sigterm) -> Generator[None, None, None]:
    """Let a thread hear of signals, also while the main one is away."""
    near, far = socket.socketpair()
    far.settimeout(0)
    before = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(
        target=_watch, args=(near, answer), name="gpumap: SIGTERM", daemon=True
    )
    if before != -1:  # asyncio's, which must go on hearing of signals
        signal.set_wakeup_fd(before)
    else:
        thread.start()
    try:
        yield
    finally:
        answer.left.set()
        if before == -1:
            signal.set_wakeup_fd(-1)
        far.close()
        if before == -1:
            thread.join()
        near.close()


def _watch(near: socket.socket, answer: Sigterm) -> None:
    while heard := near.recv(1):
        if heard[0] == signal.SIGTERM and not answer.left.wait(answer.seconds):
            answer.last_words()
            sys.stderr.write(
                f"gpumap: pid {os.getpid()} ends on SIGTERM; its session did not leave "
                f"within {answer.seconds:g} s, because a library did not return.\n"
            )
            sys.stderr.flush()
            os._exit(_CODE)

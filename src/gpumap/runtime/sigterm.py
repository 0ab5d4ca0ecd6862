"""SIGTERM inside a session: it is raised as an error, and the exit code is 143."""

import ctypes
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable  # noqa: TC003 - annotations are read
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import Self

from gpumap.time_limits import LIBRARY_HOLDS_SIGTERM

__all__ = ["Sigterm", "Terminated"]

_CODE = 128 + signal.SIGTERM
_STOP = b"\0"
# A sender's process, user and group, as the kernel tells them. Source: unix(7).
_PEER = struct.Struct("3i")


class Terminated(SystemExit):
    """The exception that SIGTERM raises inside a session."""

    def __init__(self) -> None:
        """Exit with the code that shells use for SIGTERM."""
        super().__init__(_CODE)

    def __str__(self) -> str:
        """Return the signal's name."""
        return "SIGTERM"


class Sigterm(AbstractContextManager["Sigterm"]):
    """Handles SIGTERM inside a block: Terminated is raised there.

    Python runs signal handlers between bytecodes, so never while the main thread is
    blocked in C (a collective whose peer is gone). A watcher thread then exits the
    process after `seconds`. A handler that the user sets before or inside the block is
    left alone, and what the user does about Terminated has no time limit.

    Attributes:
        seconds: How long a library may block the main thread, five seconds at most.
        last_words: Called before the watcher exits the process.
        leaving: Set by the session once Terminated has reached it.
    """

    def __init__(self, seconds: float) -> None:
        """Set how long a library may block the main thread, at most."""
        self.seconds = min(seconds, LIBRARY_HOLDS_SIGTERM)
        self.last_words: Callable[[], None] = lambda: None
        self.leaving = threading.Event()
        self._raised = threading.Event()
        self._left = threading.Event()
        self._watch: _Watch | None = None

    def __enter__(self) -> Self:
        """Install the handler and its watcher, unless the user has a handler."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            self._watch = _Watch(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the handler and its watcher."""
        for event in (self._left, self._raised, self.leaving):
            event.set()
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        # last_words refers to the session.
        self.last_words = lambda: None

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Raise Terminated; this is the signal's Python handler."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the next one kills
        self._raised.set()
        raise Terminated

    @property
    def is_over(self) -> bool:
        """Whether the block was left."""
        return self._left.is_set()

    def is_held(self) -> bool:
        """Tell, after a SIGTERM, whether a library blocks the main thread too long."""
        before = _place_of_main_thread()
        if not self._raised.wait(self.seconds):
            # If the main thread has moved on, a handler of the user was running.
            still = before == _place_of_main_thread()
            return still and signal.getsignal(signal.SIGTERM) == self.handle
        self.leaving.wait()
        return not self._left.wait(self.seconds)


class _Watch:
    """The handler of SIGTERM, and a thread that watches for a blocked main thread."""

    def __init__(self, answer: Sigterm) -> None:
        self._answer = answer
        self.handler = answer.handle
        _watches.append(self)
        self._near, self._far = socket.socketpair()
        self._far.settimeout(0)
        if option := getattr(socket, "SO_PASSCRED", None):
            self._near.setsockopt(socket.SOL_SOCKET, option, 1)
        self._thread = threading.Thread(
            target=self._run, name="gpumap: SIGTERM", daemon=True
        )
        signal.signal(signal.SIGTERM, self.handler)
        before = signal.set_wakeup_fd(self._far.fileno(), warn_on_full_buffer=False)
        if before == -1:
            self._thread.start()
        else:  # asyncio's descriptor, which must keep receiving signals
            signal.set_wakeup_fd(before)

    def stop(self) -> None:
        """Remove the handler and stop the thread."""
        _watches.remove(self)
        self.forget()
        if self._thread.is_alive():
            with suppress(BlockingIOError):  # a full socket wakes the thread as well
                self._far.send(_STOP)
            self._thread.join()
        self._near.close()
        self._far.close()

    def forget(self) -> None:
        """Remove this watch's handler and wake-up descriptor, but not the user's."""
        if signal.getsignal(signal.SIGTERM) == self.handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, self._far.fileno()):
            signal.set_wakeup_fd(current)

    def forget_in_a_child(self) -> None:
        """Close the parent's watch in a forked child, which has no such thread."""
        self.forget()
        self._near.close()
        self._far.close()

    def _run(self) -> None:
        answer = self._answer
        while True:
            heard, sender, *_ = self._near.recvmsg(1, socket.CMSG_SPACE(_PEER.size))
            if answer.is_over:
                return
            if heard[0] == signal.SIGTERM and _is_own(sender) and answer.is_held():
                answer.last_words()
                sys.stderr.write(
                    f"gpumap: pid {os.getpid()} ends on SIGTERM; its session did not "
                    f"leave within {answer.seconds:g} s, because a library did not "
                    "return.\n"
                )
                sys.stderr.flush()
                os._exit(_CODE)


def _is_own(sender: list[tuple[int, int, bytes]]) -> bool:
    """Tell whether a signal came to this process, and not to a forked child of it.

    A child that C code forked, without Python's hooks, writes to the same socket.
    """
    return all(_PEER.unpack(peer)[0] == os.getpid() for *_, peer in sender)


def _place_of_main_thread() -> object:
    """Return a value that changes as soon as the main thread executes Python."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - Python has no public way
    return None if frame is None else (id(frame), frame.f_lasti)


_watches: list[_Watch] = []
# No struct sigaction is longer; all zeros is SIG_DFL. Source: sigaction(2).
_MOST_BYTES = 256
_sigaction = ctypes.PyDLL(None).sigaction


class _Forks:
    """Restores SIGTERM's default action while a process forks.

    Python drops signals that a child receives before its hooks run, and exceptions that
    a handler raises in the parent's hooks. A child that never reaches its hooks (in
    Python 3.11 another thread may have held a lock) must also be ended by SIGTERM.
    Python sets handlers in the main thread only, but other threads fork too: hence
    sigaction.
    """

    def __init__(self) -> None:
        self._under_way = 0
        self._before = ctypes.create_string_buffer(_MOST_BYTES)

    def begin(self) -> None:
        if self._under_way or _is_taken():
            self._under_way += 1
            if self._under_way == 1:
                _sigaction(signal.SIGTERM, bytes(_MOST_BYTES), self._before)

    def end(self) -> None:
        if self._under_way == 1 and _is_taken():
            _sigaction(signal.SIGTERM, self._before, None)
        self._under_way -= bool(self._under_way)

    def end_in_a_child(self) -> None:
        self._under_way = 0
        for watch in _watches:
            watch.forget_in_a_child()
        _watches.clear()


def _is_taken() -> bool:
    return signal.getsignal(signal.SIGTERM) in [watch.handler for watch in _watches]


_forks = _Forks()
os.register_at_fork(
    before=_forks.begin,
    after_in_parent=_forks.end,
    after_in_child=_forks.end_in_a_child,
)

"""A session's block: entered once, and left once, at the latest when Python ends."""

import atexit
import logging
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

import torch.distributed as dist

from gpumap.errors import SessionError
from gpumap.notes import notes_of
from gpumap.runtime.forks import outlive

__all__ = ["Block", "at_exit", "enter", "leave"]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)


class Block(AbstractContextManager[T]):
    """The context manager and decorator that session() and ddp_session() return.

    If it is never left, for instance by an ExitStack that is not closed, it is left
    when the script ends, with the error that ended the script.
    """

    def __init__(self, life: Callable[[], Generator[T, None, None]]) -> None:
        """Take a function whose generator opens a session, yields, and closes it."""
        self._life = life
        self._run: _Run | None = None

    def __enter__(self) -> T:
        """Open the session.

        Raises:
            SessionError: A session is open already, or this block was entered before.
        """
        if self._run is not None:
            raise SessionError(
                "this session was entered before.",
                "Each call of session() or ddp_session() makes one session.",
                "Call it again for another.",
            )
        self._run, value = _entered(self._life())
        return value

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Close the session."""
        if self._run is not None:
            self._run.leave(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a function, so that each call opens and closes a new session."""

        @wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with Block(self._life):
                return function(*args, **kwargs)

        return inside

    def __del__(self) -> None:
        """Warn if nothing refers to an open session any more; it stays open."""
        if self._run is not None and self._run.is_open:
            log.warning(
                "nothing refers to an open session any more; it stays open until the "
                "script ends. Write `with gpumap.session(…):`, or keep what session() "
                "returned and call its __exit__."
            )


def enter(life: Callable[[], Generator[T, None, None]]) -> T:
    """Open a session that leave() leaves, or else the end of the script.

    Raises:
        SessionError: A session is open already.
    """
    return _entered(life())[1]


def leave() -> None:
    """Leave the open session, with the error that is on its way out, if one is.

    Raises:
        SessionError: Another thread has opened it.
    """
    run = _state.run
    if run is None:
        return
    if run.thread != threading.get_ident():
        raise SessionError(
            "a session is closed in the thread that has opened it.",
            "close() was called in another one.",
            "Let this thread tell that one to close it.",
        )
    run.leave(run.error())


class _Run:
    """A session that was entered."""

    def __init__(self, life: Generator[object, None, None]) -> None:
        self._life = life
        self._errors_before = (sys.exc_info()[1], _last_error())
        self.is_open = False
        self.thread = threading.get_ident()

    def leave(self, error: BaseException | None) -> None:
        """Close the session, unless it is closed."""
        if not self.is_open:
            return
        self.is_open = False
        traceback = None if error is None else error.__traceback__
        try:
            if error is None:
                next(self._life, None)
            else:
                self._life.throw(error)
        except BaseException as failure:
            # A StopIteration leaves a generator as another error's cause (PEP 479).
            stops = isinstance(error, StopIteration) and failure.__cause__ is error
            if error is None or not (failure is error or stops):
                raise
            # contextlib sets this as an attribute, which a frozen dataclass refuses.
            error.with_traceback(traceback)
        finally:
            _state.run = None

    def error(self) -> BaseException | None:
        """Return the error that ends the script, or that is being handled, if any."""
        error = sys.exc_info()[1] or _last_error()
        return None if any(error is old for old in self._errors_before) else error


class _State:
    """The open session of this process, or the process whose session it was."""

    run: _Run | None = None
    forked_from: int | None = None
    ends_in: int | None = None


_state = _State()
_at_exit: list[Callable[[], object]] = []


def at_exit(call: Callable[[], object]) -> None:
    """Register a call for when Python ends, after an open session was left."""
    _at_exit.append(call)


def _entered(life: Generator[T, None, None]) -> tuple[_Run, T]:
    """Begin a session's life, and return it as entered, with what it yields."""
    _begin(run := _Run(life))
    try:
        value = next(life)
    except BaseException:
        _state.run = None
        raise
    run.is_open = True
    return run, value


def _begin(run: _Run) -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SessionError(
            "this script is being imported by a process that it has started.",
            "DataLoader workers and pools that are not forked import it first, and "
            "would open a session of their own.",
            'Put what starts there below `if __name__ == "__main__":`.',
        )
    if _state.forked_from is not None and dist.is_initialized():
        raise SessionError(
            f"this process was forked inside a session, of pid {_state.forked_from}.",
            "What belongs to that session cannot be used here.",
            'Start the process by the method "spawn", or before the session.',
        )
    if _state.run is not None:
        raise SessionError(
            "a session is already open in this process.",
            "Sessions do not nest: a process has one device and one default group.",
            "gpumap.current() returns it: its wrap(model) wraps another model, and its "
            "close() ends it.",
        )
    _state.run = run
    if multiprocessing.parent_process() and _state.ends_in != os.getpid():
        # A child of multiprocessing ends without calling atexit's functions.
        _state.ends_in = os.getpid()
        multiprocessing.util.Finalize(None, _leave, exitpriority=100)


def _last_error() -> BaseException | None:
    """Return the last uncaught error; None at a prompt, which goes on after it."""
    if hasattr(sys, "ps1"):
        return None
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _leave() -> None:
    """Leave an open session when Python ends."""
    run = _state.run
    try:
        if run is not None:
            _leave_with(run, run.error())
    finally:
        for call in _at_exit:
            call()
        _at_exit.clear()


def _leave_with(run: _Run, error: BaseException | None) -> None:
    """Leave a session; print new notes only, since the error was printed before."""
    told = 0 if error is None else len(notes_of(error))
    try:
        run.leave(error)
    except BaseException as failure:  # noqa: BLE001 - there is nobody to raise it to
        # What ended the script was printed before.
        known = error is not None and failure.__cause__ is error
        traceback.print_exception(failure, chain=not known)
        # Its priority puts it after nearly all else that multiprocessing does at exit.
        multiprocessing.util.Finalize(None, _end, (1,), exitpriority=-1000)
    for text in [] if error is None else notes_of(error)[told:]:
        sys.stderr.write(f"{text}\n")


def _end(code: int) -> None:
    """End the process with this code, although the script itself had ended."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _forget_in_a_child() -> None:
    """Forget an open session in a forked child: the parent will close it."""
    if _state.run is not None:
        outlive(_state.run)
        _state.run.is_open = False
        _state.run, _state.forked_from = None, os.getppid()
    _at_exit.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_forget_in_a_child)

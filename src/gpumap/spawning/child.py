"""The child's side of spawn: run the function, and send the parent its outcome."""

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, parent_process

from gpumap.errors import SessionError
from gpumap.rendezvous.messages import described
from gpumap.spawning.inheritance import Parent
from gpumap.spawning.pickling import dumps, loads
from gpumap.time_limits import LEAVE_AS_ORPHAN, SAY_WHAT_IS_AWAITED

__all__ = ["Raised", "Raising", "Returned", "Started", "work"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Started:
    """The child has loaded the function and its arguments."""


@dataclass(frozen=True)
class Returned:
    """What the function returned, pickled."""

    value: bytes


@dataclass(frozen=True)
class Raising:
    """An exception of the function, as text: pickling it may end the process.

    Attributes:
        described: Its type and text.
        traceback: As Python prints it, without notes.
        code: The exit code of the process.
    """

    described: str
    traceback: str
    code: int


@dataclass(frozen=True)
class Raised(Raising):
    """An exception of the function.

    Attributes:
        error: The exception, pickled; None if it cannot be.
    """

    error: bytes | None


def work(
    channel: connection.Connection, parent: Parent, payload: bytes, pickler: str
) -> None:
    """Run the pickled (function, args, kwargs) and send messages to the parent."""
    parent.hand_on()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    message: Returned | Raised
    try:
        function, args, kwargs = _loaded(payload)
        channel.send(Started())
        value = function(*args, **kwargs)
        message = Returned(_returnable(value, pickler))
    except SystemExit as error:
        message = _ended(error, channel, pickler)
    except BaseException as error:  # noqa: BLE001 - all of it is the parent's to raise
        message = _raised(error, 1, channel, pickler)
        # As Python does at a script's end: a session that is open then is left with it.
        sys.last_value = error
    with contextlib.suppress(BrokenPipeError):  # the parent has gone
        channel.send(message)
    channel.close()
    _finish()
    raise SystemExit(message.code if isinstance(message, Raised) else 0)


def _loaded(
    payload: bytes,
) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
    try:
        function, args, kwargs = loads(payload)
    except Exception as error:
        raise SessionError(
            "the function or its arguments cannot be loaded in the new process.",
            f"{described(error)}.",
            "Define them at the top level of a module, outside of "
            '`if __name__ == "__main__":`.',
        ) from error
    return function, args, kwargs


def _returnable(value: object, pickler: str) -> bytes:
    try:
        return dumps(value, pickler)
    except Exception as error:
        raise SessionError(
            f"what the function returned cannot be sent to the parent: a "
            f"{type(value).__name__}.",
            f"{described(error)}.",
            "Return numbers, texts, CPU tensors, or write it to a file.",
        ) from error


def _ended(
    error: SystemExit, channel: connection.Connection, pickler: str
) -> Returned | Raised:
    """Treat sys.exit(0) as returning None, and other exit codes as errors."""
    if error.code in (None, 0):
        return Returned(dumps(None, pickler))
    code = error.code if isinstance(error.code, int) else 1
    return _raised(error, code, channel, pickler)


def _raised(
    error: BaseException, code: int, channel: connection.Connection, pickler: str
) -> Raised:
    raising = Raising(described(error), _traceback(error), code)
    with contextlib.suppress(BrokenPipeError):
        channel.send(raising)
    pickled: bytes | None = None
    with contextlib.suppress(Exception):  # whatever a user's exception does
        pickled = dumps(error, pickler)
        if type(loads(pickled)) is not type(error):
            pickled = None
    return Raised(raising.described, raising.traceback, code, pickled)


def _traceback(error: BaseException) -> str:
    """Return a traceback without the error's notes, which are pickled with it."""
    try:
        told = traceback.TracebackException.from_exception(error)
        told.__notes__ = []
        return "".join(told.format())
    except Exception:  # noqa: BLE001 - whatever a user's exception does when asked
        return "".join(traceback.format_tb(error.__traceback__)) + described(error)


def _finish() -> None:
    """Do what Python does at the end of a script, and multiprocessing does not.

    That is to wait for threads that are not daemons, and to call atexit's functions.
    """
    told = False
    while others := [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]:
        others[0].join(SAY_WHAT_IS_AWAITED)
        if not told and others[0].is_alive():
            told = True
            names = ", ".join(thread.name for thread in others)
            log.warning(
                "rank %s is done, and waits for its threads: %s",
                os.environ.get("RANK"),
                names,
            )
    atexit._run_exitfuncs()  # noqa: SLF001 - Python 3.13's multiprocessing does so too


def _end_with_parent() -> None:
    """End this process once the parent has died, so that no orphan is left."""
    parent = parent_process()
    if parent is None:
        return
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LEAVE_AS_ORPHAN)
    os.kill(os.getpid(), signal.SIGKILL)

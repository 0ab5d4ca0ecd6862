"""The child's side of spawn: run the function, and tell the parent what came of it."""

import contextlib
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import connection, parent_process
from typing import Any

import torch

from gpumap.errors import SessionError

__all__ = ["Raised", "Returned", "Started", "dumps", "work"]

# How long a rank whose parent has died may take to leave its session.
_ORPHAN_SECONDS = 5.0


@dataclass(frozen=True)
class Started:
    """The child runs, and has all it needs."""


@dataclass(frozen=True)
class Returned:
    """What the function returned, pickled."""

    value: bytes


@dataclass(frozen=True)
class Raised:
    """What the function raised.

    Attributes:
        error: The exception, pickled; None where it cannot be.
        described: Its type and text.
        traceback: As Python prints it, notes left out.
        follows: Whether another rank failed first.
        code: The exit code of the process.
    """

    error: bytes | None
    described: str
    traceback: str
    follows: bool
    code: int


def work(
    channel: connection.Connection,
    environ: dict[str, str],
    payload: bytes,
    threads: int | None,
    pickler: str,
) -> None:
    """Run the pickled (function, args, kwargs) and send messages to the parent."""
    os.environ.clear()
    os.environ.update(environ)
    if threads is not None:
        torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    message: Returned | Raised
    try:
        function, args, kwargs = _loaded(payload)
        channel.send(Started())
        value = function(*args, **kwargs)
        message = Returned(_returnable(value, pickler))
    except SystemExit as error:
        message = _ended(error, pickler)
    except BaseException as error:  # noqa: BLE001 - all of it is the parent's to raise
        message = _raised(error, 1, pickler)
    with contextlib.suppress(BrokenPipeError):  # the parent has gone
        channel.send(message)
    channel.close()
    raise SystemExit(message.code if isinstance(message, Raised) else 0)


def dumps(value: object, pickler: str) -> bytes:
    """Pickle a value; by cloudpickle, what is defined where no child can import it."""
    if pickler == "cloudpickle":
        cloudpickle: Any = import_module(pickler)  # an extra, without types
        return bytes(cloudpickle.dumps(value))
    return pickle.dumps(value)


def _loaded(
    payload: bytes,
) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
    try:
        function, args, kwargs = pickle.loads(payload)  # noqa: S301 - from the parent's own pipe
    except Exception as error:
        raise SessionError(
            "the function or its arguments cannot be loaded in the new process.",
            f"{type(error).__name__}: {error}.",
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
            f"{type(error).__name__}: {error}.",
            "Return numbers, texts, CPU tensors, or write it to a file.",
        ) from error


def _ended(error: SystemExit, pickler: str) -> Returned | Raised:
    """Take sys.exit() for a return of None, and an exit code for an error."""
    if error.code in (None, 0):
        return Returned(dumps(None, pickler))
    return _raised(error, error.code if isinstance(error.code, int) else 1, pickler)


def _raised(error: BaseException, code: int, pickler: str) -> Raised:
    told = traceback.TracebackException.from_exception(error)
    told.__notes__ = []  # they travel with the exception
    notes = " ".join(getattr(error, "__notes__", ()))
    try:
        pickled = dumps(error, pickler)
        same = type(pickle.loads(pickled)) is type(error)  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever a user's exception does when pickled
        pickled, same = b"", False
    return Raised(
        error=pickled if same else None,
        described=traceback.format_exception_only(error)[0].strip(),
        traceback="".join(told.format()),
        follows="failed first" in f"{error} {notes}",
        code=code,
    )


def _end_with_parent() -> None:
    """Leave no orphan where the parent was killed."""
    parent = parent_process()
    if parent is None:
        return
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)

"""What ranks tell each other over a store: short JSON, and no wait without end."""

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from gpumap.errors import RollCallError
from gpumap.mapping.values import Value

__all__ = ["Board", "StoreLostError", "bounded", "described", "first_line"]

T = TypeVar("T")
V = TypeVar("V", bound=Value)

# Longer than any value of ours; more is not ours to read.
_MOST_BYTES = 32_768
# What a store needs to answer when nothing is wrong, on a machine that swaps.
_MOST_PATIENCE = 20.0


class StoreLostError(Exception):
    """The store does not answer: who hosts it has gone, or stands still."""


def described(error: BaseException) -> str:
    """Return an error as one short text that can be written to a store.

    A user's error may hold file names that are no Unicode, or fail at being printed.
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - whatever the user's __str__ raises
        text = "(its text cannot be printed)"
    named = f"{type(error).__name__}: {text}"[:1000]
    return named.encode(errors="backslashreplace").decode()


def bounded(call: Callable[[], T], seconds: float, what: str) -> T:
    """Return what a call returns, or raise StoreLostError once the seconds have passed.

    A store's own time-out does not end a call to a host that has stopped, so the call
    runs in a thread that is left behind if it must be.
    """
    answer: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer.put((call(), None))
        except Exception as error:  # noqa: BLE001 - handed to the caller below
            answer.put((None, error))

    thread = threading.Thread(target=run, name=f"gpumap: {what}", daemon=True)
    thread.start()
    try:
        result, error = answer.get(timeout=seconds)
    except queue.Empty:
        message = f"{what}: no answer within {seconds:.1f} s"
        raise StoreLostError(message) from None
    thread.join()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where the call returned it


class Board:
    """The keys of one session on a store."""

    def __init__(self, store: dist.Store, patience: float = _MOST_PATIENCE) -> None:
        """Use a store whose keys are this session's own.

        patience is how many seconds the store may take to answer, 20 at most. A store
        that did not answer once is not asked again.
        """
        self._store = store
        self._patience = min(patience, _MOST_PATIENCE)
        self._lost: StoreLostError | None = None

    def again(self) -> "Board":
        """Return a board on a connection of its own, where this torch can make one."""
        clone = getattr(self._store, "clone", None)
        return Board(self._store if clone is None else clone(), self._patience)

    def claim(self, key: str, value: V) -> V:
        """Write a key that nobody has written yet; return who holds it now."""
        text = value.model_dump_json()
        held = self._ask(lambda: self._store.compare_set(key, "", text), f"claim {key}")
        return self._parse(key, held, type(value))

    def write(self, key: str, value: Value) -> None:
        """Write a key that is this rank's to write."""
        self._ask(lambda: self._store.set(key, value.model_dump_json()), f"write {key}")

    def count(self, key: str, by: int = 1) -> int:
        """Add to a counter; return its new value."""
        return self._ask(lambda: self._store.add(key, by), f"count {key}")

    def has(self, key: str) -> bool:
        """Tell whether a key was written."""
        return self._ask(lambda: self._store.check([key]), f"check {key}")

    def wait(self, key: str, kind: type[V], seconds: float) -> V | None:
        """Return a key's value once it is written; None if that takes too long."""
        limit = timedelta(seconds=max(seconds, 0.001))

        def read() -> bytes | None:
            try:
                self._store.wait([key], limit)
            except dist.DistStoreError:
                return None
            return self._store.get(key)

        text = self._ask(read, f"wait for {key}", seconds)
        return None if text is None else self._parse(key, text, kind)

    def wait_for_count(self, key: str, target: int, seconds: float) -> bool:
        """Tell whether a counter reaches its target in time."""
        deadline = time.monotonic() + seconds
        while self.count(key, 0) < target:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _ask(self, call: Callable[[], T], what: str, wait: float = 0.0) -> T:
        if self._lost is not None:
            raise self._lost
        try:
            return bounded(call, wait + self._patience, what)
        except StoreLostError as error:
            self._lost = error
        except dist.DistError as error:
            self._lost = StoreLostError(f"{what}: {first_line(error)}")
        raise self._lost

    def _parse(self, key: str, text: bytes, kind: type[V]) -> V:
        if len(text) <= _MOST_BYTES:
            try:
                return kind.model_validate_json(text)
            except Exception:  # noqa: BLE001, S110 - whatever it is, it is not ours
                pass
        raise RollCallError(
            f"the store holds something under {key} that gpumap did not write.",
            f"{len(text)} bytes: {text[:60]!r}.",
            "Another program uses this address; choose another MASTER_PORT.",
        )


def first_line(error: BaseException) -> str:
    """Return what torch says first; what follows is the C++ stack."""
    return (str(error).splitlines() or [type(error).__name__])[0]

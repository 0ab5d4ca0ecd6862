"""The keys of a torch store that is not reached over TCP."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch.distributed as dist

from gpumap.rendezvous.messages import first_line
from gpumap.rendezvous.store_client import StoreLostError, readable

__all__ = ["TorchKeys"]

T = TypeVar("T")

# The pauses between requests to a store that cannot wait for a key.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.25


class TorchKeys:
    """A torch store that is not reached over TCP: in this process, or in a file."""

    def __init__(self, store: dist.Store) -> None:
        """Use a store that answers at once."""
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """Write a key."""
        _asked(lambda: self._store.set(key, value.decode()))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write a key if it holds what is expected; return what it holds now."""
        return _asked(
            lambda: self._store.compare_set(key, expected.decode(), desired.decode())
        )

    def get(self, key: str) -> bytes:
        """Return the value of a key that is known to be written."""
        return _asked(lambda: self._store.get(key))

    def add(self, key: str, by: int) -> int:
        """Add to a counter; return its new value."""
        return _asked(lambda: self._store.add(key, by))

    def check(self, key: str) -> bool:
        """Tell whether a key was written."""
        return _asked(lambda: self._store.check([key]))

    def wait(self, key: str, seconds: float | None, others: Iterable[int] = ()) -> bool:
        """Return True as soon as a key is written, as Client.wait does."""
        deadline = None if seconds is None else time.monotonic() + seconds
        files, pause = list(others), _SHORTEST_PAUSE
        while not self.check(key):
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
            if pause <= 0 or readable(files, pause):
                return False
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def close(self) -> None:
        """Do nothing: the store is not gpumap's to close."""


def _asked(call: Callable[[], T]) -> T:
    try:
        return call()
    except dist.DistError as error:
        raise StoreLostError(first_line(error)) from None

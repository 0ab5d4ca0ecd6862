"""Typed access to one session's keys on a store; every call has a time limit."""

import json
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from gpumap.errors import RollCallError
from gpumap.mapping.base import FrozenModel
from gpumap.rendezvous.messages import printable
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.time_limits import LOOK_AFTER_OTHERS

__all__ = ["Keys", "SessionStore"]

T = TypeVar("T")
V = TypeVar("V", bound=FrozenModel)

# Longer than any value that gpumap writes; a longer one is not gpumap's.
_MOST_BYTES = 65_536


class Keys(Protocol):
    """The operations of a store that gpumap uses; Client documents each."""

    def set(self, key: str, value: bytes) -> None: ...  # noqa: D102
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes: ...  # noqa: D102
    def get(self, key: str) -> bytes: ...  # noqa: D102
    def add(self, key: str, by: int) -> int: ...  # noqa: D102
    def check(self, key: str) -> bool: ...  # noqa: D102
    def wait(  # noqa: D102
        self, key: str, seconds: float | None, others: Iterable[int] = ()
    ) -> bool: ...
    def close(self) -> None: ...  # noqa: D102


class SessionStore:
    """The keys of one session on a store."""

    def __init__(self, keys: Keys, prefix: str) -> None:
        """Use the keys with a prefix.

        Once the store has not answered, it is not asked again.
        """
        self._keys = keys
        self._prefix = prefix
        self._lost: StoreLostError | None = None

    def close(self) -> None:
        """End the connection to the store."""
        self._keys.close()

    def claim(self, key: str, value: V) -> V:
        """Write a key unless it is written already; return its value."""
        text = value.model_dump_json().encode()
        held = self._ask(lambda: self._keys.compare_set(self._at(key), b"", text))
        return self._parse(key, held, type(value))

    def write(self, key: str, value: FrozenModel) -> None:
        """Write a key that only this rank writes."""
        text = value.model_dump_json().encode()
        self._ask(lambda: self._keys.set(self._at(key), text))

    def count(self, key: str, by: int = 1) -> int:
        """Add to a counter; return its new value."""
        return self._ask(lambda: self._keys.add(self._at(key), by))

    def has(self, key: str) -> bool:
        """Tell whether a key was written."""
        return self._ask(lambda: self._keys.check(self._at(key)))

    def read(self, key: str, kind: type[V]) -> V:
        """Return the value of a key that is known to be written."""
        return self._parse(key, self._ask(lambda: self._keys.get(self._at(key))), kind)

    def comes(
        self, key: str, seconds: float | None, others: Iterable[int] = ()
    ) -> bool:
        """Return True as soon as a key is written, as Client.wait does."""
        return self._ask(lambda: self._keys.wait(self._at(key), seconds, others))

    def wait(
        self,
        key: str,
        kind: type[V],
        seconds: float,
        look: Callable[[], object] = lambda: None,
    ) -> V | None:
        """Return a key's value once it is written; None if that takes too long.

        look is called every second while waiting.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            if self.comes(key, min(left, LOOK_AFTER_OTHERS)):
                return self.read(key, kind)
            if left <= LOOK_AFTER_OTHERS:
                return None
            look()

    def _at(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _ask(self, call: Callable[[], T]) -> T:
        if self._lost is not None:
            raise self._lost
        try:
            return call()
        except StoreLostError as error:
            self._lost = error
            raise

    def _parse(self, key: str, text: bytes, kind: type[V]) -> V:
        if len(text) <= _MOST_BYTES:
            try:
                return kind.model_validate(printable(json.loads(text)))
            except Exception:  # noqa: BLE001, S110 - whatever it is, it is not ours
                pass
        raise RollCallError(
            f"the store holds something under {key} that gpumap did not write.",
            f"{len(text)} bytes: {text[:60]!r}.",
            "Another program uses this address; choose another MASTER_PORT.",
        )

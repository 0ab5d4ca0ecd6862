"""The keys of a store, and what each of its clients asks of them, without sockets."""

import struct
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

from gpumap.rendezvous import store_language as say
from gpumap.rendezvous.store_language import text

__all__ = ["NotUnderstoodError", "Table", "Visitor"]

T = TypeVar("T")
Reading: TypeAlias = Generator[int, bytes, T]
"""Yields how many bytes it needs next, is sent them, and returns what they say."""

# gpumap's own keys have some hundred characters.
_LONGEST_KEY = 4096
# How many keys one request may name, and all that a store holds; a key counts for
# somewhat more than its bytes.
_MOST_NAMED, _MOST_HELD, _PER_KEY = 1024, 2**30, 256


class NotUnderstoodError(Exception):
    """A client sends what no client of gpumap's or torch's would, or too much."""


class Table:
    """The keys of a store, their values, and who waits for them."""

    def __init__(self) -> None:
        """Start without keys."""
        self._values: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, set[Visitor]] = {}
        self._held = 0

    def write(self, key: bytes, value: bytes) -> None:
        """Write a key, and tell who waits for it."""
        held = self._held + len(value) - len(self._values.get(key, b""))
        if key not in self._values:
            held += len(key) + _PER_KEY
        if held > _MOST_HELD:
            raise NotUnderstoodError
        self._held, self._values[key] = held, value
        for visitor in self._waiting.pop(key, set()):
            visitor.came(key)

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        """Write a key if it holds what is expected; return what it holds now.

        A key that is not there holds "", but if something else is expected of it, that
        is what is returned.
        """
        if self._values.get(key, b"") == expected:
            self.write(key, desired)
        return self._values.get(key, expected)

    def get(self, key: bytes) -> bytes:
        """Return a key's value; "" if it is not there."""
        return self._values.get(key, b"")

    def add(self, key: bytes, by: int) -> int:
        """Add to a counter, which is kept as decimal digits; return its new value."""
        try:
            total = int(self._values.get(key, b"0")) + by
        except ValueError:
            raise NotUnderstoodError from None
        if not -(2**63) <= total < 2**63:
            raise NotUnderstoodError
        self.write(key, b"%d" % total)
        return total

    def missing(self, keys: Iterable[bytes]) -> set[bytes]:
        """Return those of these keys that are not there."""
        return {key for key in keys if key not in self._values}

    def await_keys(self, visitor: "Visitor", keys: Iterable[bytes]) -> None:
        """Tell a client once each of these keys is written."""
        for key in keys:
            self._waiting.setdefault(key, set()).add(visitor)

    def forget(self, visitor: "Visitor", keys: Iterable[bytes]) -> None:
        """Tell a client of these keys no more."""
        for key in keys:
            waiting = self._waiting.get(key, set())
            waiting.discard(visitor)
            if not waiting:
                self._waiting.pop(key, None)


class Visitor:
    """A client, as the store knows it.

    Attributes:
        greeted: Whether it has said what clients of a TCPStore say first.
    """

    def __init__(self, table: Table, answer: Callable[[bytes], None]) -> None:
        """Serve a client from a table; answer sends it bytes."""
        self.greeted = False
        self._table = table
        self._answer = answer
        self._missing: set[bytes] = set()
        self._requests: dict[int, Callable[[], Reading[bytes]]] = {
            say.SET: self._set,
            say.COMPARE_SET: self._compare_set,
            say.GET: self._get,
            say.ADD: self._add,
            say.CHECK: self._check,
            say.WAIT: self._wait,
            say.CANCEL_WAIT: self._cancel_wait,
            say.PING: self._ping,
        }

    def conversation(self) -> Reading[None]:
        """Answer one request after another.

        Raises:
            NotUnderstoodError: The client is to be left.
        """
        if (yield 1)[0] != say.VALIDATE or (yield 4) != struct.pack("=I", say.MAGIC):
            raise NotUnderstoodError
        self.greeted = True
        while True:
            request = self._requests.get((yield 1)[0])
            if request is None:
                raise NotUnderstoodError
            if said := (yield from request()):
                self._answer(said)

    def came(self, key: bytes) -> None:
        """Note that an awaited key was written."""
        self._missing.discard(key)
        if not self._missing:
            self._answer(say.YES)

    def leave(self) -> None:
        """Wait for nothing any more."""
        self._table.forget(self, self._missing)
        self._missing = set()

    def _set(self) -> Reading[bytes]:
        self._table.write((yield from _key()), (yield from _value()))
        return b""

    def _compare_set(self) -> Reading[bytes]:
        key, expected = (yield from _key()), (yield from _value())
        return text(self._table.compare_set(key, expected, (yield from _value())))

    def _get(self) -> Reading[bytes]:
        return text(self._table.get((yield from _key())))

    def _add(self) -> Reading[bytes]:
        key, by = (yield from _key()), struct.unpack("=q", (yield 8))[0]
        return struct.pack("=q", self._table.add(key, by))

    def _check(self) -> Reading[bytes]:
        return say.NO if self._table.missing((yield from _keys())) else say.YES

    def _wait(self) -> Reading[bytes]:
        keys = yield from _keys()
        self.leave()
        self._missing = self._table.missing(keys)
        self._table.await_keys(self, self._missing)
        return b"" if self._missing else say.YES

    def _cancel_wait(self) -> Reading[bytes]:
        yield from ()  # it has no fields
        self.leave()
        return say.CANCELLED

    def _ping(self) -> Reading[bytes]:
        return (yield 4)


def _keys() -> Reading[list[bytes]]:
    count = yield from _number(_MOST_NAMED)
    keys: list[bytes] = []
    for _ in range(count):
        keys.append((yield from _key()))  # noqa: PERF401 - a comprehension cannot yield
    return keys


def _key() -> Reading[bytes]:
    return (yield (yield from _number(_LONGEST_KEY)))


def _value() -> Reading[bytes]:
    return (yield (yield from _number(say.LONGEST_VALUE)))


def _number(most: int) -> Reading[int]:
    number = int(struct.unpack("=Q", (yield 8))[0])
    if number > most:
        raise NotUnderstoodError
    return number

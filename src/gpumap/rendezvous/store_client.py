"""A client of torch's TCPStore that signals can interrupt and that has time limits.

torch's own client blocks in C++: no signal interrupts it, a time-out prints warnings,
and a thread that is blocked in it while Python exits aborts the process. This one uses
the same server's protocol, on its own connection.
"""

import os
import select
import socket
import struct
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from gpumap.errors import RollCallError
from gpumap.rendezvous import store_language as say
from gpumap.rendezvous.store_language import text

__all__ = ["Client", "StoreLostError", "open_files", "readable"]

# Firewalls drop connections that are idle for some minutes.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class StoreLostError(Exception):
    """The store does not answer: its host's process has ended or is stopped."""

    def of(self, keeper: str, when: str) -> RollCallError:
        """Return the error that users see: who hosts the store, and went when."""
        return RollCallError(
            f"{keeper} went {when}.", f"{self}.", "See what it says.", (0,)
        )


class Client:
    """A connection to a TCPStore, for one thread.

    If a request is interrupted, by a signal for instance, the connection is closed,
    since the answer is still under way; the next request opens another.

    Attributes:
        seconds: How long the server may take for each answer.
    """

    def __init__(self, host: str, port: int, seconds: float) -> None:
        """Connect, and check that a TCPStore answers.

        Raises:
            OSError: Nothing listens there.
            StoreLostError: What listens does not answer as a TCPStore does.
        """
        self._address = (host, port)
        self.seconds = seconds
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        _clients.add(self)
        self._connect()

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def fileno(self) -> int:
        """Return the connection's file descriptor; -1 if it is closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def set(self, key: str, value: bytes) -> None:
        """Write a key."""
        # The server does not answer writes; it answers the ping once the write is done.
        with self._request(say.SET, _key(key), text(value), _ping()):
            self._check_ping()

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write a key if it holds what is expected; return what it holds now."""
        with self._request(say.COMPARE_SET, _key(key), text(expected), text(desired)):
            return self._read_text()

    def get(self, key: str) -> bytes:
        """Return the value of a key that is known to be written."""
        with self._request(say.GET, _key(key)):
            return self._read_text()

    def add(self, key: str, by: int) -> int:
        """Add to a counter; return its new value."""
        with self._request(say.ADD, _key(key), struct.pack("=q", by)):
            return int(struct.unpack("=q", self._read(8))[0])

    def check(self, key: str) -> bool:
        """Tell whether a key was written."""
        with self._request(say.CHECK, struct.pack("=Q", 1), _key(key)):
            return self._read(1) == say.YES

    def wait(self, key: str, seconds: float | None, others: Iterable[int] = ()) -> bool:
        """Return True as soon as a key is written.

        Return False once the seconds have passed (None: no limit), or once one of the
        other file descriptors is readable. No requests are sent while waiting.
        """
        with self._request(say.WAIT, struct.pack("=Q", 1), _key(key)):
            if self.fileno() in readable([self.fileno(), *others], seconds):
                return self._read(1) == say.YES
            self._send(bytes([say.CANCEL_WAIT]))
            came = self._read(1) == say.YES
            # If the key came during the cancellation, the server sends both answers.
            return came and self._read(1) == say.CANCELLED

    @contextmanager
    def _request(self, number: int, *fields: bytes) -> Generator[None, None, None]:
        with self._closed_on_errors():
            if self._socket is None:
                self._connect()
            self._send(bytes([number]) + b"".join(fields))
            yield

    def _connect(self) -> None:
        if os.getpid() != self._pid:
            message = "this process was forked from the one that was connected"
            raise ConnectionError(message)
        self._socket = socket.create_connection(self._address, self.seconds)
        with self._closed_on_errors():
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if option := getattr(socket, name, None):
                    self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
            self._send(struct.pack("=BI", say.VALIDATE, say.MAGIC) + _ping())
            self._check_ping()

    @contextmanager
    def _closed_on_errors(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise self._lost(error) from None
        except BaseException:
            self.close()
            raise

    def _send(self, data: bytes) -> None:
        assert self._socket is not None  # noqa: S101 - for the type checkers
        self._socket.settimeout(self.seconds)
        self._socket.sendall(data)

    def _read(self, count: int) -> bytes:
        assert self._socket is not None  # noqa: S101 - for the type checkers
        deadline = time.monotonic() + self.seconds
        data = b""
        while len(data) < count:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            more = self._socket.recv(count - len(data))
            if not more:
                message = "the connection was closed"
                raise ConnectionError(message)
            data += more
        return data

    def _read_text(self) -> bytes:
        length = struct.unpack("=Q", self._read(8))[0]
        if length > say.LONGEST_VALUE:
            message = f"a value of {length} bytes"
            raise ConnectionError(message)
        return self._read(length)

    def _check_ping(self) -> None:
        if (said := self._read(4)) != _ping()[1:]:
            message = f"{said!r} is no answer of a TCPStore"
            raise ConnectionError(message)

    def _lost(self, error: OSError) -> StoreLostError:
        host, port = self._address
        what = error.strerror or str(error)
        if isinstance(error, TimeoutError):
            what = f"no answer within {self.seconds:.1f} s"
        return StoreLostError(f"{host}:{port}: {what}")


def readable(files: Sequence[int], seconds: float | None) -> set[int]:
    """Wait until a file descriptor is readable or time is up; return those that are."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return {
        file
        for file, _ in poll.poll(None if seconds is None else max(seconds, 0) * 1000)
    }


def _key(key: str) -> bytes:
    """Return a key in the form that torch's client writes."""
    return text(b"/" + key.encode())


def _ping() -> bytes:
    return struct.pack("=BI", say.PING, os.getpid())


_clients: WeakSet[Client] = WeakSet()


def open_files() -> set[int]:
    """Return the file descriptors of all clients of this process."""
    return {client.fileno() for client in list(_clients)}


def _close_all() -> None:
    """Close the parent's connections in a forked child; the parent's stay open."""
    for client in list(_clients):
        client.close()


os.register_at_fork(after_in_child=_close_all)

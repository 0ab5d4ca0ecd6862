"""A server of torch's TCPStore, in one thread of Python, that needs no torch.

Its clients are gpumap's and torch's. It does what gpumap asks of a store, and knows
nothing of torch's queues and lists. Who is no such client, or asks for too much, is
dropped.
"""

import errno
import os
import selectors
import socket
import threading
from contextlib import suppress
from weakref import WeakSet

from gpumap.rendezvous.store_connection import Connection
from gpumap.rendezvous.store_table import NotUnderstoodError, Table

__all__ = ["StoreServer"]

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class StoreServer:
    """A store that other processes reach at a socket which listens already.

    In a forked child nothing of it is left.
    """

    def __init__(self, listener: socket.socket) -> None:
        """Serve from now on; the socket belongs to the server."""
        listener.settimeout(0)
        self._listener = listener
        self._table = Table()
        self._connections: dict[Connection, None] = {}  # in the order of their coming
        self._dropped = threading.Condition()
        self._closing_door, self._ending, self._full = False, False, False
        self._door_is_closed = threading.Event()
        self._waker, self._alarm = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._alarm, selectors.EVENT_READ, self._obey)
        self._selector.register(listener, selectors.EVENT_READ, self._let_in)
        self._thread = threading.Thread(
            target=self._serve, name="gpumap store", daemon=True
        )
        _servers.add(self)
        self._thread.start()

    def close_door(self) -> None:
        """Stop listening: nothing listens at the port when this returns.

        Connections stay.
        """
        self._closing_door = True
        self._wake()
        self._door_is_closed.wait()

    def wait_until_left(self, seconds: float) -> bool:
        """Wait until all clients have closed their connections; tell whether they have.

        One that has not said what a client says first is not waited for.
        """
        with self._dropped:
            return self._dropped.wait_for(lambda: not self._guests(), seconds)

    def close(self) -> None:
        """Stop listening, close all connections, and end the thread."""
        self._ending = True
        self._wake()
        self._thread.join()

    def abandon(self) -> None:
        """Close what a forked child has of its parent's server, which goes on."""
        for connection in self._connections:
            connection.socket.close()
        self._connections.clear()
        # The parent's thread may have held their locks.
        self._dropped, self._door_is_closed = threading.Condition(), threading.Event()
        self._put_away()

    def _wake(self) -> None:
        with suppress(OSError):  # the thread has ended
            self._waker.send(b"x")

    def _guests(self) -> bool:
        return any(c.visitor.greeted for c in list(self._connections))

    def _serve(self) -> None:
        try:
            while not self._ending:
                for key, _ in self._selector.select():
                    key.data()
        finally:
            for connection in list(self._connections):
                self._drop(connection)
            self._put_away()

    def _put_away(self) -> None:
        for one in (self._listener, self._selector, self._waker, self._alarm):
            one.close()
        self._door_is_closed.set()

    def _obey(self) -> None:
        self._alarm.recv(64)
        if self._closing_door and not self._door_is_closed.is_set():
            self._heed_nobody()
            self._listener.close()
            self._door_is_closed.set()

    def _heed_nobody(self) -> None:
        if not self._full:
            self._selector.unregister(self._listener)
        self._full = True

    def _let_in(self) -> None:
        try:
            own, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._make_room()
            return
        one = Connection(own, self._table, self._selector, self._go_on)
        self._connections[one] = None

    def _make_room(self) -> None:
        """Drop the first client that has not said what it is; else let nobody in."""
        for connection in list(self._connections):
            if not connection.visitor.greeted:
                self._go_on(connection)  # it may have spoken by now
            if not connection.visitor.greeted:
                self._drop(connection)
                return
        self._heed_nobody()

    def _go_on(self, connection: Connection) -> None:
        try:
            connection.go_on()
        except (OSError, NotUnderstoodError):
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        del self._connections[connection]
        connection.close()
        if self._full and not self._door_is_closed.is_set():
            self._selector.register(self._listener, selectors.EVENT_READ, self._let_in)
            self._full = False
        with self._dropped:
            self._dropped.notify_all()


_servers: WeakSet[StoreServer] = WeakSet()


def _abandon_all() -> None:
    for server in list(_servers):
        server.abandon()


os.register_at_fork(after_in_child=_abandon_all)

"""One client's connection to a store that this process serves."""

import selectors
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from gpumap.rendezvous.store_table import Table, Visitor

__all__ = ["Connection"]

_CHUNK = 65_536
# SO_LINGER: what is closed so leaves nothing behind that occupies the port.
_AT_ONCE = struct.pack("ii", 1, 0)


class Connection:
    """A client's socket, and what is under way on it.

    While an answer waits to be read, no further request is, so that a client that never
    reads has little of this process's memory.

    Attributes:
        socket: The socket.
        visitor: The client, as the store knows it.
    """

    def __init__(
        self,
        own: socket.socket,
        table: Table,
        selector: selectors.BaseSelector,
        ready: Callable[["Connection"], None],
    ) -> None:
        """Serve a client from a table; ready is called when go_on() has work to do."""
        own.settimeout(0)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = own
        self.visitor = Visitor(table, self._answer)
        self._conversation = self.visitor.conversation()
        self._needed = next(self._conversation)
        self._incoming, self._outgoing = bytearray(), bytearray()
        self._selector = selector
        self._ready = lambda: ready(self)
        selector.register(own, selectors.EVENT_READ, self._ready)

    def go_on(self) -> None:
        """Send what is to be sent, or read what has come, and answer it.

        Raises:
            OSError: The client has closed the connection, or it has broken.
            NotUnderstoodError: The client is none of a TCPStore, or asks for too much.
        """
        if self._outgoing:
            self._send()
        else:
            with suppress(BlockingIOError):
                self._incoming += self._received()
        while not self._outgoing and len(self._incoming) >= self._needed:
            piece = bytes(self._incoming[: self._needed])
            del self._incoming[: self._needed]
            self._needed = self._conversation.send(piece)

    def close(self) -> None:
        """Forget the client, and close its connection without a trace."""
        self.visitor.leave()
        self._selector.unregister(self.socket)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.socket.close()

    def _received(self) -> bytes:
        received = self.socket.recv(_CHUNK)
        if not received:
            raise ConnectionResetError
        return received

    def _answer(self, said: bytes) -> None:
        waits = bool(self._outgoing)
        self._outgoing += said
        if not waits:
            self._send()

    def _send(self) -> None:
        """Send what the kernel takes; a broken connection shows when it is read."""
        try:
            del self._outgoing[: self.socket.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()
        events = selectors.EVENT_WRITE if self._outgoing else selectors.EVENT_READ
        if self._selector.get_key(self.socket).events != events:
            self._selector.modify(self.socket, events, self._ready)

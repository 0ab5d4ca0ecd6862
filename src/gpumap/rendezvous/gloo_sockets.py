"""The TCP connections of gloo's process groups, as the kernel lists them.

gloo closes them when nothing refers to the group any more. A variable of the user's, an
error's traceback or a forked child may, and the other ranks then wait for this one for
as long as their time-out. So gpumap shuts them down itself; both ends notice at once.

Source: gloo/transport/tcp/loop.cc; each device of gloo's has one epoll, which watches a
listening socket, a socket for each peer, and a pipe. Where there is no /proc nothing is
found, and then nothing is shut down.
"""

import os
import re
import socket
from collections.abc import Container, Generator, Iterable
from contextlib import contextmanager, suppress
from operator import ge
from pathlib import Path

__all__ = ["GlooConnections", "own_address_at", "shut_down_to"]

_FILES = Path("/proc/self/fd")
_TCP = (socket.AF_INET, socket.AF_INET6)


class GlooConnections:
    """gloo's connections: of the groups made from now on, or of all groups."""

    def __init__(self, *, everything: bool) -> None:
        """Remember what belongs to others."""
        self._others: set[str] = set() if everything else set(_links().values())

    def intact(self, peers: Iterable[int]) -> bool:
        """Tell whether all connections are there that groups of so many peers need.

        Both sides close one that breaks, or on which something took too long.
        """
        found = sorted(map(len, self._found()), reverse=True)
        needed = sorted(peers, reverse=True)
        return len(found) >= len(needed) and all(map(ge, found, needed))

    def shut_down(self) -> None:
        """End all of gloo's connections, those of the user's own groups too."""
        for group in self._found():
            for file, link in group:
                _shut_down(file, link)

    def _found(self) -> list[list[tuple[int, str]]]:
        """Return the descriptors of each group's connections, and what they lead to."""
        links = _links()
        found: list[list[tuple[int, str]]] = []
        for file, link in links.items():
            if link != "anon_inode:[eventpoll]":
                continue
            watched = [(watch, links.get(watch, "")) for watch in _watched(file)]
            sockets = [(f, name) for f, name in watched if not name.startswith("pipe:")]
            listening = [_is_listening(f, name) for f, name in sockets]
            if None in listening or listening.count(True) != 1:
                continue
            if not self._others.isdisjoint(name for _, name in sockets):
                continue
            found.append(
                [s for s, hears in zip(sockets, listening, strict=True) if not hears]
            )
        return found


def shut_down_to(addresses: Container[str], port: int, but: Container[int]) -> None:
    """End this process's connections to a port, all but those of some descriptors."""
    for file, found in _tcp_sockets():
        with suppress(OSError):
            host, far, *_ = found.getpeername()
            if file not in but and far == port and _v4(host) in addresses:
                found.shutdown(socket.SHUT_RDWR)


def own_address_at(port: int) -> str | None:
    """Return the address by which this process has a connection to or at a port.

    None where there is none but from this host to itself.
    """
    for _, found in _tcp_sockets():
        with suppress(OSError):
            near, here, *_ = found.getsockname()
            far, there, *_ = found.getpeername()
            if port in (here, there) and near != far:
                return _v4(near)
    return None


def _tcp_sockets() -> Generator[tuple[int, socket.socket], None, None]:
    """Yield this process's TCP sockets, whoever opened them."""
    for file, link in _links().items():
        if link.startswith("socket:"):
            with suppress(OSError), _borrowed(file, link) as found:
                if found.family in _TCP:
                    yield file, found


def _v4(address: str) -> str:
    """Return an address as it is written without its IPv6 form."""
    return address.removeprefix("::ffff:")


def _shut_down(file: int, link: str) -> None:
    """End a connection, whoever else has a descriptor of it."""
    with suppress(OSError), _borrowed(file, link) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _links() -> dict[int, str]:
    """Return what each file descriptor of this process leads to."""
    links: dict[int, str] = {}
    with suppress(OSError):
        for file in _FILES.iterdir():
            with suppress(OSError):  # the one that lists them
                links[int(file.name)] = str(file.readlink())
    return links


def _watched(file: int) -> list[int]:
    """Return the descriptors that an epoll watches. Source: proc_pid_fdinfo(5)."""
    try:
        info = Path(f"/proc/self/fdinfo/{file}").read_text()
    except OSError:
        return []
    return [int(number) for number in re.findall(r"^tfd:\s*(\d+)", info, re.MULTILINE)]


def _is_listening(file: int, link: str) -> bool | None:
    """Tell whether a TCP socket listens; None where it is none."""
    try:
        with _borrowed(file, link) as found:
            if found.family not in _TCP:
                return None
            return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return None


@contextmanager
def _borrowed(file: int, link: str) -> Generator[socket.socket, None, None]:
    """Use a socket that belongs to a library, if the descriptor is still the same."""
    own = os.dup(file)
    if f"socket:[{os.fstat(own).st_ino}]" != link:
        os.close(own)
        raise OSError(link)
    with socket.socket(fileno=own) as found:
        yield found

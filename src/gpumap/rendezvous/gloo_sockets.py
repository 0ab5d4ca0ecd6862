"""The TCP connections of gloo's process groups, as the kernel lists them.

gloo closes them only when nothing refers to the group any more. A user's variable or an
error's traceback may still do so, and the ranks that are in a collective would wait
until their time limit. So gpumap shuts the connections down itself.

Source: gloo/transport/tcp/loop.cc: each gloo device has one epoll, which watches a
listening socket, a socket for each peer, and a pipe. Without /proc no connection is
found, and none is shut down.
"""

import os
import re
import socket
from collections.abc import Container, Generator, Iterable
from contextlib import contextmanager, suppress
from itertools import chain
from operator import ge
from pathlib import Path

__all__ = ["GlooConnections", "own_address_at", "shut_down_to"]

_FILES = Path("/proc/self/fd")
_TCP = (socket.AF_INET, socket.AF_INET6)


class GlooConnections:
    """gloo's connections: of all groups, or of those created after this object."""

    def __init__(self, *, everything: bool) -> None:
        """Record the sockets that exist already, which do not belong to new groups."""
        self._others: set[str] = set() if everything else set(_links().values())

    def intact(self, peers: Iterable[int]) -> bool:
        """Tell whether groups with these numbers of peers have all their connections.

        Both sides close a connection that breaks or on which a time limit has passed.
        """
        found = sorted(map(len, self._found()), reverse=True)
        needed = sorted(peers, reverse=True)
        return len(found) >= len(needed) and all(map(ge, found, needed))

    def shut_down(self) -> None:
        """Shut down all of gloo's connections, including those of the user's groups.

        For reading alone: gloo then fails what it waits for and closes them. A message
        that it could not write it would forget, and wait for it until the time limit.
        Source: gloo/transport/tcp/pair.cc, signalException().
        """
        for file, link in chain(*self._found()):
            with suppress(OSError), _borrowed(file, link) as connection:
                connection.shutdown(socket.SHUT_RD)

    def _found(self) -> list[list[tuple[int, str]]]:
        """Return each group's connections, as descriptors and their link targets."""
        links = _links()
        found: list[list[tuple[int, str]]] = []
        for file, link in links.items():
            if link != "anon_inode:[eventpoll]":
                continue
            # gloo may close a connection meanwhile.
            watched = [(f, links[f]) for f in _watched(file) if f in links]
            sockets = [(f, name) for f, name in watched if not name.startswith("pipe:")]
            if not all(name.startswith("socket:") for _, name in sockets):
                continue
            listening: dict[tuple[int, str], bool | None] = {}
            for f, name in sockets:
                with suppress(OSError):
                    listening[f, name] = _is_listening(f, name)
            hearing = list(listening.values())
            if None in hearing or hearing.count(True) != 1:
                continue
            if not self._others.isdisjoint(name for _, name in sockets):
                continue
            found.append([s for s, hears in listening.items() if not hears])
        return found


def shut_down_to(addresses: Container[str], port: int, but: Container[int]) -> None:
    """Shut down this process's connections to a port, except those in `but`."""
    for file, found in _tcp_sockets():
        with suppress(OSError):
            host, far, *_ = found.getpeername()
            if file not in but and far == port and _v4(host) in addresses:
                found.shutdown(socket.SHUT_RDWR)


def own_address_at(port: int) -> str | None:
    """Return the local address of a connection of this process to or at a port.

    None if there is none, or only from this host to itself.
    """
    for _, found in _tcp_sockets():
        with suppress(OSError):
            near, here, *_ = found.getsockname()
            far, there, *_ = found.getpeername()
            if port in (here, there) and near != far:
                return _v4(near)
    return None


def _tcp_sockets() -> Generator[tuple[int, socket.socket], None, None]:
    """Yield this process's TCP sockets, whichever library opened them."""
    for file, link in _links().items():
        if link.startswith("socket:"):
            with suppress(OSError), _borrowed(file, link) as found:
                if found.family in _TCP:
                    yield file, found


def _v4(address: str) -> str:
    """Return an address without the prefix of an IPv4-mapped IPv6 address."""
    return address.removeprefix("::ffff:")


def _links() -> dict[int, str]:
    """Return the link target of each file descriptor of this process."""
    links: dict[int, str] = {}
    with suppress(OSError):
        for file in _FILES.iterdir():
            with suppress(OSError):  # the descriptor that lists the folder
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
    """Tell whether a TCP socket listens; None if it is a socket of another kind."""
    with _borrowed(file, link) as found:
        if found.family not in _TCP:
            return None
        return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


@contextmanager
def _borrowed(file: int, link: str) -> Generator[socket.socket, None, None]:
    """Duplicate a library's socket, if the descriptor still refers to the same one."""
    own = os.dup(file)
    if f"socket:[{os.fstat(own).st_ino}]" != link:
        os.close(own)
        raise OSError(link)
    with socket.socket(fileno=own) as found:
        yield found

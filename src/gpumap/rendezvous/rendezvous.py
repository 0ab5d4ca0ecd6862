"""The store on which the ranks of one job meet, and those of no other job."""

import itertools
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from gpumap.mapping.launch import Launch, store_address
from gpumap.rendezvous.gloo_sockets import shut_down_to
from gpumap.rendezvous.meeting_place import find_place, restart_of, sign
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.store_client import Client, StoreLostError, open_files
from gpumap.rendezvous.torch_keys import TorchKeys
from gpumap.time_limits import ANY_ANSWER, TORCH_CONNECTS

__all__ = ["Rendezvous", "meet", "meet_in_group", "session_prefix", "store_is_open"]


@dataclass
class _Opened:
    """A store that is kept for the life of the process, and its use.

    Attributes:
        store: torch's client of it, which the process group uses.
        address: Its host and port.
        keeper: Who hosts it, as text.
        server: The store itself, if this process hosts it.
        host: The rank that hosts it; None if none does.
        sessions: How many sessions of this process have used it.
        cut: Whether torch's client has lost its connection.
    """

    store: dist.Store
    address: tuple[str, int]
    keeper: str
    server: dist.TCPStore | None = None
    host: int | None = None
    sessions: int = 0
    cut: bool = False


@dataclass(frozen=True)
class Rendezvous:
    """One session's part of a store.

    Attributes:
        store: The store, under this session's prefix, for torch.
        prefix: The prefix of the session's keys.
        keeper: Who hosts the store, as text.
        host: The rank that hosts it; None if none does.
        address: Its host and port; None if it is not reached over TCP.
    """

    store: dist.Store
    prefix: str
    keeper: str
    host: int | None = None
    address: tuple[str, int] | None = None

    def connect(self, patience: float) -> SessionStore:
        """Return the session's keys, on a new connection.

        patience: the seconds that the store may take for each answer, 20 at most.

        Raises:
            StoreLostError: It does not answer.
        """
        if self.address is None:
            return SessionStore(TorchKeys(self.store), "")
        try:
            client = Client(*self.address, min(patience, ANY_ANSWER))
        except OSError as error:
            raise StoreLostError(str(error)) from None
        return SessionStore(client, self.prefix)

    def cut(self) -> None:
        """Shut down torch's own connections to the store, to unblock their threads."""
        for opened in _opened.values():
            if opened.address == self.address:
                host, port = opened.address
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = {str(address[0]) for *_, address in found}
                opened.cut = True
                shut_down_to(addresses, port, open_files())


_opened: dict[tuple[str, int], _Opened] = {}
_adopted = itertools.count(1)


def meet(launch: Launch, seconds: float, environ: Mapping[str, str]) -> Rendezvous:
    """Return the store for the next session of this process.

    A single process needs no port. A store is kept for the life of the process, and
    each session on it has its own prefix, so that ranks that are out of step never read
    an old session's keys. Raises what find_place raises.
    """
    if launch.world_size == 1:
        return Rendezvous(dist.HashStore(), "", keeper="this process")
    key = store_address(launch)
    if key not in _opened:
        _opened[key] = _open(launch, seconds, environ)
    opened = _opened[key]
    if opened.cut:
        opened.store, opened.cut = _torchs(*opened.address, seconds), False
    opened.sessions += 1
    prefix = session_prefix(opened.sessions, restart_of(environ))
    return Rendezvous(
        dist.PrefixStore(prefix, opened.store),
        prefix,
        keeper=opened.keeper,
        host=opened.host,
        address=opened.address,
    )


def meet_in_group() -> Rendezvous:
    """Return the store for the next session in a process group that exists already."""
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
    prefix = f"gpumap/{next(_adopted)}"
    keeper = "the process group's store"
    own = dist.PrefixStore(prefix, store)
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return Rendezvous(own, "", keeper=keeper)
    # torch has no way to ask for the prefix of the group's keys; a random name on which
    # all ranks agree replaces it.
    name = own.compare_set("name", "", secrets.token_hex(8)).decode()
    return Rendezvous(
        own,
        f"gpumap/{name}",
        keeper=keeper,
        address=(store.host, store.port),
    )


def store_is_open() -> bool:
    """Tell whether an earlier session of this process has opened the store."""
    return bool(_opened)


def session_prefix(session: int, restart: str = "0") -> str:
    """Return the prefix of the keys of a process's n-th session on a store."""
    return f"gpumap/{restart}/{session}"


def _open(launch: Launch, seconds: float, environ: Mapping[str, str]) -> _Opened:
    place = find_place(launch, seconds, environ, session_prefix(1))
    if place.listener is None:
        store = _torchs(*place.address, seconds)
        return _Opened(store, place.address, place.keeper, host=place.host)
    server = dist.TCPStore(
        *place.address,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=max(seconds, TORCH_CONNECTS)),
        master_listen_fd=place.listener.detach(),
    )
    sign(launch, place.address, seconds)
    return _Opened(server, place.address, place.keeper, server, place.host)


def _torchs(host: str, port: int, seconds: float) -> dist.TCPStore:
    """Return torch's own client of a store that is known to answer.

    It first looks up a name, which takes long if no name server answers.
    """
    return dist.TCPStore(
        host,
        port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=max(seconds, TORCH_CONNECTS)),
    )


# A forked child opens stores anew, on connections of its own.
os.register_at_fork(after_in_child=_opened.clear)

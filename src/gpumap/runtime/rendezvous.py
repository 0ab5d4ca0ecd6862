"""The one store on which the ranks of a job meet, and on which nobody else does."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from gpumap.errors import LaunchError, RollCallError
from gpumap.mapping.launch import Launch
from gpumap.runtime.board import Board, StoreLostError
from gpumap.runtime.origin import Origin, difference, origin_of
from gpumap.runtime.rollcall import Stranger
from gpumap.runtime.tcp import LOOPBACK, connect, foreign, listen

__all__ = ["Meeting", "meet", "meet_in_group", "session_prefix"]

# How long a store that has just been opened may take to say whose it is.
_OWNER_SECONDS = 30.0
_NAME_THE_JOB = (
    "Give each job its own MASTER_PORT. If this is one job, set GPUMAP_JOB_ID to the "
    "same name on all of its ranks."
)


@dataclass
class _Opened:
    """A store that stays for the life of the process, and how often it was used."""

    store: dist.Store
    hosted: bool
    keeper: str
    rank_0s: bool = False
    sessions: int = 0


@dataclass(frozen=True)
class Meeting:
    """A session's own part of a store.

    Attributes:
        store: The store, under this session's prefix.
        hosted: Whether this process hosts it, and so must leave last.
        keeper: Who hosts it, in words.
        rank_0s: Whether rank 0 does.
    """

    store: dist.Store
    hosted: bool
    keeper: str
    rank_0s: bool = False


_opened: dict[tuple[str, int], _Opened] = {}
_adopted: list[int] = []


def meet(launch: Launch, seconds: float, environ: Mapping[str, str]) -> Meeting:
    """Return the store for the next session of this process.

    One process alone needs no port. On one machine, rank 0 listens on the loopback
    address only; on several, on the master address only. Under torchrun its agent
    listens. A store is kept for the life of the process, and each session on it has its
    own prefix, so that ranks that are out of step never read an old session's keys.

    Raises:
        LaunchError: The master address or port is missing, or is not this host's.
        RollCallError: Rank 0 does not answer in time, or another job does.
        SessionError: Another program has the port.
    """
    if launch.world_size == 1:
        return Meeting(dist.HashStore(), hosted=False, keeper="this process")
    key = _address(launch)
    if key not in _opened:
        _opened[key] = _open(launch, *key, seconds, environ)
    opened = _opened[key]
    opened.sessions += 1
    # torchrun's store outlives the workers that it restarts.
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = session_prefix(opened.sessions, restart)
    store = dist.PrefixStore(prefix, opened.store)
    return Meeting(store, opened.hosted, opened.keeper, opened.rank_0s)


def meet_in_group() -> Meeting:
    """Return the store for the next session in a process group that exists already."""
    _adopted.append(len(_adopted) + 1)
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
    return Meeting(
        dist.PrefixStore(f"gpumap/{_adopted[-1]}", store),
        hosted=False,
        keeper="the process group's store",
    )


def session_prefix(session: int, restart: str = "0") -> str:
    """Return what the keys of a process's n-th session on a store begin with."""
    return f"gpumap/{restart}/{session}"


def _address(launch: Launch) -> tuple[str, int]:
    on_loopback = launch.master_addr in LOOPBACK
    host = launch.master_addr
    if launch.one_node or on_loopback:
        host = LOOPBACK.get(host or "", "127.0.0.1")
    missing = tuple(
        name
        for name, value in (("MASTER_ADDR", host), ("MASTER_PORT", launch.master_port))
        if value is None
    )
    if missing or host is None or launch.master_port is None:
        raise LaunchError(
            f"rank {launch.rank} of {launch.world_size} does not know where to meet "
            f"the others: {' and '.join(missing)} not set.",
            f"{launch.launcher}: master_addr={launch.master_addr}, "
            f"master_port={launch.master_port}.",
            f"Set {' and '.join(missing)} to the same value on every rank: rank 0's "
            "host, and a port free there, for instance 29500. torchrun sets them.",
            missing,
        )
    return host, launch.master_port


def _open(
    launch: Launch, host: str, port: int, seconds: float, environ: Mapping[str, str]
) -> _Opened:
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        address = launch.master_addr or host
        agent = f"{launch.launcher}, which hosts the store,"
        return _Opened(connect(address, port, seconds), hosted=False, keeper=agent)
    origin = origin_of(launch)
    listener = listen(host, port, launch) if launch.rank == 0 else None
    if listener is not None:
        own = dist.TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=seconds),
            master_listen_fd=listener.detach(),
        )
        Board(dist.PrefixStore("gpumap", own), seconds).write("owner", origin)
        return _Opened(own, hosted=True, keeper="this process", rank_0s=True)
    store = connect(host, port, seconds)
    owner = _owner(store, origin, host, port, seconds)
    keeper = f"{owner}, which hosts the store,"
    return _Opened(store, hosted=False, keeper=keeper, rank_0s=True)


def _owner(
    store: dist.Store, mine: Origin, host: str, port: int, seconds: float
) -> Origin:
    """Return who hosts a store; leave one of another job without touching it."""
    board = Board(dist.PrefixStore("gpumap", store), seconds)
    try:
        owner = board.wait("owner", Origin, min(seconds, _OWNER_SECONDS))
    except (StoreLostError, RuntimeError):
        owner = None
    if owner is None:
        raise foreign(host, port)
    unlike = difference(owner, mine)
    if unlike is None:
        return owner
    seen = f"There is {owner}, here is {mine}; {unlike}."
    # So that the owner, should it wait for this rank in vain, can say why.
    first = Board(dist.PrefixStore(session_prefix(1), store), seconds)
    first.claim(f"stranger/{mine.rank}", Stranger(seen=seen))
    raise RollCallError(
        f"another job answers at {host}:{port}.", seen, _NAME_THE_JOB, (mine.rank,)
    )

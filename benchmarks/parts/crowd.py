"""A roll call of many ranks: threads, each with its own connection to one store."""

import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from gpumap.mapping.identity import Identity
from gpumap.rendezvous.members import Member, Terms
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.roll_call import roll_call
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.store_client import Client
from gpumap.rendezvous.torch_store import store_on_loopback

__all__ = ["roll_call_seconds"]

_PATIENCE = 120.0
# A client's and a server's end for each rank, and what Python itself has open.
_FILES = 2 * 1024 + 200


def roll_call_seconds(world_size: int) -> float:
    """Return the seconds from when all are connected until all have the verdict."""
    _allow_files()
    store, port = store_on_loopback()
    began: list[float] = []
    start = threading.Barrier(world_size, lambda: began.append(time.perf_counter()))
    with ThreadPoolExecutor(world_size) as pool:
        ranks = [
            pool.submit(_answer, rank, port, world_size, start)
            for rank in range(world_size)
        ]
    ended = time.perf_counter()
    for rank in ranks:
        rank.result()
    del store
    return ended - began[0]


def _answer(rank: int, port: int, world_size: int, start: threading.Barrier) -> None:
    client = Client("127.0.0.1", port, _PATIENCE)
    store = SessionStore(client, "gpumap/0/1")
    device = f"cuda:{rank}"
    me = Member(
        rank=rank,
        hostname="n1",
        pid=rank,
        device=device,
        identity=Identity(name=device, place="n1"),
    )
    terms = Terms(
        world_size=world_size,
        kind="cuda",
        on_cpu_as_asked=False,
        rehearsal=False,
        backend="nccl",
        strategy="local_rank",
    )
    start.wait(_PATIENCE)
    roll_call(Peers(store, me, world_size), terms, _PATIENCE)
    client.close()


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES:
        wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

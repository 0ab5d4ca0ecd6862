"""Numbers the nodes of a job whose launcher does not, after the roll call."""

from gpumap.errors import RollCallError
from gpumap.mapping.base import FrozenModel, Index
from gpumap.mapping.launch import Launch
from gpumap.rendezvous import keys
from gpumap.rendezvous.peers import Peers

__all__ = ["numbered"]


class _Host(FrozenModel):
    """The name of a host: no other host of the job has it."""

    name: str


class _Node(FrozenModel):
    """The place of a node among the nodes."""

    node_rank: Index


class _Nodes(FrozenModel):
    """How many nodes there are."""

    count: Index


def numbered(
    peers: Peers, launch: Launch, host: str, seconds: float
) -> tuple[int, int]:
    """Return this rank's node_rank, and the number of nodes.

    Every rank calls this after a good roll call. host is a name of this rank's host
    that no other host of the job has. A node is a host that has a local rank 0; nodes
    are in the order of these ranks. Rank 0 alone makes requests in proportion to
    world_size.

    Raises:
        RollCallError: A rank went before it said where it is, or no rank of this host
            is its local rank 0.
        StoreLostError: The store does not answer any more.
    """
    store, me = peers.store, peers.me
    here = launch.local_rank
    if here == 0:
        store.write(keys.host(me.rank), _Host(name=host))
    peers.count(keys.HOSTS, peers.world_size, keys.ALL_HOSTS)
    if me.rank == 0 and store.comes(keys.ALL_HOSTS, seconds):
        _number(peers)
    nodes = store.wait(keys.NODES, _Nodes, seconds if me.rank else 0.0)
    if nodes is None:
        raise RollCallError(
            f"the nodes were not numbered within {seconds:g} s.",
            f"{peers.world_size} ranks were to say on which host they are.",
            "One has gone after the roll call: see what each says.",
        )
    if not store.has(keys.node(host)):
        raise RollCallError(
            f"no rank of {me.hostname} is its local rank 0.",
            f"{me} is local rank {'unknown' if here is None else here} there.",
            "Give each process of a node its own LOCAL_RANK, from 0.",
            (me.rank,),
        )
    return store.read(keys.node(host), _Node).node_rank, nodes.count


def _number(peers: Peers) -> None:
    """Give each host a number, in the order of the ranks that name them."""
    store = peers.store
    told = [keys.host(rank) for rank in range(peers.world_size)]
    names = dict.fromkeys(store.read(key, _Host).name for key in told if store.has(key))
    for number, name in enumerate(names):
        store.write(keys.node(name), _Node(node_rank=number))
    store.write(keys.NODES, _Nodes(count=len(names)))

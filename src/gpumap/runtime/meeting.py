"""Where the ranks of one session meet."""

import os
import socket
from collections.abc import Sequence

from gpumap.mapping.launch import Launch
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.procfs import pid_space
from gpumap.rendezvous.rendezvous import Rendezvous, meet, meet_in_group
from gpumap.runtime.session_options import SessionOptions

__all__ = ["Meeting", "node_of", "peers_of", "unplaced"]

# Enough for any machine; a rehearsal may pretend more ranks on one.
_MOST_NEIGHBOURS = 256


class Meeting:
    """Where the ranks of one session meet; opened once, when it is first needed."""

    def __init__(
        self, options: SessionOptions, launch: Launch, *, adopted: bool
    ) -> None:
        """Prepare; adopted: a process group exists already, whose store is used."""
        self._options = options
        self._launch = launch
        self._adopted = adopted
        self._rendezvous: Rendezvous | None = None

    @property
    def is_open(self) -> bool:
        """Whether this rank has come there already."""
        return self._rendezvous is not None

    def opened(self, seconds: float) -> Rendezvous:
        """Return the session's part of the store, within so many seconds."""
        if self._rendezvous is None:
            self._rendezvous = (
                meet_in_group()
                if self._adopted
                else meet(self._launch, seconds, self._options.environ)
            )
        return self._rendezvous

    def peers(self, me: Member, seconds: float) -> Peers:
        """Return all ranks, on a new connection."""
        return peers_of(self.opened(seconds), self._launch, me, seconds)


def node_of(launch: Launch) -> int | None:
    """Return this node's rank, if it is certain."""
    return 0 if launch.one_node else launch.node_rank


def unplaced(launch: Launch) -> Member:
    """Return this process as it tells the others of itself before it has a device."""
    return Member(
        rank=launch.rank,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        device="",
        pid_space=pid_space(),
    )


def peers_of(
    rendezvous: Rendezvous, launch: Launch, me: Member, patience: float
) -> Peers:
    """Return all ranks, on a new connection, as Rendezvous.connect opens it."""
    return Peers(
        store=rendezvous.connect(patience),
        me=me,
        world_size=launch.world_size,
        host=rendezvous.host,
        here=_neighbours_of(launch),
    )


def _neighbours_of(launch: Launch) -> Sequence[int]:
    """Return the ranks of this node, as far as they are known."""
    if launch.node_ranks is not None:
        return launch.node_ranks[:_MOST_NEIGHBOURS]
    here = min(launch.world_size, _MOST_NEIGHBOURS)
    return range(here) if launch.one_node else (launch.rank,)

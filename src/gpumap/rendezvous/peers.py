"""All ranks of a session, and the store by which one of them reaches the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpumap.mapping.launch import Launch
from gpumap.rendezvous import keys
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.session_store import SessionStore

__all__ = ["Peers", "neighbours_of"]

# Enough for any machine; a rehearsal may pretend more ranks on one.
_MOST_NEIGHBOURS = 256


@dataclass(frozen=True)
class Peers:
    """All ranks of a session, this one included.

    Attributes:
        store: The session's keys, on a connection of this rank.
        me: This rank, as it describes itself to the others.
        world_size: Number of ranks.
        host: The rank that hosts the store; None if no rank does.
        here: The ranks of this node, as far as known.
    """

    store: SessionStore
    me: Member
    world_size: int
    host: int | None = None
    here: Sequence[int] = ()

    @property
    def i_host(self) -> bool:
        """Whether this rank hosts the store, and so must leave last."""
        return self.host == self.me.rank

    def member(self, rank: int) -> Member:
        """Return the member of a rank that has come to the store."""
        return self.store.read(keys.rank(rank), Member)

    def without(self, key: keys.OfRank) -> Iterator[int]:
        """Return the ranks that have not written their key of this kind, in order."""
        return (n for n in range(self.world_size) if not self.store.has(key(n)))

    def count(self, counter: str, expected: int, complete: str) -> None:
        """Count this rank; if it is the last one expected, write the key `complete`."""
        if self.store.count(counter) == expected:
            self.store.write(complete, self.me)


def neighbours_of(launch: Launch) -> Sequence[int]:
    """Return the ranks of this node, as far as they are known."""
    if launch.node_ranks is not None:
        return launch.node_ranks[:_MOST_NEIGHBOURS]
    here = min(launch.world_size, _MOST_NEIGHBOURS)
    return range(here) if launch.one_node else (launch.rank,)

"""What happens in a session that all ranks must hear of, in one order for all.

news/N      compare_set: the N-th entry; each kind is written once
ended/R     set: rank R has come to its end
ended       add: how many have
answer/R    set: what rank R was doing when it was asked
answers     add: how many have answered
answered    set: all have
heard       add: how many know the outcome
all heard   set: all do
left        add: how many have closed their group after the outcome
bye         add: how many need the store no more
all gone    set: all but its host
"""

from typing import Literal

from gpumap.mapping.base import FrozenModel
from gpumap.rendezvous.failures import Fault
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.session_store import SessionStore

__all__ = ["Entry", "Journal", "key_of"]


class Entry(FrozenModel):
    """One entry of the journal.

    Attributes:
        kind: "end": the first rank has come to its end. "inquiry": one asks what all
            are doing. "outcome": how the body ended, for all. "closed": all have closed
            their group, or one could not.
        member: Who wrote it.
        fault: What failed, if anything did.
    """

    kind: Literal["end", "inquiry", "outcome", "closed"]
    member: Member
    fault: Fault | None = None


class Journal:
    """The entries of one session, in the order in which they were written."""

    def __init__(self, board: SessionStore) -> None:
        """Write to this board."""
        self._board = board

    def append(self, entry: Entry) -> Entry:
        """Write an entry, unless there is one of its kind; return which there is."""
        number = 1
        while True:
            held = self._board.claim(key_of(number), entry)
            if held == entry or held.kind == entry.kind:
                return held
            number += 1

    def find(self, kind: str) -> Entry | None:
        """Return the entry of a kind, if it was written."""
        number = 1
        while self._board.has(key_of(number)):
            entry = self._board.read(key_of(number), Entry)
            if entry.kind == kind:
                return entry
            number += 1
        return None


def key_of(number: int) -> str:
    """Return the key of the journal's n-th entry, from 1."""
    return f"news/{number}"

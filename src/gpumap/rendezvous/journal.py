"""The journal of a session: events that all ranks read in the same order."""

from typing import Literal

from gpumap.mapping.base import FrozenModel
from gpumap.rendezvous import keys
from gpumap.rendezvous.failures import Fault
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.session_store import SessionStore

__all__ = ["Entry", "Journal"]


class Entry(FrozenModel):
    """One entry of the journal.

    Attributes:
        kind: "end": the first rank has finished. "inquiry": a rank asks what all are
            doing. "outcome": how the body ended, for all ranks. "closed": all have
            closed their group, or one could not.
        member: The rank that wrote it.
        fault: What failed, if anything did.
    """

    kind: Literal["end", "inquiry", "outcome", "closed"]
    member: Member
    fault: Fault | None = None


class Journal:
    """The entries of one session, in the order in which they were written."""

    def __init__(self, store: SessionStore) -> None:
        """Use this store."""
        self._store = store

    def append(self, entry: Entry) -> Entry:
        """Write an entry, or return the one of its kind that exists already."""
        number = 1
        while True:
            held = self._store.claim(keys.news(number), entry)
            if held == entry or held.kind == entry.kind:
                return held
            number += 1

    def find(self, kind: str) -> Entry | None:
        """Return the entry of a kind; None if there is none."""
        number = 1
        while self._store.has(keys.news(number)):
            entry = self._store.read(keys.news(number), Entry)
            if entry.kind == kind:
                return entry
            number += 1
        return None

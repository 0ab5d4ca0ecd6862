"""Finding the rank that failed first, if no rank has reported a failure."""

from collections.abc import Iterable, Sequence
from itertools import islice

from gpumap.rendezvous import keys
from gpumap.rendezvous.failures import Answer, Fault, gone, late, uneven, unheard
from gpumap.rendezvous.journal import Entry, Journal
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.peers import Peers
from gpumap.runtime.listening import Listener, Watched
from gpumap.time_limits import DOING, OUTCOME

__all__ = ["Diagnosis"]

_MOST_NAMED = 20


class Diagnosis:
    """Finds the first failure by asking all ranks what they are doing."""

    def __init__(
        self,
        peers: Peers,
        neighbours: Sequence[Member],
        listener: Listener,
        group: Watched,
    ) -> None:
        """Take the peers whose connection is used, and the listener for answers."""
        self._peers = peers
        self._neighbours = neighbours
        self._listener = listener
        self._group = group

    def first_fault(self) -> Fault | None:
        """Return the fault that made this rank fail; None if it seems to be its own.

        If several ranks ask, the first one finds the fault, and the others wait for it.

        Raises:
            StoreLostError: The store does not answer.
        """
        dead = [m for m in self._neighbours if m.is_gone]
        if dead:
            return gone(dead[0])
        mine_to_find = self.ask_all() == self._peers.me
        outcome = self._listener.wait_for("outcome", 0 if mine_to_find else OUTCOME)
        if outcome is not None and outcome.fault is not None:
            return outcome.fault
        silent = self.members(self._peers.without(keys.answer))
        if silent:
            return unheard(sorted(silent, key=lambda m: not m.is_halted))
        return self._slowest()

    def ask_all(self) -> Member:
        """Have all ranks write what they are doing; return whichever asked first."""
        entry = Entry(kind="inquiry", member=self._peers.me)
        inquiry = Journal(self._peers.store).append(entry)
        if inquiry.member == self._peers.me:
            self._peers.store.comes(keys.ANSWERED, DOING)
        return inquiry.member

    def answer_of(self, rank: int) -> Answer:
        """Return what a rank was doing; an empty answer where it gave none."""
        key, store = keys.answer(rank), self._peers.store
        return store.read(key, Answer) if store.has(key) else Answer()

    def members(self, ranks: Iterable[int]) -> list[Member]:
        """Return the members of these ranks, or of the first twenty of them."""
        return [self._peers.member(rank) for rank in islice(ranks, _MOST_NAMED)]

    def _slowest(self) -> Fault | None:
        """Return the fault of ranks with fewer collectives than this one, if any."""
        mine = self._group.doing()
        behind: list[tuple[Member, Answer]] = []
        for rank in range(self._peers.world_size):
            answer = self.answer_of(rank)
            if answer.made is None or mine.made is None:
                continue
            if answer.made < mine.made and len(behind) < _MOST_NAMED:
                behind.append((self._peers.member(rank), answer))
        for member, answer in behind:
            if answer.ended:
                return uneven(member, answer, self._peers.me, mine)
        return late(behind, self._peers.me, mine) if behind else None

"""One rank goes first, and the others wait for it by the store: no collective."""

import logging
from collections.abc import Callable
from contextlib import closing, suppress
from typing import NoReturn, TypeVar

from gpumap.errors import RollCallError, SessionError
from gpumap.mapping.base import FrozenModel
from gpumap.rendezvous import keys
from gpumap.rendezvous.failures import Fault, gone, own
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.messages import Reminder
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.runtime.shutdown import Shutdown
from gpumap.runtime.startup import Started
from gpumap.time_limits import ANY_ANSWER, DOING

__all__ = ["Turn"]

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Done(FrozenModel):
    """That the first rank has left its block, and how.

    Attributes:
        fault: Its failure, if the block raised.
    """

    fault: Fault | None = None


class Turn:
    """One use of rank_zero_first(), by one of the ranks concerned."""

    def __init__(
        self,
        started: Started,
        ending: Shutdown,
        *,
        name: str,
        first: int | None,
        who: str,
    ) -> None:
        """Describe the turn.

        Args:
            started: This rank, with its way to the store.
            ending: Where this rank hears of other ranks' failures.
            name: The turn's keys begin with it, on all ranks concerned.
            first: The rank that goes first, if this one knows it.
            who: It, as text.
        """
        self._started = started
        self._ending = ending
        self._begun, self._done = f"{name}/begun", f"{name}/done"
        self._first = first
        self._who = who
        self._me = started.me

    def begin(self) -> None:
        """Go first.

        Raises:
            SessionError: The store does not answer.
        """
        self._say(self._begun, self._me)

    def end(self, error: BaseException | None) -> None:
        """Tell the others that this rank's block has ended, or which error it raised.

        Raises:
            SessionError: The store does not answer, and the block raised nothing.
        """
        if error is None:
            self._say(self._done, _Done())
            return
        with suppress(SessionError):
            self._say(self._done, _Done(fault=own(self._me, error)))

    def wait(self, seconds: float) -> None:
        """Return once the first rank has left its block.

        Raises:
            SessionError: Its block raised, it died, or it has not left in time; or
                another rank has failed meanwhile.
        """
        reminder = Reminder()

        def look(peers: Peers) -> None:
            if fault := self._ending.heard():
                self._raise(fault)
            first = self._member(peers)
            if first is not None and first.is_gone:
                self._raise(gone(first))
            # Who has left that block comes to its end, too: hence in this order.
            ended = first is not None and peers.store.has(keys.ended(first.rank))
            if first is not None and ended and not peers.store.has(self._done):
                self._raise(self._never(first))
            if reminder.due():
                log.info("rank %d waits for %s to go first", self._me.rank, self._who)

        def wait(peers: Peers) -> _Done:
            done = peers.store.wait(self._done, _Done, seconds, lambda: look(peers))
            return done or _Done(fault=self._late(peers, seconds))

        if fault := self._ask(ANY_ANSWER, wait).fault:
            self._raise(fault)

    def _member(self, peers: Peers) -> Member | None:
        """Return the first rank, as soon as it is known here."""
        if self._first is not None:
            return peers.member(self._first)
        if peers.store.has(self._begun):
            return peers.store.read(self._begun, Member)
        return None

    def _never(self, first: Member) -> Fault:
        return Fault(
            text=f"{first}, on {first.device}, has come to its end, and does not go "
            "first any more",
            hint="Every rank calls rank_zero_first() equally often.",
            ranks=(first.rank,),
        )

    def _late(self, peers: Peers, seconds: float) -> Fault:
        first = self._member(peers)
        begun = peers.store.has(self._begun)
        return Fault(
            text=f"{first or self._who}, which goes first, "
            f"{'is not done' if begun else 'did not come to it'} within {seconds:g} s",
            hint="See what it does: a collective in the block waits for ranks that "
            "wait here. timeout=… gives it more time.",
            ranks=() if first is None else (first.rank,),
        )

    def _raise(self, fault: Fault) -> NoReturn:
        seen = f"Rank {self._me.rank} waited for {self._who} to go first."
        raise SessionError(f"{fault.text}.", seen, fault.hint, fault.ranks)

    def _say(self, key: str, value: FrozenModel) -> None:
        self._ask(DOING, lambda peers: peers.store.write(key, value))

    def _ask(self, patience: float, call: Callable[[Peers], T]) -> T:
        """Ask the store, on a connection of its own."""
        try:
            peers = self._started.peers(patience)
            with closing(peers.store):
                return call(peers)
        except (StoreLostError, RollCallError) as error:
            lost = self._ending.lost()
            raise SessionError(
                f"{lost.text}.", f"{error}", lost.hint, lost.ranks
            ) from None

"""Closing a session: together after success, else naming the first failure."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress

import torch.distributed as dist

from gpumap.errors import RollCallError, SessionError
from gpumap.notes import note
from gpumap.rendezvous import keys
from gpumap.rendezvous.failures import (
    Answer,
    Fault,
    host_lost,
    missing_at_end,
    own,
    too_long,
)
from gpumap.rendezvous.journal import Entry, Journal
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.messages import Reminder, described
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.runtime.block import at_exit
from gpumap.runtime.diagnosis import Diagnosis
from gpumap.runtime.listening import Listener
from gpumap.runtime.process_group import ProcessGroup
from gpumap.runtime.session_options import SessionOptions
from gpumap.runtime.startup import Started
from gpumap.time_limits import (
    CLOSE_GROUPS,
    DOING,
    HOST_LOOKS,
    HOST_STAYS,
    HOST_STAYS_AT_EXIT,
    LOOK_AFTER_OTHERS,
    LOOK_FOR_LATE,
)

__all__ = ["Alone", "Shutdown"]

log = logging.getLogger(__name__)


class Alone:
    """The way out of a session in a world of one."""

    def __init__(self, me: Member) -> None:
        """Take this rank's description, for notes on errors."""
        self._me = me

    def meet(self) -> None:
        """Do nothing: there are no other ranks."""

    def part(self) -> None:
        """Do nothing: there are no other ranks."""

    def fail(self, error: BaseException) -> BaseException:
        """Note on an error which process raised it; return the error."""
        note(error, f"gpumap: raised on {self._me} of 1, {self._me.device}")
        return error

    def last_words(self, error: BaseException) -> None:
        """Do nothing: there are no other ranks."""

    def stay(self) -> None:
        """Do nothing: there are no other ranks."""

    def close(self) -> None:
        """Do nothing: there is no connection."""


class Shutdown:
    """One rank's way out of a session with several ranks.

    After success a rank calls meet() when its body has ended, and part() when its group
    is closed; after an error, it calls fail() instead, at any time.
    """

    def __init__(
        self, started: Started, options: SessionOptions, group: ProcessGroup
    ) -> None:
        """Start to listen to the other ranks.

        Raises:
            StoreLostError: The store does not answer.
        """
        self._started = started
        self._peers = started.peers(group.seconds)
        self._me = started.me
        self._neighbours = started.neighbours
        self._group = group
        self._end_seconds = options.end_seconds
        self._journal = Journal(self._peers.store)
        self._told: SessionError | None = None
        self._listener = Listener(
            lambda: started.peers(DOING),
            started.neighbours,
            group,
            on_lost=self._leave_collectives,
        )
        self._diagnosis = self._diagnosis_by(self._peers)
        if group.late_after is not None:
            threading.Thread(
                target=self._look_for_late, name="gpumap: lookout", daemon=True
            ).start()

    def meet(self) -> None:
        """Return once every rank has come to the end of its body.

        Raises:
            SessionError: Another rank failed, died, or did not come in time.
        """
        self._listener.at_end = True
        seen = "This rank had come to its end."
        try:
            self._peers.store.write(keys.ended(self._me.rank), Answer(ended=True))
            count = self._peers.store.count(keys.ENDED)
            if count == self._peers.world_size:
                self._journal.append(Entry(kind="outcome", member=self._me))
            elif count == 1:
                self._journal.append(Entry(kind="end", member=self._me))
            fault = self._outcome().fault
        except StoreLostError as error:
            fault = self._known_fault()
            if fault is None:
                fault, seen = self.lost(), f"{error}. {seen}"
        self._raise(fault, seen)

    def part(self) -> None:
        """Return once every rank has closed its group, or after ten seconds.

        Raises:
            SessionError: Another rank could not close its group.
        """
        with suppress(StoreLostError):
            if self._peers.store.count(keys.LEFT) == self._peers.world_size:
                self._journal.append(Entry(kind="closed", member=self._me))
            closed = self._wait_for_closed()
            if closed is not None:
                self._raise(closed.fault, "Training had finished, and this rank too.")
            others = self._peers.world_size - 1
            if self._peers.i_host:
                self._stay(keys.BYE, others, keys.ALL_GONE, CLOSE_GROUPS)
            else:
                self._peers.count(keys.BYE, others, keys.ALL_GONE)

    def fail(self, error: BaseException) -> BaseException:
        """Tell the other ranks of an error; return the error to leave with.

        That is the same error, with notes, if this rank caused it; if it only follows
        from another failure, a SessionError that names the first failure.
        """
        if error is self._told:
            return error
        self._listener.has_failed = True
        self._group.leaving.set()
        note(error, f"gpumap: raised on {self._described(self._me)}")
        reported = _reported(error)
        suffers = isinstance(error, dist.DistBackendError) or (
            isinstance(error, RuntimeError | SessionError)
            and reported is None
            and not self._group.intact()
        )
        if not suffers:
            self._group.begin_abort()
        fault = self._first_fault(error, suffers=suffers)
        if suffers and fault != own(self._me, error):
            had = f"{self._described(self._me)}, had {described(error).splitlines()[0]}"
            return SessionError(f"{fault.text}.", had, fault.hint, fault.ranks)
        says_so = reported is not None and reported.text == fault.text
        if self._me.rank not in fault.ranks and not says_so:
            note(error, f"gpumap: {fault.text}")
        return error

    @property
    def seconds(self) -> float:
        """How long a collective may take."""
        return self._group.seconds

    def heard(self) -> Fault | None:
        """Return the first failure of a rank, if this one knows it."""
        return self._known_fault()

    def telling(self, tell: Callable[[Fault], None]) -> AbstractContextManager[None]:
        """Call a function if another rank fails, or comes to its end, in the block."""
        return self._listener.telling(tell)

    def lost(self) -> Fault:
        """Return the fault of a store that does not answer."""
        return host_lost(self._started.host, self._started.rendezvous.keeper)

    def _leave_collectives(self) -> None:
        """Leave the group: without the store, no missing rank can be reported."""
        log.error("the session ends: %s.", self.lost().text)
        self._group.release()

    def _look_for_late(self) -> None:
        """Check at intervals, without asking others, if this rank waits too long."""
        pause = min(LOOK_FOR_LATE, (self._group.late_after or LOOK_FOR_LATE) / 4)
        while not self._group.leaving.wait(pause):
            if self._group.is_late() and self._tell_who_is_late():
                return

    def _tell_who_is_late(self) -> bool:
        """Tell all ranks why this one waits too long; return whether it still does."""
        try:
            peers = self._started.peers(DOING)
            with closing(peers.store):
                fault = self._diagnosis_by(peers).first_fault()
                if not self._group.is_late():
                    return False
                fault = fault or too_long(self._me, self._group.doing())
                entry = Entry(kind="outcome", member=self._me, fault=fault)
                Journal(peers.store).append(entry)
        except StoreLostError as error:
            self._listener.lose(error)
        return True

    def _diagnosis_by(self, peers: Peers) -> Diagnosis:
        return Diagnosis(peers, self._neighbours, self._listener, self._group)

    def last_words(self, error: BaseException) -> None:
        """Tell the others of an error from another thread than the main one."""
        with suppress(StoreLostError, RollCallError):
            store = self._started.peers(DOING).store
            entry = Entry(kind="outcome", member=self._me, fault=own(self._me, error))
            Journal(store).append(entry)
            if self._peers.i_host:
                store.comes(keys.ALL_HEARD, HOST_STAYS)

    def stay(self) -> None:
        """Keep a store that this rank hosts until the others know the outcome.

        The wait is short, since an error is about to be raised, and goes on when Python
        ends.
        """
        if self._stay_until_heard(HOST_STAYS):
            self.close()
        else:
            self._listener.stop()
            at_exit(self._stay_at_exit)

    def _stay_at_exit(self) -> None:
        self._stay_until_heard(HOST_STAYS_AT_EXIT)
        self._peers.store.close()

    def _stay_until_heard(self, seconds: float) -> bool:
        world_size = self._peers.world_size
        return self._stay(keys.HEARD, world_size, keys.ALL_HEARD, seconds)

    def _stay(self, counter: str, expected: int, complete: str, seconds: float) -> bool:
        """Host the store until as many ranks as expected have counted or are dead.

        Return whether they have; also True if this rank does not host the store.
        """
        deadline = time.monotonic() + seconds
        with suppress(StoreLostError):
            while self._peers.i_host and time.monotonic() < deadline:
                dead = sum(member.is_gone for member in self._neighbours)
                if self._peers.store.count(counter, 0) + dead >= expected:
                    return True
                self._peers.store.comes(complete, HOST_LOOKS)
        return not self._peers.i_host

    def close(self) -> None:
        """End the listener and the connections to the store."""
        self._listener.stop()
        self._peers.store.close()

    def _outcome(self) -> Entry:
        """Wait for the entry that tells all ranks how the session ended; return it."""
        reminder = Reminder()
        deadline = reminder.began + self._end_seconds
        while (left := deadline - time.monotonic()) > 0:
            entry = self._listener.wait_for("outcome", min(left, LOOK_AFTER_OTHERS))
            if entry is not None:
                return entry
            if self._listener.lost is not None:
                raise self._listener.lost
            if reminder.due():
                log.info(
                    "rank %d has come to its end, and waits for %s, %.0f s at most",
                    self._me.rank,
                    ", ".join(map(str, self._awaited())),
                    left,
                )
        awaited = self._awaited()
        self._diagnosis.ask_all()
        answers = [self._diagnosis.answer_of(member.rank) for member in awaited]
        fault = missing_at_end(
            list(zip(awaited, answers, strict=True)), self._me, self._end_seconds
        )
        return self._journal.append(Entry(kind="outcome", member=self._me, fault=fault))

    def _wait_for_closed(self) -> Entry | None:
        deadline = time.monotonic() + CLOSE_GROUPS
        while time.monotonic() < deadline and self._listener.lost is None:
            entry = self._listener.wait_for("closed", LOOK_AFTER_OTHERS)
            if entry is not None or any(n.is_gone for n in self._neighbours):
                return entry
        log.warning("rank %d leaves before the others have closed.", self._me.rank)
        return None

    def _first_fault(self, error: BaseException, *, suffers: bool) -> Fault:
        """Return the first failure; tell the other ranks unless they know it."""
        if known := self._known_fault():
            return known
        mine = _reported(error) or own(self._me, error)
        kind = "closed" if self._listener.wait_for("outcome", 0) else "outcome"
        try:
            fault = (self._diagnosis.first_fault() if suffers else None) or mine
            entry = Entry(kind=kind, member=self._me, fault=fault)
            held = self._journal.append(entry) if suffers else self._tell(entry)
        except (StoreLostError, RollCallError) as failure:
            # The store's host leaves once all ranks know the outcome, this one too.
            if known := self._known_fault():
                return known
            lost = self.lost()
            note(error, f"gpumap: {lost.text}: {failure}")
            return lost if suffers else mine
        return held.fault or fault

    def _tell(self, entry: Entry) -> Entry:
        """Append to the journal, on a connection that does not wait long for the store.

        So a host of the store that is stopped does not hold back this rank's traceback.
        """
        peers = self._started.peers(DOING)
        with closing(peers.store):
            return Journal(peers.store).append(entry)

    def _known_fault(self, seconds: float = 0.0) -> Fault | None:
        """Return the first failure, if it becomes known within so many seconds."""
        outcome = self._listener.wait_for("outcome", seconds)
        return None if outcome is None else outcome.fault

    def _awaited(self) -> list[Member]:
        """Return the ranks that have not come to the end, the first twenty at most."""
        return self._diagnosis.members(self._peers.without(keys.ended))

    def _raise(self, fault: Fault | None, seen: str) -> None:
        if fault is not None:
            self._told = SessionError(f"{fault.text}.", seen, fault.hint, fault.ranks)
            raise self._told

    def _described(self, member: Member) -> str:
        return f"{member} of {self._peers.world_size}, {member.device}"


def _reported(error: BaseException) -> Fault | None:
    """Return the failure of certain ranks that an error of gpumap's tells, if any."""
    if isinstance(error, SessionError | RollCallError) and error.ranks:
        text = error.happened.removesuffix(".")
        return Fault(text=text, hint=error.hint, ranks=error.ranks)
    return None

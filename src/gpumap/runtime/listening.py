"""The thread by which a rank learns of the others' failures while its body runs."""

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Protocol
from weakref import WeakSet

from gpumap.errors import GpumapError
from gpumap.rendezvous import keys
from gpumap.rendezvous.failures import Answer, Fault, gone, uneven
from gpumap.rendezvous.journal import Entry, Journal
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.messages import first_line
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.procfs import end_of
from gpumap.rendezvous.store_client import StoreLostError, readable
from gpumap.runtime.collectives import begun, is_standing
from gpumap.time_limits import LISTENER_STOPS, LOOK_AT_COLLECTIVES

__all__ = ["Listener"]

log = logging.getLogger(__name__)

# How many looks in a row must find that a rank stands in a collective that cannot
# finish.
_LOOKS = 2
# How often a connection that breaks is opened again.
_MOST_CONNECTIONS = 3


class Watched(Protocol):
    """The process group, as far as a listener needs it."""

    @property
    def late_after(self) -> float | None:
        """Seconds after which a collective is late; None if torch ends it by itself."""
        ...

    def doing(self) -> Answer:
        """Return what this rank is doing."""
        ...

    def release(self) -> None:
        """Make the main thread leave a collective that cannot finish."""
        ...


class Listener:
    """A thread that waits for entries in the store, and for neighbours' ends.

    While nothing happens it sends the store no requests. It answers for this rank even
    while the main thread is in a library.

    Attributes:
        lost: The error of the store, once the store does not answer.
        at_end: Whether this rank's body has ended.
        has_failed: Whether this rank leaves with an error already, so that its main
            thread need not be released.
    """

    def __init__(
        self,
        connect: Callable[[], Peers],
        neighbours: Iterable[Member],
        group: Watched,
        *,
        on_lost: Callable[[], object],
    ) -> None:
        """Start the thread, on a separate connection.

        If the store does not answer and torch would not notice, on_lost is called.

        Raises:
            StoreLostError: The store does not answer.
        """
        self._connect = connect
        self._peers = connect()
        self._group = group
        self._on_lost = on_lost
        self._entries: dict[str, Entry] = {}
        self._tell_waiting: Callable[[Fault], None] = _tell_nobody
        self._news = threading.Condition()
        self._next = 1
        self._looks = 0
        self._begun = -1
        self._stopping = False
        self.at_end = False
        self.has_failed = False
        self.lost: StoreLostError | None = None
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._neighbours = {
            file: n
            for n in neighbours
            if (file := end_of(n.pid, n.pid_space)) is not None
        }
        self._thread = threading.Thread(
            target=self._run, name="gpumap: listener", daemon=True
        )
        _listeners.add(self)
        self._thread.start()

    def wait_for(self, kind: str, seconds: float) -> Entry | None:
        """Return the entry of a kind; None at the time limit, or without a store."""
        with self._news:
            self._news.wait_for(lambda: kind in self._entries or self.lost, seconds)
            return self._entries.get(kind)

    @contextmanager
    def telling(self, tell: Callable[[Fault], None]) -> Generator[None, None, None]:
        """Call a function if another rank fails, or comes to its end, in the block.

        It is called at once if one has already, and otherwise in the listener's thread.
        """
        with self._news:
            self._tell_waiting = tell
            heard = list(self._entries.values())
        try:
            for entry in heard:
                self._pass_on(entry)
            yield
        finally:
            self._tell_waiting = _tell_nobody

    def wake(self) -> None:
        """Wake the thread, so that it looks at what this rank is doing."""
        with suppress(OSError):
            os.write(self._waker, b"\0")

    def lose(self, why: StoreLostError) -> None:
        """Note that the store does not answer."""
        with self._news:
            self.lost = why
            self._news.notify_all()
        if self._group.late_after is not None and not (self.at_end or self.has_failed):
            self._on_lost()

    def stop(self) -> None:
        """End the thread and its connection."""
        self._stopping = True
        self.wake()
        self._thread.join(LISTENER_STOPS)
        self._thread.join(LOOK_AT_COLLECTIVES)
        self.close()

    def close(self) -> None:
        """Close the descriptors; in a child that was forked, the parent's stay open."""
        _listeners.discard(self)
        for file in (self._wake, self._waker, *self._neighbours):
            with suppress(OSError):
                os.close(file)
        self._neighbours = {}
        self._wake = self._waker = -1
        self._peers.store.close()
        # Whose call it is refers to this one: together they would keep the store until
        # a collection, which may come in a forked child, where torch cannot end it.
        self._on_lost = _do_nothing

    def _run(self) -> None:
        lost = StoreLostError()
        for _ in range(_MOST_CONNECTIONS):
            try:
                while not self._stopping:
                    self._listen_once()
            except (StoreLostError, GpumapError, OSError) as error:
                lost = StoreLostError(first_line(error))
            if self._stopping:
                return
            try:
                self._peers = self._connect()
            except StoreLostError:
                break
        self.lose(lost)

    def _listen_once(self) -> None:
        looks = "end" in self._entries and "outcome" not in self._entries
        others = [self._wake, *self._neighbours]
        seconds = LOOK_AT_COLLECTIVES if looks else None
        if self._peers.store.comes(keys.news(self._next), seconds, others):
            entry = self._peers.store.read(keys.news(self._next), Entry)
            self._next += 1
            self._hear(entry)
            return
        for file in readable(others, 0):
            if file == self._wake:
                os.read(self._wake, 4096)
            elif neighbour := self._neighbours.pop(file, None):
                os.close(file)
                self._hear_end_of(neighbour)
        if looks and self.at_end:
            self._say_how_far()
        elif looks:
            self._look_how_far()

    def _hear(self, entry: Entry) -> None:
        with self._news:
            self._entries[entry.kind] = entry
            self._news.notify_all()
        if entry.kind == "inquiry":
            key = keys.answer(self._peers.me.rank)
            self._peers.store.write(key, self._group.doing())
            self._peers.count(keys.ANSWERS, self._peers.world_size, keys.ANSWERED)
        if entry.kind == "outcome":
            self._peers.count(keys.HEARD, self._peers.world_size, keys.ALL_HEARD)
            if entry.fault is not None and not self.has_failed:
                log.error("the session ends: %s.", entry.fault.text)
                self._group.release()
        self._pass_on(entry)

    def _pass_on(self, entry: Entry) -> None:
        """Tell who waits for other ranks of one that will not come."""
        if entry.kind == "end":
            self._tell_waiting(_came_to_its_end(entry.member))
        elif entry.fault is not None:
            self._tell_waiting(entry.fault)

    def _hear_end_of(self, neighbour: Member) -> None:
        """Tell all ranks if a neighbour's process ended before its body did."""
        if "outcome" not in self._entries and not self._peers.store.has(
            keys.ended(neighbour.rank)
        ):
            self._tell(gone(neighbour))

    def _say_how_far(self) -> None:
        """Publish the progress of this ended rank, where a user's thread may go on."""
        if self._begun != (now := begun()):
            self._begun = now
            mine = self._group.doing()
            told = mine.model_copy(update={"ended": True})
            self._peers.store.write(keys.ended(self._peers.me.rank), told)

    def _look_how_far(self) -> None:
        """Tell all ranks if an ended rank will not join this one's collective."""
        first = self._entries["end"].member
        if not is_standing():
            self._looks = 0
            return
        mine = self._group.doing()
        theirs = self._peers.store.read(keys.ended(first.rank), Answer)
        stuck = (
            mine.stands_in is not None
            and theirs.made is not None
            and mine.number > theirs.made
        )
        self._looks = self._looks + 1 if stuck else 0
        if self._looks == _LOOKS:
            self._tell(uneven(first, theirs, self._peers.me, mine))

    def _tell(self, fault: Fault) -> None:
        Journal(self._peers.store).append(
            Entry(kind="outcome", member=self._peers.me, fault=fault)
        )


def _came_to_its_end(member: Member) -> Fault:
    """Return the fault of a rank that has left its block before it was waited for."""
    text = f"{member}, on {member.device}, has come to its end"
    return Fault(text=text, ranks=(member.rank,))


def _do_nothing() -> None:
    """Do nothing: there is no store to lose any more."""


def _tell_nobody(_: Fault) -> None:
    """Do nothing: nobody waits for other ranks."""


_listeners: WeakSet[Listener] = WeakSet()


def _close_all() -> None:
    """Close a parent's descriptors in a child, where no thread listens."""
    for listener in list(_listeners):
        listener.close()


os.register_at_fork(after_in_child=_close_all)

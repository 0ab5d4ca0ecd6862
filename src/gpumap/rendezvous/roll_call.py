"""Every rank says who it is and what it claims; all agree, or all fail alike."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from gpumap.errors import RollCallError
from gpumap.rendezvous import keys
from gpumap.rendezvous.members import Member, Signed, Stranger, Terms, named
from gpumap.rendezvous.messages import Reminder
from gpumap.rendezvous.model_digest import Model, difference, model_of
from gpumap.rendezvous.procfs import is_gone, is_halted
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.verdict import (
    Verdict,
    cannot_start,
    claimed_twice,
    disagreement,
    gone,
    machines_differ,
    missing,
    models_differ,
    one_device,
    took_too_long,
)
from gpumap.time_limits import ASK_EACH_RANK, HOST_STAYS_AT_START, VERDICT_IS_WRITTEN

__all__ = ["answer", "roll_call"]

log = logging.getLogger(__name__)

_MOST_NAMED = 20


def roll_call(
    board: SessionStore,
    me: Member,
    terms: Terms,
    seconds: float,
    *,
    hosted: bool,
    rows: Sequence[str] = (),
    neighbours: Iterable[int] = (),
    elsewhere: bool = False,
    node: int | None = None,
    remark: str = "",
) -> None:
    """Return once every rank is there, each with its own rank and its own device.

    rows are the model's, where there is one; neighbours are the ranks of this node,
    whose processes this one looks after while it waits. Where no rank hosts the store,
    it is elsewhere, and the first rank to wait long says who is awaited. node is this
    rank's, where its number is known. remark is why ranks may be missing, where this
    one has an idea.

    Raises:
        RollCallError: A rank or a device is claimed twice, ranks disagree on the terms,
            a rank could not start or died, or ranks are missing when the seconds have
            passed. Every rank that is there raises the same.
    """
    deadline = time.monotonic() + seconds
    wrong = _wrong(board, me, terms, rows, node)
    if wrong is not None and board.claim(keys.VERDICT, wrong).error is None:
        # The others have started without this process: it was one too many.
        raise RollCallError(wrong.happened, wrong.seen, wrong.hint, wrong.ranks)
    if wrong is None and board.count(keys.PRESENT) == terms.world_size:
        board.claim(keys.VERDICT, Verdict())

    def tells() -> bool:
        return hosted or (elsewhere and board.claim(keys.SPEAKER, me) == me)

    watch = _Watch(
        board, me, terms.world_size, deadline, neighbours, tells=tells, remark=remark
    )
    left = max(deadline - time.monotonic(), 0.0)
    verdict = board.wait(keys.VERDICT, Verdict, left, watch.look)
    if verdict is None:
        verdict = _settle(board, me, terms.world_size, seconds, remark)
    if verdict.error is not None:
        others = terms.world_size - 1 - verdict.absent
        stay = deadline - time.monotonic()
        _let_others_hear(board, others, stay, hosted=hosted)
        raise verdict.error


def answer(
    board: SessionStore,
    rank: int,
    world_size: int,
    error: BaseException,
    seconds: float,
    *,
    hosted: bool,
) -> None:
    """Tell the others that this rank cannot start, so that nobody waits for it."""
    board.claim(keys.VERDICT, cannot_start(rank, error))
    _let_others_hear(board, world_size - 1, seconds, hosted=hosted)


def _wrong(
    board: SessionStore, me: Member, terms: Terms, rows: Sequence[str], node: int | None
) -> Verdict | None:
    """Claim this rank and its device; return what stands against it."""
    holder = board.claim(keys.rank(me.rank), me)
    if holder != me:
        return claimed_twice(holder, me)
    first = board.claim(keys.TERMS, Signed(member=me, terms=terms))
    if first.member == me and rows:
        board.write(keys.MODEL, model_of(rows))
    if names := terms.different(first.terms):
        return disagreement(first, me, terms, names[0])
    if first.terms.model != terms.model:
        model = board.wait(keys.MODEL, Model, VERDICT_IS_WRITTEN)
        parts = ("another", "another") if model is None else difference(model, rows)
        return models_differ(first.member, me, parts)
    if me.rehearsal and node is not None:
        other = board.claim(keys.rehearsal(node), me)
        if other.rehearsal != me.rehearsal:
            return machines_differ(other, me)
    if me.identity is None:
        return None
    holder = board.claim(keys.device(me.identity), me)
    return None if holder == me else one_device(holder, me, me.identity.name)


class _Watch:
    """What a rank that waits for the verdict looks after meanwhile."""

    def __init__(
        self,
        board: SessionStore,
        me: Member,
        world_size: int,
        deadline: float,
        neighbours: Iterable[int],
        *,
        tells: Callable[[], bool],
        remark: str,
    ) -> None:
        self._board = board
        self._world_size = world_size
        self._deadline = deadline
        self._unseen = deque(rank for rank in neighbours if rank != me.rank)
        self._seen: list[Member] = []
        self._tells = tells
        self._remark = remark
        self._reminder = Reminder()

    def look(self) -> None:
        """Tell all of a neighbour that has gone; say now and then who is awaited."""
        # Not all at once: a wait asks the store a few times a second at most.
        if self._unseen and self._board.has(keys.rank(self._unseen[0])):
            key = keys.rank(self._unseen.popleft())
            self._seen.append(self._board.read(key, Member))
        self._unseen.rotate(-1)
        for member in self._seen:
            if is_gone(member.pid, member.pid_space):
                self._board.claim(keys.VERDICT, gone(member))
        if self._reminder.due() and self._tells():
            absent, count = _missing(self._board, self._world_size)
            log.warning(
                "%s of %d not here yet; waiting for %.0f s more%s",
                named(absent, count) if count else "the verdict",
                self._world_size,
                max(self._deadline - time.monotonic(), 0.0),
                f". {self._remark}" if self._remark else "",
            )


def _settle(
    board: SessionStore, me: Member, world_size: int, seconds: float, remark: str
) -> Verdict:
    """Name who is missing; one rank counts, the others read what it wrote."""
    if board.claim(keys.SETTLING, me) == me:
        absent, count = _missing(board, world_size)
        if count:
            stranger = _stranger(board, absent[0]) if absent else None
            verdict = missing(absent, count, world_size, seconds, stranger, remark)
            return board.claim(keys.VERDICT, verdict)
        if halted := _halted(board, world_size):
            return board.claim(keys.VERDICT, gone(halted))
    late = board.wait(keys.VERDICT, Verdict, min(seconds, VERDICT_IS_WRITTEN))
    return took_too_long(world_size, seconds) if late is None else late


def _stranger(board: SessionStore, rank: int) -> Stranger | None:
    """Return who came as this rank and left, as of another job."""
    key = keys.stranger(rank)
    return board.read(key, Stranger) if board.has(key) else None


def _missing(board: SessionStore, world_size: int) -> tuple[tuple[int, ...], int]:
    """Return the first ranks that have not come, and how many there are.

    In a large world not all can be asked for, one by one; those that have come are
    counted.
    """
    first: list[int] = []
    deadline = time.monotonic() + ASK_EACH_RANK
    for rank in range(world_size):
        if len(first) == _MOST_NAMED or time.monotonic() > deadline:
            left = world_size - board.count(keys.PRESENT, 0)
            return tuple(first), max(left, len(first))
        if not board.has(keys.rank(rank)):
            first.append(rank)
    return tuple(first), len(first)


def _halted(board: SessionStore, world_size: int) -> Member | None:
    """Return a rank that claimed its device, and ended or was stopped since."""
    deadline = time.monotonic() + ASK_EACH_RANK
    for rank in range(world_size):
        if time.monotonic() > deadline:
            break
        member = board.read(keys.rank(rank), Member)
        if is_halted(member.pid, member.pid_space):
            return member
    return None


def _let_others_hear(
    board: SessionStore, others: int, seconds: float, *, hosted: bool
) -> None:
    """Have others read the verdict before the store goes with its host."""
    if hosted:
        board.comes(keys.ALL_TOLD, min(max(seconds, 1.0), HOST_STAYS_AT_START))
    elif board.count(keys.TOLD) == others:
        board.write(keys.ALL_TOLD, Verdict())

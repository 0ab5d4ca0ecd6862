"""The roll call: ranks state their claims, and all start or all raise one error."""

import logging
import time
from collections import deque
from collections.abc import Sequence

from gpumap.errors import PlacementError, RollCallError
from gpumap.rendezvous import keys
from gpumap.rendezvous.members import Member, Signed, Stranger, Terms, named
from gpumap.rendezvous.messages import Reminder
from gpumap.rendezvous.model_digest import Model, difference, model_of
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.verdict import (
    Verdict,
    cannot_start,
    claimed_twice,
    disagreement,
    gone,
    machines_differ,
    missing,
    models_differ,
    no_split,
    one_device,
    took_too_long,
)
from gpumap.time_limits import ASK_EACH_RANK, HOST_STAYS_AT_START, VERDICT_IS_WRITTEN

__all__ = ["roll_call", "withdraw"]

log = logging.getLogger(__name__)

_MOST_NAMED = 20


def roll_call(
    peers: Peers,
    terms: Terms,
    seconds: float,
    *,
    rows: Sequence[str] = (),
    node: int | None = None,
    known: Sequence[Member] = (),
    remark: str = "",
) -> tuple[int, ...]:
    """Return once every rank is there, each with its own rank and its own device.

    What is returned are the ranks' shares of the batch, if the terms have one to split.

    While it waits, this rank checks that the processes of its node are alive. The
    store's host logs now and then which ranks are missing; if no rank is the host, the
    first rank that has waited long does.

    Args:
        peers: The ranks to wait for.
        terms: What all ranks must have in common.
        seconds: How long to wait.
        rows: The rows of the model, if there is one.
        node: This rank's node_rank, if it is known.
        known: Other ranks of this node whose processes are known already.
        remark: Why ranks may be missing, if this rank can guess.

    Raises:
        RollCallError: A rank or a device is claimed twice, ranks disagree on the terms,
            a rank could not start or died, or ranks are missing when the seconds have
            passed. Every rank that is there raises the same.
    """
    deadline = time.monotonic() + seconds
    store = peers.store
    wrong = _wrong(peers, terms, rows, node)
    if wrong is not None and store.claim(keys.VERDICT, wrong).error is None:
        # The others have started already: this process is one too many.
        raise RollCallError(wrong.happened, wrong.seen, wrong.hint, wrong.ranks)
    if wrong is None and store.count(keys.PRESENT) == peers.world_size:
        store.claim(keys.VERDICT, _go(peers, terms))
    watch = _Watch(peers, known, deadline, remark)
    left = max(deadline - time.monotonic(), 0.0)
    verdict = store.wait(keys.VERDICT, Verdict, left, watch.look)
    if verdict is None:
        verdict = _settle(peers, seconds, remark)
    if verdict.error is not None:
        others = peers.world_size - 1 - verdict.absent
        _let_others_hear(peers, others, deadline - time.monotonic())
        raise verdict.error
    return verdict.shares


def withdraw(peers: Peers, error: BaseException, seconds: float) -> None:
    """Tell the others that this rank cannot start, so that none waits for it."""
    verdict = peers.store.claim(keys.VERDICT, cannot_start(peers.me, error))
    _let_others_hear(peers, peers.world_size - 1 - verdict.absent, seconds)


def _wrong(
    peers: Peers, terms: Terms, rows: Sequence[str], node: int | None
) -> Verdict | None:
    """Claim this rank and its device; return the error if a claim fails."""
    store, me = peers.store, peers.me
    holder = store.claim(keys.rank(me.rank), me)
    if holder != me:
        return claimed_twice(holder, me)
    first = store.claim(keys.TERMS, Signed(member=me, terms=terms))
    if first.member == me and rows:
        store.write(keys.MODEL, model_of(rows))
    if names := terms.different(first.terms):
        return disagreement(first, me, terms, names[0])
    if first.terms.model != terms.model:
        model = store.wait(keys.MODEL, Model, VERDICT_IS_WRITTEN)
        parts = ("another", "another") if model is None else difference(model, rows)
        return models_differ(first.member, me, parts)
    if me.rehearsal and node is not None:
        other = store.claim(keys.rehearsal(node), me)
        if other.rehearsal != me.rehearsal:
            return machines_differ(other, me)
    if me.identity is None:
        return None
    holder = store.claim(keys.device(me.identity), me)
    return None if holder == me else one_device(holder, me, me.identity.name)


def _go(peers: Peers, terms: Terms) -> Verdict:
    """Return the verdict once all ranks have come: go, if the batch can be split."""
    if terms.split is None:
        return Verdict()
    from gpumap.mapping.batches import split_batch  # noqa: PLC0415 - who asks pays

    members = [peers.member(rank) for rank in range(peers.world_size)]
    try:
        shares = split_batch(
            terms.split.batch,
            [1.0 if m.speed is None else m.speed for m in members],
            minimum=terms.split.minimum,
            most=[terms.split.batch if m.most is None else m.most for m in members],
        )
    except PlacementError as error:
        return no_split(error)
    return Verdict(shares=shares)


class _Watch:
    """What a rank does while it waits for the verdict: check neighbours, and log."""

    def __init__(
        self, peers: Peers, known: Sequence[Member], deadline: float, remark: str
    ) -> None:
        self._peers = peers
        self._deadline = deadline
        self._unseen = deque(rank for rank in peers.here if rank != peers.me.rank)
        self._seen = list(known)
        self._remark = remark
        self._reminder = Reminder()

    def look(self) -> None:
        """Report a neighbour whose process is gone; log now and then who is missing."""
        # One neighbour at a time: a wait asks the store a few times a second at most.
        store = self._peers.store
        if self._unseen and store.has(keys.rank(self._unseen[0])):
            self._seen.append(self._peers.member(self._unseen.popleft()))
        self._unseen.rotate(-1)
        for member in self._seen:
            if member.is_gone:
                store.claim(keys.VERDICT, gone(member))
        if self._reminder.due() and self._tells():
            absent, count = _missing(self._peers)
            log.warning(
                "%s of %d not here yet; waiting for %.0f s more%s",
                named(absent, count) if count else "the verdict",
                self._peers.world_size,
                max(self._deadline - time.monotonic(), 0.0),
                f". {self._remark}" if self._remark else "",
            )

    def _tells(self) -> bool:
        """Return whether this rank is the one that logs which ranks are missing."""
        me, host = self._peers.me, self._peers.host
        if host is not None:
            return self._peers.i_host
        return self._peers.store.claim(keys.SPEAKER, me) == me


def _settle(peers: Peers, seconds: float, remark: str) -> Verdict:
    """Return the verdict on missing ranks, which one rank writes for all."""
    store, world_size = peers.store, peers.world_size
    if store.claim(keys.SETTLING, peers.me) == peers.me:
        absent, count = _missing(peers)
        if count:
            stranger = _stranger(peers, absent[0]) if absent else None
            verdict = missing(absent, count, world_size, seconds, stranger, remark)
            return store.claim(keys.VERDICT, verdict)
        if halted := _halted(peers):
            return store.claim(keys.VERDICT, gone(halted))
    late = store.wait(keys.VERDICT, Verdict, min(seconds, VERDICT_IS_WRITTEN))
    return took_too_long(world_size, seconds) if late is None else late


def _stranger(peers: Peers, rank: int) -> Stranger | None:
    """Return the process that came as this rank and left as another job's, if any."""
    key = keys.stranger(rank)
    return peers.store.read(key, Stranger) if peers.store.has(key) else None


def _missing(peers: Peers) -> tuple[tuple[int, ...], int]:
    """Return the first missing ranks, and how many are missing.

    In a large world there is no time to look up each rank; then those that have come
    are counted.
    """
    first: list[int] = []
    deadline = time.monotonic() + ASK_EACH_RANK
    for rank in range(peers.world_size):
        if len(first) == _MOST_NAMED or time.monotonic() > deadline:
            left = peers.world_size - peers.store.count(keys.PRESENT, 0)
            return tuple(first), max(left, len(first))
        if not peers.store.has(keys.rank(rank)):
            first.append(rank)
    return tuple(first), len(first)


def _halted(peers: Peers) -> Member | None:
    """Return a rank that has claimed its device and has since ended or been stopped."""
    deadline = time.monotonic() + ASK_EACH_RANK
    for rank in range(peers.world_size):
        if time.monotonic() > deadline:
            break
        member = peers.member(rank)
        if member.is_halted:
            return member
    return None


def _let_others_hear(peers: Peers, others: int, seconds: float) -> None:
    """Let `others` ranks read the verdict before the store's host exits."""
    if peers.i_host:
        peers.store.comes(keys.ALL_TOLD, min(max(seconds, 1.0), HOST_STAYS_AT_START))
    else:
        peers.count(keys.TOLD, others, keys.ALL_TOLD)

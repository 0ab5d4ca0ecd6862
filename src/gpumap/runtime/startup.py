"""Start of a session: local set-up, rendezvous, roll call."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from gpumap.mapping.launch import Launch
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.model_digest import Likeness
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.rendezvous import Rendezvous
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.runtime.deciding import decision_for
from gpumap.runtime.local_setup import LocalSetup, prepare
from gpumap.runtime.meeting import tell_the_others
from gpumap.runtime.own_member import member_of
from gpumap.runtime.roll import call_the_roll, seconds_left
from gpumap.runtime.session_meeting import SessionMeeting, peers_of
from gpumap.runtime.session_options import SessionOptions

__all__ = ["Started", "start_up"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Started:
    """A rank after the roll call.

    Attributes:
        setup: Its local set-up.
        rendezvous: The session's part of the store.
        me: This rank, as it described itself to the others.
        host: The other rank that hosts the store, if one does.
        neighbours: The other ranks of this node, as far as they are known.
        shares: Each rank's samples of the batch, if the ranks split one.
    """

    setup: LocalSetup
    rendezvous: Rendezvous
    me: Member
    host: Member | None
    neighbours: Sequence[Member]
    shares: tuple[int, ...]

    def peers(self, patience: float) -> Peers:
        """Return all ranks, on a new connection, as Rendezvous.connect opens it."""
        return peers_of(self.rendezvous, self.setup.launch, self.me, patience)


def start_up(
    options: SessionOptions,
    launch: Launch,
    check: Callable[[LocalSetup], Likeness],
    held: ExitStack,
    *,
    adopted: bool,
) -> Started:
    """Prepare this rank, meet the others, call the roll; return once all ranks agree.

    check returns what all ranks' models must share, and may refuse to start; held keeps
    what the session holds until it ends; adopted tells whether a process group exists
    already, whose store is used.
    """
    meeting = SessionMeeting(options, launch, adopted=adopted)
    began = time.monotonic()
    setup, likeness = _prepare_or_withdraw(options, launch, check, meeting, held)
    seconds = seconds_left(options, setup, began)
    rendezvous = meeting.opened(seconds)
    me = member_of(setup, options)
    try:
        peers = meeting.peers(me, seconds)
        with closing(peers.store):
            shares = call_the_roll(options, setup, peers, likeness, seconds)
            others = [peers.member(rank) for rank in peers.here if rank != me.rank]
            host = None if peers.host is None else peers.member(peers.host)
    except StoreLostError as error:
        raise error.of(rendezvous.keeper, "during the roll call") from None
    return Started(setup, rendezvous, me, None if host == me else host, others, shares)


def _prepare_or_withdraw(
    options: SessionOptions,
    launch: Launch,
    check: Callable[[LocalSetup], Likeness],
    meeting: SessionMeeting,
    held: ExitStack,
) -> tuple[LocalSetup, Likeness]:
    """Do the local set-up; if it fails, tell the other ranks, so that they fail too."""
    try:
        setup = prepare(options, launch, decision_for(options, meeting, held))
        if setup.decided.cpus is not None:
            _bind(options, setup, held)
        return setup, check(setup)
    except BaseException as error:
        tell_the_others(launch, error, meeting, options.start_seconds)
        raise


def _bind(options: SessionOptions, setup: LocalSetup, held: ExitStack) -> None:
    """Bind this process to CPUs until the session ends."""
    from gpumap.runtime.binding import bind_as_asked, bound_to  # noqa: PLC0415 - who asks pays

    bind_as_asked(
        setup,
        options.bind,
        lambda cpus, threads: held.enter_context(bound_to(cpus, threads)),
    )

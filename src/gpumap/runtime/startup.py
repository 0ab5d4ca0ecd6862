"""Start of a session: local set-up, rendezvous, roll call."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpumap.detect.slurm import at_a_terminal
from gpumap.errors import RollCallError, SessionError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Policy
from gpumap.mapping.pool import Pool
from gpumap.notes import note
from gpumap.rendezvous.members import Member, Split, Terms
from gpumap.rendezvous.messages import described
from gpumap.rendezvous.model_digest import Likeness
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.rendezvous import Rendezvous
from gpumap.rendezvous.roll_call import roll_call, withdraw
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.runtime.local_setup import Decided, LocalSetup, prepare
from gpumap.runtime.meeting import Meeting, node_of, peers_of, unplaced
from gpumap.runtime.own_member import member_of
from gpumap.runtime.session_options import SessionOptions
from gpumap.time_limits import TELL_THE_OTHERS
from gpumap.words import one_line

if TYPE_CHECKING:
    from gpumap.mapping.balance import Balance
    from gpumap.mapping.cpu_shares import CpuShare

__all__ = ["Started", "start_up"]

log = logging.getLogger(__name__)

# What of start_timeout the roll call has at least, after a node has decided.
_LEAST = 0.1


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
    meeting = Meeting(options, launch, adopted=adopted)
    began = time.monotonic()
    setup, likeness = _prepare_or_withdraw(options, launch, check, meeting, held)
    seconds = options.start_seconds
    if setup.decided.seen:
        seconds = max(seconds - (time.monotonic() - began), _LEAST * seconds)
    rendezvous = meeting.opened(seconds)
    me = member_of(setup, options)
    try:
        peers = meeting.peers(me, seconds)
        with closing(peers.store):
            shares = _call_the_roll(options, setup, peers, likeness, seconds)
            others = [peers.member(rank) for rank in peers.here if rank != me.rank]
            host = None if peers.host is None else peers.member(peers.host)
    except StoreLostError as error:
        raise RollCallError(
            f"{rendezvous.keeper} went during the roll call.",
            f"{error}.",
            "See what it says.",
            (0,),
        ) from None
    return Started(setup, rendezvous, me, None if host == me else host, others, shares)


def _prepare_or_withdraw(
    options: SessionOptions,
    launch: Launch,
    check: Callable[[LocalSetup], Likeness],
    meeting: Meeting,
    held: ExitStack,
) -> tuple[LocalSetup, Likeness]:
    """Do the local set-up; if it fails, tell the other ranks, so that they fail too."""
    try:
        setup = prepare(options, launch, partial(_decided, options, meeting, held))
        if setup.decided.cpus is not None:
            _bind(options, setup, setup.decided.cpus, held)
        return setup, check(setup)
    except Exception as error:
        if launch.world_size > 1:
            _tell_the_others(options, launch, error, meeting)
        raise
    except (KeyboardInterrupt, SystemExit) as error:
        if meeting.is_open:  # others may wait for this rank's decision
            _tell_the_others(options, launch, error, meeting)
        raise


def _decided(
    options: SessionOptions,
    meeting: Meeting,
    held: ExitStack,
    policy: Policy,
    node: Node,
    launch: Launch,
) -> Decided:
    """Return which devices the ranks of this node get.

    What stays the same while ranks look is worked out by each for itself. What changes,
    or depends on the other ranks, is decided by one of them: who uses a device, what a
    user's function says, a measurement, a claim, CPUs.
    """
    asked = options.claims or options.bind or options.measures
    if not asked and not policy.varies:
        return Decided(Pool.of(policy, node, launch))
    # Only who asks for it pays for the import.
    from gpumap.runtime.pool_decision import PoolDecision  # noqa: PLC0415

    return PoolDecision(options, meeting, held).of(policy, node, launch)


def _bind(
    options: SessionOptions, setup: LocalSetup, share: "CpuShare", held: ExitStack
) -> None:
    """Bind this process to CPUs until the session ends; a rehearsal only says which.

    Raises:
        SessionError: The kernel refuses, and the rank was to have CPUs of its own.
    """
    from gpumap.mapping.cpus import cpu_list  # noqa: PLC0415 - who asks for it pays
    from gpumap.runtime.binding import bound_to  # noqa: PLC0415

    rank, cpus = setup.launch.rank, cpu_list(share.cpus)
    if setup.rehearsal:
        log.info("rank %d would run on CPUs %s", rank, cpus)
        return
    try:
        held.enter_context(bound_to(share.cpus, share.threads))
    except SessionError as error:
        if options.bind == "exclusive":
            raise
        log.warning("%s", one_line(error))
    else:
        log.info("rank %d runs on CPUs %s", rank, cpus)


def _tell_the_others(
    options: SessionOptions, launch: Launch, error: BaseException, meeting: Meeting
) -> None:
    if not isinstance(error, RollCallError):
        # The whole error is raised once the other ranks know.
        happened = described(error).partition("\n")[0]
        log.error(
            "rank %d cannot start, and tells the others: %s", launch.rank, happened
        )
    seconds = min(options.start_seconds, TELL_THE_OTHERS)
    try:
        peers = meeting.peers(unplaced(launch), seconds)
        with closing(peers.store):
            withdraw(peers, error, seconds)
    except Exception as failure:  # noqa: BLE001 - the error itself is what matters
        note(error, f"gpumap: the other ranks could not be told: {described(failure)}")


def _split(balance: "Balance | None") -> Split | None:
    if balance is None:
        return None
    return Split(batch=balance.batch, minimum=balance.minimum, how=balance.how)


def _call_the_roll(
    options: SessionOptions,
    setup: LocalSetup,
    peers: Peers,
    likeness: Likeness,
    seconds: float,
) -> tuple[int, ...]:
    launch = setup.launch
    terms = Terms(
        world_size=launch.world_size,
        kind=setup.placement.device.kind,
        on_cpu_as_asked=options.device == "cpu",
        rehearsal=setup.rehearsal is not None,
        backend=setup.backend,
        strategy=setup.pool.policy.name,
        ddp=dict(likeness.options),
        model=likeness.digest,
        split=_split(options.balance),
        claim=options.claims,
        bind=options.bind,
    )
    try:
        return roll_call(
            peers,
            terms,
            seconds,
            rows=likeness.rows,
            node=node_of(launch),
            known=setup.decided.seen,
            remark=at_a_terminal(options.environ) if launch.launcher == "Slurm" else "",
        )
    except (KeyboardInterrupt, SystemExit) as error:
        # This rank may have been counted already, and no other should wait for it.
        withdraw(peers, error, TELL_THE_OTHERS)
        raise

"""Start of a session: local set-up, rendezvous, roll call."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpumap.detect.rehearsal import names_a_file
from gpumap.detect.slurm import at_a_terminal
from gpumap.errors import RollCallError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.identity import Identity, identity_of
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Policy
from gpumap.mapping.pool import Pool
from gpumap.notes import note
from gpumap.rendezvous.members import Member, Split, Terms
from gpumap.rendezvous.messages import described
from gpumap.rendezvous.model_digest import Likeness
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.procfs import boot_id, file_space, pid_space
from gpumap.rendezvous.rendezvous import Rendezvous
from gpumap.rendezvous.roll_call import roll_call, withdraw
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.runtime.local_setup import Decided, LocalSetup, prepare
from gpumap.runtime.meeting import Meeting, peers_of, unplaced
from gpumap.runtime.session_options import SessionOptions
from gpumap.time_limits import TELL_THE_OTHERS

if TYPE_CHECKING:
    from gpumap.mapping.balance import Balance

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
    if setup.decided.together:
        seconds = max(seconds - (time.monotonic() - began), _LEAST * seconds)
    rendezvous = meeting.opened(seconds)
    me = _member(setup, options)
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
        return setup, check(setup)
    except Exception as error:
        if launch.world_size > 1:
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


def _tell_the_others(
    options: SessionOptions, launch: Launch, error: Exception, meeting: Meeting
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


def _member(setup: LocalSetup, options: SessionOptions) -> Member:
    return Member(
        rank=setup.launch.rank,
        hostname=setup.node.hostname,
        pid=os.getpid(),
        device=str(setup.placement.device),
        identity=None if setup.pool.policy.oversubscribe else _identity(setup),
        sight=_sight(setup, options),
        scores=_scores(setup),
        rehearsal=_machine(setup),
        hint=_hint(setup),
        pid_space=pid_space(),
        speed=setup.speed,
        most=setup.most,
    )


def _split(balance: "Balance | None") -> Split | None:
    if balance is None:
        return None
    return Split(batch=balance.batch, minimum=balance.minimum, how=balance.how)


def _sight(setup: LocalSetup, options: SessionOptions) -> str:
    """Return why this rank trains on the CPU, if it does."""
    if setup.placement.device.kind != "cpu":
        return ""
    if options.device == "cpu":
        return 'device="cpu" was asked for.'
    return setup.node.visible


def _machine(setup: LocalSetup) -> str:
    """Return the machine that is pretended, if one is; a file by its absolute path."""
    wanted = setup.rehearsal or ""
    return str(Path(wanted).resolve()) if names_a_file(wanted) else wanted


def _scores(setup: LocalSetup) -> dict[str, float]:
    """Return each device's score, if there are any, by a name that no mask changes."""
    devices = setup.node.devices
    return {
        devices[n].uuid or devices[n].pci_bus_id or str(devices[n]): score
        for n, score in setup.pool.scores.items()
    }


def _hint(setup: LocalSetup) -> str:
    """Return what to change if this rank's device turns out to be taken."""
    launch, count = setup.launch, len(setup.node.devices)
    if setup.placement.device.mig and not setup.can_share:
        return (
            "NCCL refuses two ranks on one GPU, MIG slices of it included: give each "
            'rank a slice of a GPU of its own, or choose backend="gloo".'
        )
    if launch.devices_bound:
        return (
            f"Each process sees {count} of its node's devices: start as many on a node "
            f"({launch.command(count)}), widen the mask, or give each process a mask "
            "of its own."
        )
    name = setup.pool.policy.name
    return (
        f'Strategy "{name}" placed each by what its own process sees: '
        "give every process of a node the same *_VISIBLE_DEVICES and distinct local "
        "ranks, or each its own device."
        + " To share one on purpose, write oversubscribe=True."
        * setup.can_share
    )


def _identity(setup: LocalSetup) -> Identity | None:
    """Return the identity of this rank's device, if it can be told from others."""
    launch, device = setup.launch, _without_shared_names(setup)
    host, view = boot_id(), file_space()
    if setup.rehearsal:
        # One description may stand for several pretended nodes.
        node = launch.node_rank
        host = view = f"of node {0 if node is None else node}"
        if node is None and launch.local_world_size == 1:
            host = view = f"of rank {launch.rank}'s node"
        elif node is None and launch.several_nodes:
            host = view = None
    elif launch.devices_bound and device.physical_index is None:
        view = None
    return identity_of(device, host=host, view=view, can_share=setup.can_share)


def _without_shared_names(setup: LocalSetup) -> Device:
    """Return this rank's device, without a UUID and bus ID that another device shares.

    Partitions of an AMD GPU may repeat its UUID, and are functions of one PCI device,
    whose number torch does not report. MIG slices have distinct UUIDs.
    """
    device = setup.placement.device
    names = (device.uuid, device.pci_bus_id)
    alike = [d for d in setup.node.devices if (d.uuid, d.pci_bus_id) == names]
    if device.mig is not None or alike == [device]:
        return device
    return device.model_copy(update={"uuid": None, "pci_bus_id": None})


def _node_of(launch: Launch) -> int | None:
    """Return this node's rank, if it is certain."""
    return 0 if launch.one_node else launch.node_rank


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
    )
    try:
        return roll_call(
            peers,
            terms,
            seconds,
            rows=likeness.rows,
            node=_node_of(launch),
            remark=at_a_terminal(options.environ) if launch.launcher == "Slurm" else "",
        )
    except (KeyboardInterrupt, SystemExit) as error:
        # This rank may have been counted already, and no other should wait for it.
        withdraw(peers, error, TELL_THE_OTHERS)
        raise

"""A session: from the environment to a process group, and back to nothing."""

import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from gpumap.detect.launchers import detect_launch
from gpumap.errors import RollCallError, SessionError
from gpumap.mapping.choice import Gpus, Scores, Strategy
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.runtime.board import Board, StoreLostError
from gpumap.runtime.ending import explain, part, stay_for_others
from gpumap.runtime.group import ProcessGroup
from gpumap.runtime.preparation import Asked, Prepared, launch_of_group, prepare
from gpumap.runtime.rendezvous import Meeting, meet, meet_in_group
from gpumap.runtime.rollcall import Member, Terms, answer, roll_call

__all__ = ["Session", "current", "open_session", "session"]

log = logging.getLogger("gpumap")


@dataclass(frozen=True)
class Session:
    """What is true inside a session.

    Attributes:
        device: The torch.device in use; the CPU in a rehearsal.
        launch: Who this process is among the others.
        node: This host and its devices.
        placement: The device it is mapped to, and why; in a rehearsal, pretended.
        store: A torch store that all ranks share, with keys of this session alone.
    """

    device: torch.device
    launch: Launch
    node: Node
    placement: Placement
    store: dist.Store

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.launch.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.launch.world_size


_open: list[Session | None] = []

# How long a rank that cannot start looks for the others, to tell them.
_ANSWER_SECONDS = 15.0


@contextmanager
def session(
    *,
    strategy: Strategy | None = None,
    gpus: Gpus | None = None,
    scores: Scores | None = None,
    device: str = "auto",
    backend: str | None = None,
    timeout: float | timedelta | None = None,
    start_timeout: float | timedelta = 300.0,
    oversubscribe: bool = False,
    launch: Launch | None = None,
    node: Node | None = None,
) -> Generator[Session, None, None]:
    """Open a session without a model: for FSDP, for evaluation, for a wrap of your own.

    All arguments are as in ddp_session, and so are the errors. A DDP of your own keeps
    the process group alive: delete it before the block ends.
    """
    asked = Asked(
        strategy,
        gpus,
        scores,
        device,
        backend,
        timeout,
        start_timeout,
        oversubscribe,
        launch,
        node,
    )
    with open_session(asked) as opened:
        yield opened


def current() -> Session:
    """Return the session that this code runs in.

    Raises:
        SessionError: There is none.
    """
    opened = _open[-1] if _open else None
    if opened is None:
        raise SessionError(
            "no session is open.",
            "current() was called outside of one.",
            "Call it inside `with gpumap.session(…):` or gpumap.ddp_session(…).",
        )
    return opened


@contextmanager
def open_session(
    asked: Asked, check: Callable[[Prepared], None] = lambda _: None
) -> Generator[Session, None, None]:
    """Open a session and close it, whatever happens; check may refuse to start."""
    if _open:
        raise SessionError(
            "a session is already open in this process.",
            "Sessions do not nest: a process has one device and one default group.",
            "Leave it first; gpumap.current() returns it.",
        )
    _open.append(None)
    try:
        asked.check_types()
        adopted = dist.is_initialized()
        launch = (
            launch_of_group(asked)
            if adopted
            else asked.launch or detect_launch(asked.environ)
        )
        prepared = _prepare_or_answer(asked, launch, check, adopted=adopted)
        meeting = _meet(launch, asked.start_seconds, asked, adopted=adopted)
        me = _member(prepared)
        _call_the_roll(asked, prepared, meeting, me)
        _log_start(prepared)
        yield from _inside(asked, prepared, meeting, me, adopted=adopted)
    finally:
        _open.clear()


def _prepare_or_answer(
    asked: Asked, launch: Launch, check: Callable[[Prepared], None], *, adopted: bool
) -> Prepared:
    """Prepare; if that fails, tell the others, so that they fail too, and at once."""
    try:
        prepared = prepare(asked, launch)
        check(prepared)
    except Exception as error:
        if launch.world_size > 1:
            _answer(asked, launch, error, adopted=adopted)
        raise
    return prepared


def _answer(asked: Asked, launch: Launch, error: Exception, *, adopted: bool) -> None:
    log.error("rank %d cannot start, and tells the others: %s", launch.rank, error)
    seconds = min(asked.start_seconds, _ANSWER_SECONDS)
    try:
        meeting = _meet(launch, seconds, asked, adopted=adopted)
        answer(
            Board(meeting.store),
            launch.rank,
            launch.world_size,
            error,
            seconds,
            hosted=meeting.hosted,
        )
    except Exception as failure:  # noqa: BLE001 - the error itself is what matters
        error.add_note(f"gpumap: the other ranks could not be told: {failure}")


def _meet(launch: Launch, seconds: float, asked: Asked, *, adopted: bool) -> Meeting:
    if adopted:
        return meet_in_group()
    return meet(launch, seconds, asked.environ)


def _member(prepared: Prepared) -> Member:
    launch = prepared.placement.launch
    shared = prepared.choice.oversubscribe
    command = launch.command(len(prepared.node.devices))
    return Member(
        rank=launch.rank,
        hostname=prepared.node.hostname,
        pid=os.getpid(),
        device=str(prepared.placement.device),
        identity=None if shared else _identity(prepared),
        hint=f"Each process sees {len(prepared.node.devices)} of its node's devices: "
        f"start as many on a node ({command}), widen the mask, or give each process a "
        "mask of its own."
        if launch.devices_bound
        else f'Strategy "{prepared.choice.name}" placed each by what its own process '
        "sees: give every process of a node the same *_VISIBLE_DEVICES and distinct "
        "local ranks, or each its own device.",
    )


def _identity(prepared: Prepared) -> str | None:
    """Return what tells a device from all others; None where nothing does."""
    launch, device = prepared.placement.launch, prepared.placement.device
    if device.kind == "cpu":
        return None
    number = device.index if device.physical_index is None else device.physical_index
    own = device.uuid or device.pci_bus_id or f"{device.kind}:{number}"
    if device.uuid and not prepared.rehearsal:
        return own
    if not prepared.rehearsal:
        known = device.pci_bus_id or device.physical_index is not None
        return (
            None
            if launch.devices_bound and not known
            else (f"{own} of {prepared.node.hostname}")
        )
    # One description may stand for several pretended nodes.
    node = launch.node_rank
    if node is None and launch.local_world_size == 1:
        return f"{own} of rank {launch.rank}'s node"
    return f"{own} of node {0 if node is None else node}"


def _call_the_roll(
    asked: Asked, prepared: Prepared, meeting: Meeting, me: Member
) -> None:
    terms = Terms(
        world_size=prepared.placement.launch.world_size,
        backend=prepared.backend,
        strategy=prepared.choice.name,
    )
    board = Board(meeting.store)
    seconds, hosted = asked.start_seconds, meeting.hosted
    try:
        roll_call(board, me, terms, seconds, hosted=hosted)
    except (KeyboardInterrupt, SystemExit) as error:
        # Counted already, and not coming: nobody should wait for this rank. The first
        # connection may still be waiting for the verdict.
        answer(
            board.again(),
            me.rank,
            terms.world_size,
            error,
            _ANSWER_SECONDS,
            hosted=hosted,
        )
        raise
    except StoreLostError as error:
        raise RollCallError(
            "rank 0, which hosts the store, went during the roll call.",
            f"{error}.",
            "See what rank 0 says.",
            (0,),
        ) from None


def _log_start(prepared: Prepared) -> None:
    launch, placement = prepared.placement.launch, prepared.placement
    if prepared.rehearsal and launch.rank == 0:
        log.warning(
            "rehearsal of %s: no GPU is used, training runs on the CPU with gloo",
            prepared.rehearsal,
        )
    log.info(
        "rank %d of %d (local rank %s) trains on %s %s: %s",
        launch.rank,
        launch.world_size,
        launch.local_rank,
        placement.device,
        placement.device.name or "",
        placement.why,
    )


def _inside(
    asked: Asked, prepared: Prepared, meeting: Meeting, me: Member, *, adopted: bool
) -> Generator[Session, None, None]:
    patience = (asked.group_timeout or default_pg_timeout).total_seconds()
    board = Board(meeting.store, patience)
    size = prepared.placement.launch.world_size
    group = None
    try:
        if not adopted:
            group = ProcessGroup(prepared, asked, meeting.store)
        opened = Session(
            prepared.device,
            prepared.placement.launch,
            prepared.node,
            prepared.placement,
            dist.PrefixStore("user", meeting.store),
        )
        _open[-1] = opened
        yield opened
        part(board, me, size, patience)
    except BaseException as error:
        explain(error, board, me, size)
        if group is not None:
            group.abandon(error)
        silent = stay_for_others(board, me, size, patience, hosted=meeting.hosted)
        for name in silent:
            error.add_note(f"gpumap: {name} was not heard of since")
        raise
    try:
        if group is not None:
            group.destroy()
    finally:
        stay_for_others(board, me, size, patience, hosted=meeting.hosted)

"""A session: from the environment to a process group, and back to nothing."""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from gpumap.detect.launchers import detect_launch
from gpumap.errors import SessionError
from gpumap.mapping.choice import Gpus, Scores, Strategy
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.runtime.board import Board
from gpumap.runtime.ending import Ending
from gpumap.runtime.group import ProcessGroup
from gpumap.runtime.joining import Joined, join
from gpumap.runtime.preparation import Asked, Prepared, launch_of_group
from gpumap.runtime.sigterm import Sigterm, Terminated, leaving_on_sigterm

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
        with leaving_on_sigterm(asked.start_seconds) as sigterm:
            asked.check_types()
            adopted = dist.is_initialized()
            launch = (
                launch_of_group(asked)
                if adopted
                else asked.launch or detect_launch(asked.environ)
            )
            joined = join(asked, launch, check, adopted=adopted)
            _log_start(joined.prepared)
            yield from _inside(asked, joined, sigterm, adopted=adopted)
    finally:
        _open.clear()


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
    asked: Asked, joined: Joined, sigterm: Sigterm, *, adopted: bool
) -> Generator[Session, None, None]:
    prepared, meeting = joined.prepared, joined.meeting
    launch = prepared.placement.launch
    patience = (asked.group_timeout or default_pg_timeout).total_seconds()
    ending = Ending(
        Board(meeting.store, patience),
        joined.me,
        launch.world_size,
        launch.node_ranks or (),
        patience,
        meeting.hosted,
        meeting.keeper,
        joined.host,
    )
    sigterm.last_words = lambda: ending.explain(Terminated())
    group = None
    try:
        if not adopted:
            group = ProcessGroup(prepared, asked, meeting.store)
        opened = Session(
            prepared.device,
            launch,
            prepared.node,
            prepared.placement,
            dist.PrefixStore("user", meeting.store),
        )
        _open[-1] = opened
        yield opened
        ending.part()
    except BaseException as error:
        ending.explain(error)
        if group is not None:
            group.abandon(error)
        ending.name_the_silent(error)
        ending.stay_for_others()
        raise
    try:
        if group is not None:
            group.destroy()
    finally:
        ending.stay_for_others()

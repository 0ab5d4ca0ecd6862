"""A session: from the environment to a process group, and to its end."""

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

from gpumap.detect.launchers import detect_launch
from gpumap.errors import SessionError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.policy import Bind, Gpus, Scores, Strategy
from gpumap.rendezvous.model_digest import Likeness
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.runtime.alone import alone
from gpumap.runtime.beside import beside
from gpumap.runtime.block import Block
from gpumap.runtime.contexts import Contexts
from gpumap.runtime.local_setup import (
    LocalSetup,
    launch_of_group,
    refuse_without_a_rank,
)
from gpumap.runtime.process_group import ProcessGroup, refuse_a_dead_group
from gpumap.runtime.session_options import SessionOptions
from gpumap.runtime.shutdown import Alone, Shutdown
from gpumap.runtime.sigterm import Sigterm, Terminated
from gpumap.runtime.startup import Started, start_up

if TYPE_CHECKING:
    from gpumap.runtime.balanced_batch import BalancedBatch

__all__ = ["Session", "current", "life_of", "session"]

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """An open session.

    Attributes:
        device: The torch.device in use; the CPU in a rehearsal.
        launch: The rank, local rank and so on of this process.
        node: This host and its devices.
        placement: The device of this process, and why; in a rehearsal, pretended.
        store: A torch store that all ranks share, with keys of this session alone.
        balanced: The batch that the ranks split by their speeds, if they do.
    """

    device: torch.device
    launch: Launch
    node: Node
    placement: Placement
    store: dist.Store
    balanced: "BalancedBatch | None" = None

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.launch.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.launch.world_size

    @property
    def batch_size(self) -> int:
        """This rank's share of the batch, in samples.

        Raises:
            SessionError: The session has no balance.
        """
        return self.shares[self.rank]

    @property
    def shares(self) -> tuple[int, ...]:
        """Each rank's share of the batch, in samples; together the whole batch.

        Raises:
            SessionError: The session has no balance.
        """
        return self._balanced.shares

    def split(self, total: int) -> tuple[int, ...]:
        """Return each rank's share of a batch of another size, in the same proportion.

        Raises:
            SessionError: The session has no balance; or total is above its batch, and
                the devices have bounds of their own.
            PlacementError: There are fewer samples than ranks.
        """
        return self._balanced.split(total)

    def rebalance(self) -> None:
        """Split the batch anew, between epochs, by the speeds of the steps since.

        Every rank calls it; it does nothing unless speeds="adapt".

        Raises:
            SessionError: The session has no balance.
        """
        self._balanced.rebalance()

    @property
    def _balanced(self) -> "BalancedBatch":
        if self.balanced is None:
            raise SessionError(
                "this session has no batch to split.",
                "It was opened without balance=….",
                "Write ddp_session(model, balance=gpumap.Balance(batch=256)).",
            )
        return self.balanced


_current: list[Session] = []


def session(
    *,
    strategy: Strategy | None = None,
    gpus: Gpus | None = None,
    scores: Scores | None = None,
    device: str = "auto",
    backend: str | None = None,
    timeout: float | timedelta | None = None,
    start_timeout: float | timedelta = 300.0,
    end_timeout: float | timedelta = 86_400.0,
    oversubscribe: bool = False,
    claim: bool | None = None,
    bind: Bind | None = None,
    launch: Launch | None = None,
    node: Node | None = None,
) -> Block[Session]:
    """Open a session without a model: for FSDP, evaluation, or your own wrapper.

    Arguments and errors are those of ddp_session. Use it with `with`, or as a decorator
    of a function, each call of which then opens and closes a session.
    """
    options = SessionOptions(
        strategy=strategy,
        gpus=gpus,
        scores=scores,
        device=device,
        backend=backend,
        timeout=timeout,
        start_timeout=start_timeout,
        end_timeout=end_timeout,
        oversubscribe=oversubscribe,
        claim=claim,
        bind=bind,
        launch=launch,
        node=node,
    )
    return Block(lambda: life_of(options, lambda opened: opened))


def current() -> Session:
    """Return the session that this code runs in.

    Raises:
        SessionError: No session is open.
    """
    if not _current:
        raise SessionError(
            "no session is open.",
            "current() was called outside of one.",
            "Call it inside `with gpumap.session(…):` or gpumap.ddp_session(…).",
        )
    return _current[-1]


def life_of(
    options: SessionOptions,
    wrap: Callable[[Session], T],
    *,
    check: Callable[[LocalSetup], Likeness] = lambda _: Likeness(),
    let_go: Callable[[T], None] = lambda _: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Generator[T, None, None]:
    """Open a session, yield wrap(session), and close the session in every case.

    check returns what all ranks' models must share, and may refuse to start; let_go
    removes from the yielded value what keeps the process group alive; meanwhile is
    called in a thread while the communicator forms, if that takes long.
    """
    with Sigterm(options.start_seconds) as sigterm, ExitStack() as stack:
        options.check_types()
        refuse_a_dead_group()
        adopted = dist.is_initialized()
        launch = (
            launch_of_group(options)
            if adopted
            else options.launch or detect_launch(options.environ)
        )
        if not adopted and options.launch is None:
            refuse_without_a_rank(launch, options.environ)
        started = start_up(options, launch, check, stack, adopted=adopted)
        _log_start(started.setup)
        contexts = Contexts(launch.rank, started.setup.device)
        if launch.world_size == 1:
            stack.enter_context(alone(started.me))
        group = ProcessGroup(started.setup, options, started.rendezvous)
        ending = _ending(options, started, group)
        sigterm.last_words = lambda: ending.last_words(Terminated())
        try:
            with beside(meanwhile):
                group.form()
            _current.append(_session(started, options))
            value = wrap(_current[-1])
            try:
                yield value
            finally:
                let_go(value)
            contexts.look_again()
            group.synchronize()
            ending.meet()
            group.destroy()
            ending.part()
        except BaseException as error:
            if isinstance(error, Terminated):
                sigterm.leaving.set()
            try:
                told = ending.fail(error)
            except SystemExit:
                # Python prints no SystemExit, and so not the error that it interrupted.
                log.exception("SIGTERM came while another error was being told")
                raise
            finally:
                group.abandon(error)
            ending.stay()
            if told is not error:
                raise told from error
            raise
        finally:
            _current.clear()
        ending.close()


def _session(started: Started, options: SessionOptions) -> Session:
    setup, balanced = started.setup, None
    if options.balance is not None:
        from gpumap.runtime.balanced_batch import BalancedBatch  # noqa: PLC0415 - rare

        balanced = BalancedBatch(options.balance, setup, started.shares)
    return Session(
        device=setup.device,
        launch=setup.launch,
        node=setup.node,
        placement=setup.placement,
        store=dist.PrefixStore("user", started.rendezvous.store),
        balanced=balanced,
    )


def _log_start(setup: LocalSetup) -> None:
    launch, placement = setup.launch, setup.placement
    if setup.rehearsal and launch.rank == 0:
        log.warning(
            "rehearsal of %s: no GPU is used, training runs on the CPU with gloo",
            setup.rehearsal,
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


def _ending(
    options: SessionOptions, started: Started, group: ProcessGroup
) -> Shutdown | Alone:
    if started.setup.launch.world_size == 1:
        return Alone(started.me)
    try:
        return Shutdown(started, options, group)
    except StoreLostError as error:
        raise error.of(started.rendezvous.keeper, "after the roll call") from None

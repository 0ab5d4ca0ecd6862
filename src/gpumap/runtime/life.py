"""The life of a session: from the environment to a process group, and to its end."""

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import TypeVar

import torch.distributed as dist

from gpumap.detect.launchers import detect_launch
from gpumap.rendezvous.model_digest import Likeness
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.runtime.alone import alone
from gpumap.runtime.beside import beside
from gpumap.runtime.contexts import Contexts
from gpumap.runtime.inside import Inside
from gpumap.runtime.local_setup import (
    LocalSetup,
    launch_of_group,
    refuse_without_a_rank,
)
from gpumap.runtime.process_group import ProcessGroup, refuse_a_dead_group
from gpumap.runtime.saying import log_start
from gpumap.runtime.session import Session, make_current
from gpumap.runtime.session_options import SessionOptions
from gpumap.runtime.shutdown import Alone, Shutdown
from gpumap.runtime.sigterm import Sigterm, Terminated
from gpumap.runtime.startup import Started, start_up

__all__ = ["life_of"]

T = TypeVar("T")

log = logging.getLogger(__name__)


def life_of(
    options: SessionOptions,
    begin: Callable[[Session, Inside], T],
    *,
    check: Callable[[LocalSetup], Likeness] = lambda _: Likeness(),
    meanwhile: Callable[[], None] = lambda: None,
) -> Generator[T, None, None]:
    """Open a session, yield what begin returns, and close the session in every case.

    check returns what all ranks' models must share, and may refuse to start; meanwhile
    is called in a thread while the communicator forms, if that takes long.
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
        log_start(started)
        contexts = Contexts(launch.rank, started.setup.device)
        if launch.world_size == 1:
            stack.enter_context(alone(started.me))
        group = ProcessGroup(started.setup, options, started.rendezvous)
        ending = _ending(options, started, group)
        sigterm.last_words = lambda: ending.last_words(Terminated())
        try:
            with beside(meanwhile):
                group.form()
            inside = _inside(started, options, ending)
            session = _session(started, inside)
            # No context manager of contextlib's, which sets an attribute of the error.
            try:
                make_current(session)
                yield begin(session, inside)
            finally:
                make_current(None)
                inside.close()
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
        ending.close()


def _inside(
    started: Started, options: SessionOptions, ending: Shutdown | Alone
) -> Inside:
    balanced = None
    if options.balance is not None:
        from gpumap.runtime.balanced_batch import BalancedBatch  # noqa: PLC0415 - rare

        balanced = BalancedBatch(options.balance, started.setup, started.shares)
    return Inside(started, options, ending, balanced)


def _session(started: Started, inside: Inside) -> Session:
    setup = started.setup
    return Session(
        device=setup.device,
        launch=setup.launch,
        node=setup.node,
        placement=setup.placement,
        store=dist.PrefixStore("user", started.rendezvous.store),
        inside=inside,
        balanced=inside.balanced,
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

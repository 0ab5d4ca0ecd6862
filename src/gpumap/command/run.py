"""`gpumap run`: replaces itself by a script that finds its rank and its device."""

import logging
import os
from argparse import Namespace
from contextlib import ExitStack

from gpumap.command.preparation import Rank
from gpumap.command.printing import say
from gpumap.command.program import NoProgramError, become, program_of
from gpumap.detect.claims import HELD, keep_through_exec
from gpumap.errors import GpumapError
from gpumap.mapping.environment import LOCAL_RANK
from gpumap.mapping.policy import GPUS
from gpumap.runtime.placed import Placed
from gpumap.runtime.session_options import SessionOptions
from gpumap.runtime.sigterm import Sigterm
from gpumap.words import one_line

__all__ = ["FAILURES", "USED_UP", "failed", "options_of", "run"]

log = logging.getLogger(__name__)

FAILURES = (GpumapError, ImportError, OSError)
"""What can go wrong before the script starts; OSError is the system's, out of files."""

USED_UP = (GPUS, LOCAL_RANK, HELD)
"""Variables that count for one script only: a pool counts without its mask."""


def run(asked: Namespace) -> int:
    """Become the script that was asked for; return an exit code if that fails.

    That is 1 if a check failed, 2 if there is nothing to run.
    """
    try:
        with ExitStack() as held:
            options = options_of(asked)
            with Sigterm(options.start_seconds):
                rank = Rank(options, own=asked.own, meets=asked.roll_call, held=held)
                prepared = rank.prepared(
                    lambda placed: _settled(asked, options, placed)
                )
            _log_start(prepared.placed)
            kept = {n: x for n, x in options.environ.items() if n not in USED_UP}
            become(program_of(asked), kept | prepared.variables)
    except NoProgramError as error:
        say(f"gpumap run: {one_line(error)}")
        return 2
    except FAILURES as error:
        return failed(error)


def options_of(asked: Namespace) -> SessionOptions:
    """Return what a session would be asked for.

    Which backend the script uses is not known: one that needs a device for each rank,
    unless ranks are to share them.

    Raises:
        SessionError: A time is no positive number of seconds.
    """
    return SessionOptions(
        strategy=asked.strategy,
        gpus=asked.gpus,
        scores=asked.scores,
        backend="gloo" if asked.oversubscribe else None,
        start_timeout=asked.start_timeout,
        oversubscribe=asked.oversubscribe,
        claim=asked.claim,
        bind=asked.bind,
    )


def failed(error: BaseException) -> int:
    """Print an error as the library words it; return 1."""
    say(f"{type(error).__name__}: {error}")
    return 1


def _settled(
    asked: Namespace, options: SessionOptions, placed: Placed
) -> dict[str, str]:
    """See that there is a script; make claims and CPUs last as long as it does."""
    program_of(asked)
    added: dict[str, str] = {}
    if options.claims and placed.node.devices:
        seen = placed.decided.seen
        own = placed.launch.devices_bound or not seen
        added |= keep_through_exec(os.getpid() if own else seen[0].pid)
    if placed.decided.cpus is not None:
        from gpumap.runtime.binding import bind_as_asked, bind_for_good  # noqa: PLC0415

        bind_as_asked(
            placed,
            options.bind,
            lambda cpus, threads: added.update(
                bind_for_good(cpus, threads, options.environ)
            ),
        )
    return added


def _log_start(placed: Placed) -> None:
    launch, device = placed.launch, placed.placement.device
    if placed.rehearsal and launch.rank == 0:
        log.warning(
            "rehearsal of %s: the script gets its variables, and no GPU",
            placed.rehearsal,
        )
    log.info(
        "rank %d of %d (local rank %s) runs on %s %s: %s",
        *(launch.rank, launch.world_size, launch.local_rank),
        *(device, device.name or "", placed.placement.why),
    )

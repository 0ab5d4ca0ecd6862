"""This rank at the roll call."""

import time

from gpumap.detect.slurm import at_a_terminal
from gpumap.rendezvous.members import Split, Terms
from gpumap.rendezvous.model_digest import Likeness
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.roll_call import roll_call, withdraw
from gpumap.runtime.meeting import node_of
from gpumap.runtime.placed import Placed
from gpumap.runtime.session_options import SessionOptions
from gpumap.time_limits import TELL_THE_OTHERS

__all__ = ["call_the_roll", "seconds_left", "terms_of"]

_LEAST = 0.1


def call_the_roll(
    options: SessionOptions,
    placed: Placed,
    peers: Peers,
    likeness: Likeness,
    seconds: float,
) -> tuple[int, ...]:
    """Return each rank's samples of a batch once all ranks agree.

    Raises:
        RollCallError: They do not, or do not come; every rank raises the same.
    """
    launch, terms = placed.launch, terms_of(options, placed, likeness)
    try:
        return roll_call(
            peers,
            terms,
            seconds,
            rows=likeness.rows,
            node=node_of(launch),
            known=placed.decided.seen,
            remark=at_a_terminal(options.environ) if launch.launcher == "Slurm" else "",
        )
    except (KeyboardInterrupt, SystemExit) as error:
        # This rank may have been counted already, and no other should wait for it.
        withdraw(peers, error, TELL_THE_OTHERS)
        raise


def seconds_left(options: SessionOptions, placed: Placed, began: float) -> float:
    """Return what of start_timeout the roll call has, where a node has decided first.

    began: when this rank did, by the monotonic clock. A part is left in any case.
    """
    seconds = options.start_seconds
    if not placed.decided.seen:
        return seconds
    return max(seconds - (time.monotonic() - began), _LEAST * seconds)


def terms_of(options: SessionOptions, placed: Placed, likeness: Likeness) -> Terms:
    """Return what all ranks must have in common with this one."""
    return Terms(
        world_size=placed.launch.world_size,
        kind=placed.placement.device.kind,
        on_cpu_as_asked=options.device == "cpu",
        rehearsal=placed.rehearsal is not None,
        backend=placed.backend,
        strategy=placed.pool.policy.name,
        ddp=dict(likeness.options),
        model=likeness.digest,
        split=_split(options),
        claim=options.claims,
        bind=options.bind,
    )


def _split(options: SessionOptions) -> Split | None:
    balance = options.balance
    if balance is None:
        return None
    return Split(batch=balance.batch, minimum=balance.minimum, how=balance.how)

"""What a session says of its start in the log: one line for a job, and why for each."""

import logging

from gpumap.runtime.startup import Started
from gpumap.words import plural

__all__ = ["log_start"]

log = logging.getLogger(__name__)

_MOST_NAMED = 16


def log_start(started: Started) -> None:
    """Log who trains where: rank 0 for all, and each rank, at DEBUG, why."""
    setup = started.setup
    launch, placement = setup.launch, setup.placement
    log.debug(
        "rank %d of %d (local rank %s) trains on %s %s: %s",
        launch.rank,
        launch.world_size,
        launch.local_rank,
        placement.device,
        placement.device.name or "",
        placement.why,
    )
    if launch.rank:
        return
    if setup.rehearsal:
        log.warning(
            "rehearsal of %s: no GPU is used, training runs on the CPU with gloo",
            setup.rehearsal,
        )
    nodes = 1 if launch.one_node else launch.num_nodes
    log.info(
        '%s: %d %s%s; strategy "%s"; on %s: %s',
        launch.launcher,
        launch.world_size,
        plural("rank", launch.world_size),
        "" if nodes is None else f" on {nodes} {plural('node', nodes)}",
        setup.pool.policy.name,
        setup.node.hostname,
        _devices(started),
    )


def _devices(started: Started) -> str:
    """Return the device of each rank of this node, as far as they are known."""
    here = sorted([started.me, *started.neighbours], key=lambda member: member.rank)
    named = [f"rank {m.rank} on {m.device}" for m in here[:_MOST_NAMED]]
    more = len(here) - len(named)
    return ", ".join(named + ([f"and {more} more"] if more else []))

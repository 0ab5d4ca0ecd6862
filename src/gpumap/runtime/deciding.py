"""Which devices the ranks of a node get: found by each, or decided by one for all."""

from contextlib import ExitStack

from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Policy
from gpumap.mapping.pool import Pool
from gpumap.runtime.meeting import Meeting
from gpumap.runtime.placed import Decide, Decided
from gpumap.runtime.session_options import SessionOptions

__all__ = ["decision_for"]


def decision_for(
    options: SessionOptions, meeting: Meeting, held: ExitStack, *, of_all: bool = False
) -> Decide:
    """Return the function that decides which devices the ranks of a node get.

    What stays the same while ranks look is worked out by each for itself. What changes,
    or depends on the other ranks, is decided by one of them: who uses a device, what a
    user's function says, a measurement, a claim, CPUs.

    held keeps what is claimed. With of_all, the devices of all ranks of the node are
    known in the end, also where only their global ranks determine them.
    """
    asked = options.claims or options.bind or options.measures

    def decide(policy: Policy, node: Node, launch: Launch) -> Decided:
        if not asked and not policy.varies:
            pool = Pool.of(policy, node, launch)
            unknown = pool.devices and pool.by_rank and launch.node_ranks is None
            if not (of_all and unknown):
                return Decided(pool)
        # Only who asks for it pays for the import.
        from gpumap.runtime.pool_decision import PoolDecision  # noqa: PLC0415

        return PoolDecision(options, meeting, held).of(policy, node, launch)

    return decide

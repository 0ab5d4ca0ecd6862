"""A rank that has its device, before anything is told to torch or to other ranks."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumap.detect.hardware import detect_node
from gpumap.detect.launchers import launched_on
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.policy import Policy
from gpumap.mapping.pool import Pool, can_share
from gpumap.mapping.visibility import doubt
from gpumap.rendezvous.members import Member
from gpumap.runtime.session_options import SessionOptions

if TYPE_CHECKING:
    from gpumap.mapping.cpu_shares import CpuShare

__all__ = [
    "BACKENDS",
    "Decide",
    "Decided",
    "Placed",
    "place_rank",
    "usual_backend",
]

log = logging.getLogger(__name__)

BACKENDS = {"npu": "hccl", "hpu": "hccl", "xpu": "xccl", "cuda": "nccl"}
"""The backends of kinds of devices that a build of torch may not know."""


@dataclass(frozen=True)
class Decided:
    """What the ranks of a node go by.

    Attributes:
        pool: The devices that they get.
        speed: How fast this rank's device is, if that was measured.
        cpus: The CPUs to bind this rank to, if there are any and it was asked for.
        seen: The ranks of the node that this one has met for it.
    """

    pool: Pool
    speed: float | None = None
    cpus: "CpuShare | None" = None
    seen: Sequence[Member] = ()


Decide = Callable[[Policy, Node, Launch], Decided]
"""A function that returns which devices the ranks of a node get."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A rank with its device.

    Attributes:
        placement: The device of this rank, and why.
        backend: The process group backend for the placement's device.
        rehearsal: The machine pretended, if one is.
        can_share: Whether the backend lets two ranks use one device.
        decided: What the ranks of this node go by.
        speed: How fast the device is, if the batch is split by that.
        most: The most samples of the batch that it can take, if that is bounded.
    """

    placement: Placement
    backend: str
    rehearsal: str | None
    can_share: bool
    decided: Decided
    speed: float | None = None
    most: int | None = None

    @property
    def pool(self) -> Pool:
        """The strategy and its inputs, checked, for this node."""
        return self.decided.pool

    @property
    def node(self) -> Node:
        """The host and its devices, pretended in a rehearsal."""
        return self.pool.node

    @property
    def launch(self) -> Launch:
        """The rank, local rank and so on of this process."""
        return self.placement.launch


def place_rank(
    options: SessionOptions,
    launch: Launch,
    decide: Decide,
    backend_of: Callable[[str], str],
) -> Placed:
    """Find the node, place this rank, check its neighbours.

    backend_of returns the process group backend for a kind of device.

    Raises:
        DeviceError: A device is asked for that is not there.
        PlacementError: The placement is impossible, as far as one rank can see.
    """
    policy = Policy.of(
        options.strategy,
        options.pool,
        options.scores,
        oversubscribe=options.oversubscribe,
    )
    rehearsal = options.environ.get(REHEARSAL) or None
    node = _node(options, launch)
    if options.launch is None:
        launch = launched_on(node, launch, options.environ)
    decided = decide(policy, node, launch)
    pool = decided.pool
    placement = pool.place(launch)
    if decided.cpus is not None:
        cpus = {"cpus": decided.cpus.cpus}
        placement = placement.model_copy(update=cpus)
    backend = options.backend or backend_of(placement.device.kind)
    pool.refuse_conflicts(launch, backend, options.environ)
    _log_doubts(options, pool, launch)
    return Placed(
        placement=placement,
        backend=backend,
        rehearsal=rehearsal,
        can_share=can_share(backend, options.environ),
        decided=decided,
    )


def usual_backend(kind: str) -> str:
    """Return the backend that torch takes by default for a kind, without asking it."""
    return BACKENDS.get(kind, "gloo")


def _node(options: SessionOptions, launch: Launch) -> Node:
    if options.device == "cpu" and options.gpus is not None:
        raise DeviceError(
            f'device="cpu" and gpus={options.gpus!r} contradict each other.',
            "",
            "Leave one of them out.",
        )
    if options.node is not None:
        rehearsed = options.environ.get(REHEARSAL)
        return options.node.pretended() if rehearsed else options.node
    node = detect_node(options.device, options.environ, launch)
    if options.device == "auto" and any(d.kind == "mps" for d in node.devices):
        log.warning(
            "%s trains on the CPU: no backend of torch's process groups serves mps.",
            node.hostname,
        )
        return detect_node("cpu", options.environ, launch)
    return node


def _log_doubts(options: SessionOptions, pool: Pool, launch: Launch) -> None:
    """Log what works but could be better, on one rank of the node."""
    if (launch.local_rank or 0) == 0:
        if idle := pool.idle(launch):
            level = logging.INFO if pool.policy.gpus is None else logging.WARNING
            log.log(level, "%s", idle)
        for sentence in pool.warnings(launch):
            log.warning("%s", sentence)
    # A mask that all ranks share is reported by one of them, a rank's own by each.
    own = launch.devices_bound or not pool.node.devices
    tells = (own or (launch.local_rank or 0) == 0) and options.device != "cpu"
    if tells and (slip := doubt(pool.node, options.environ)):
        log.warning("%s", slip)

"""Local set-up of a session, before any communication: options, node, placement."""

import logging
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gpumap.detect.hardware import detect_node
from gpumap.detect.launchers import detect_launch, launched_on
from gpumap.detect.limits import files_of_session, refuse_few_files
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.errors import DeviceError, LaunchError, SessionError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.policy import Policy
from gpumap.mapping.pool import Pool, can_share
from gpumap.mapping.visibility import doubt
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.rendezvous import store_is_open
from gpumap.runtime.session_options import SessionOptions

if TYPE_CHECKING:
    from gpumap.mapping.cpu_shares import CpuShare

__all__ = [
    "Decided",
    "LocalSetup",
    "default_backend",
    "launch_of_group",
    "prepare",
    "refuse_without_a_rank",
]

log = logging.getLogger(__name__)

_KNOWN_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
# Backends of devices that this build of torch may not know, for rehearsals.
_BACKENDS = {"npu": "hccl", "hpu": "hccl", "xpu": "xccl", "cuda": "nccl"}


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


@dataclass(frozen=True)
class LocalSetup:
    """The result of a rank's local set-up.

    Attributes:
        placement: The device of this rank, and why.
        device: The torch device to use; the CPU in a rehearsal.
        backend: The process group backend for the placement's device.
        rehearsal: The machine pretended, if one is.
        can_share: Whether the backend lets two ranks use one device.
        decided: What the ranks of this node go by.
        speed: How fast the device is, if the batch is split by that.
        most: The most samples of the batch that it can take, if that is bounded.
    """

    placement: Placement
    device: torch.device
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

    @property
    def backend_in_use(self) -> str:
        """The process group's backend; gloo in a rehearsal."""
        return "gloo" if self.rehearsal else self.backend


def prepare(
    options: SessionOptions,
    launch: Launch,
    decide: Callable[[Policy, Node, Launch], Decided],
) -> LocalSetup:
    """Find the node, place this rank, check its neighbours, make its device current.

    decide returns which devices the node's ranks get.

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
    backend = options.backend or default_backend(
        placement.device.kind, rehearsed=rehearsal is not None
    )
    pool.refuse_conflicts(launch, backend, options.environ)
    _log_doubts(options, pool, launch)
    device = _torch_device(placement, rehearsal)
    if rehearsal is None:
        _refuse_a_missing_backend(backend)
    if rehearsal or backend == "gloo":
        _refuse_few_files(launch, options.environ)
    if device.type != "cpu":
        # Before anything else, so that no later step opens a context on device 0.
        torch.accelerator.set_device_index(device.index)
    shares = can_share(backend, options.environ)
    setup = LocalSetup(placement, device, backend, rehearsal, shares, decided)
    balance, own = options.balance, placement.device
    if balance is None or launch.world_size == 1:  # one process takes the whole batch
        return setup
    return replace(
        setup,
        speed=balance.speed_of(own, pool.node, decided.speed),
        most=balance.most_of(own, pool.node),
    )


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


def launch_of_group(options: SessionOptions) -> Launch:
    """Return the launch of a process whose process group exists already.

    Raises:
        SessionError: The environment says another rank or world size.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    launch = options.launch or detect_launch(options.environ)
    if (launch.rank, launch.world_size) == (rank, world_size):
        return launch
    if options.launch is None and launch.launcher == "single process":
        return Launch(launcher="process group", rank=rank, world_size=world_size)
    raise SessionError(
        f"the process group says rank {rank} of {world_size}, {launch.launcher} says "
        f"rank {launch.rank} of {launch.world_size}.",
        "torch.distributed was initialised before the session.",
        "Let gpumap initialise it, or pass launch=gpumap.Launch(…) with its numbers.",
    )


def refuse_without_a_rank(launch: Launch, environ: Mapping[str, str]) -> None:
    """Refuse a child of multiprocessing that has an address to meet at, and no rank.

    torch.multiprocessing.spawn passes the rank as an argument. If only the address is
    set, each process would take itself for the only one, and use the first device.

    Raises:
        LaunchError: The process would be a world of one.
    """
    address = [environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")]
    if (
        launch.launcher != "single process"
        or multiprocessing.parent_process() is None
        or not all(address)
        or environ.get("GPUMAP_LAUNCHER")
    ):
        return
    raise LaunchError(
        "this process has an address to meet others at, and no rank.",
        f"Multiprocessing started it; MASTER_ADDR={address[0]!r}, "
        f"MASTER_PORT={address[1]!r}, and RANK and WORLD_SIZE are not set.",
        "Start the function by gpumap.spawn(function, …), which sets all of it; or set "
        "RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE beside the address, out of "
        "the rank that mp.spawn passes. If it is alone, unset the address, or set "
        "GPUMAP_LAUNCHER=none.",
        ("RANK", "WORLD_SIZE"),
    )


def _node(options: SessionOptions, launch: Launch) -> Node:
    if options.device == "cpu" and options.gpus is not None:
        raise DeviceError(
            f'device="cpu" and gpus={options.gpus!r} contradict each other.',
            "",
            "Leave one of them out.",
        )
    if options.node is not None:
        return options.node
    node = detect_node(options.device, options.environ, launch)
    if options.device == "auto" and any(d.kind == "mps" for d in node.devices):
        log.warning(
            "%s trains on the CPU: no backend of torch's process groups serves mps.",
            node.hostname,
        )
        return detect_node("cpu", options.environ, launch)
    return node


def _refuse_few_files(launch: Launch, environ: Mapping[str, str]) -> None:
    """Refuse to start where the connections of a new group will not fit."""
    if launch.world_size == 1 or dist.is_initialized():
        return
    hosts = launch.rank == 0 and not environ.get("TORCHELASTIC_USE_AGENT_STORE")
    refuse_few_files(
        f"rank {launch.rank} of {launch.world_size}",
        files_of_session(launch.world_size, hosts=hosts, again=store_is_open()),
    )


def _refuse_a_missing_backend(backend: str) -> None:
    """Refuse a backend that this torch was built without: "nccl", "cuda:nccl,cpu:gloo".

    Raises:
        SessionError: A backend is missing.
    """
    names = [part.rpartition(":")[2].strip() for part in backend.lower().split(",")]
    missing = [name for name in names if not dist.is_backend_available(name)]
    if missing:
        there = [n for n in _KNOWN_BACKENDS if dist.is_backend_available(n)]
        raise SessionError(
            f"backend={backend!r}: this torch has no {' and no '.join(missing)}.",
            f"torch {torch.__version__} has {', '.join(there)}.",
            "Write one that is there, or leave backend out; another one comes with "
            "another build of torch.",
        )


def default_backend(kind: str, *, rehearsed: bool) -> str:
    """Return the backend for a kind of device; in a rehearsal, of any build of torch.

    Raises:
        DeviceError: No backend serves this kind.
    """
    if kind == "mps":
        # torch names gloo, which serves the CPU and CUDA only.
        raise DeviceError(
            "no backend of torch's process groups serves mps devices.",
            f"torch {torch.__version__}.",
            'Write device="cpu", or device="auto", which is the CPU on a Mac.',
        )
    try:
        return str(dist.get_default_backend_for_device(kind))
    except (ValueError, RuntimeError):  # a kind it cannot use, one it does not know
        if rehearsed and kind in _BACKENDS:
            return _BACKENDS[kind]
        raise DeviceError(
            f"torch knows no process group backend for {kind!r} devices.",
            f"torch {torch.__version__}.",
            'Name one with backend="…".',
        ) from None


def _torch_device(placement: Placement, rehearsal: str | None) -> torch.device:
    device = placement.device
    if rehearsal or device.kind == "cpu":
        return torch.device("cpu")
    count = torch.accelerator.device_count()
    if device.index >= count:
        raise DeviceError(
            f"{device} is not there: torch counts {count} accelerators.",
            "The node was described, not detected.",
            f"To pretend a machine, start with {REHEARSAL}=FILE.json.",
        )
    return torch.device(device.kind, device.index)

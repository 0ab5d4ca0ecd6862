"""Local set-up of a session, before any communication: options, node, placement."""

import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from gpumap.detect.launchers import detect_launch
from gpumap.detect.limits import files_of_session, refuse_few_files
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.errors import DeviceError, LaunchError, SessionError
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.rendezvous.rendezvous import store_is_open
from gpumap.runtime.placed import BACKENDS, Decide, Placed, place_rank
from gpumap.runtime.session_options import SessionOptions

__all__ = [
    "LocalSetup",
    "default_backend",
    "launch_of_group",
    "prepare",
    "refuse_without_a_rank",
]

_KNOWN_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")


@dataclass(frozen=True, kw_only=True)
class LocalSetup(Placed):
    """The result of a rank's local set-up.

    Attributes:
        device: The torch device to use; the CPU in a rehearsal.
    """

    device: torch.device

    @property
    def backend_in_use(self) -> str:
        """The process group's backend; gloo in a rehearsal."""
        return "gloo" if self.rehearsal else self.backend


def prepare(options: SessionOptions, launch: Launch, decide: Decide) -> LocalSetup:
    """Place this rank, check its neighbours, make its device current.

    Raises:
        DeviceError: A device is asked for that is not there.
        PlacementError: The placement is impossible, as far as one rank can see.
    """
    rehearsed = bool(options.environ.get(REHEARSAL))
    backend_of = partial(default_backend, rehearsed=rehearsed)
    placed = place_rank(options, launch, decide, backend_of)
    own, launch = placed.placement.device, placed.launch
    device = _torch_device(placed.placement, placed.rehearsal)
    if placed.rehearsal is None:
        _refuse_a_missing_backend(placed.backend)
        _refuse_a_backend_of_other_devices(placed.backend, device.type)
    if placed.rehearsal or placed.backend == "gloo":
        _refuse_few_files(launch, options.environ)
    if device.type != "cpu":
        # Before anything else, so that no later step opens a context on device 0.
        torch.accelerator.set_device_index(device.index)
    balance, speed, most = options.balance, None, None
    if balance is not None and launch.world_size > 1:  # one process takes it whole
        speed = balance.speed_of(own, placed.node, placed.decided.speed)
        most = balance.most_of(own, placed.node)
    return LocalSetup(
        placement=placed.placement,
        backend=placed.backend,
        rehearsal=placed.rehearsal,
        can_share=placed.can_share,
        decided=placed.decided,
        speed=speed,
        most=most,
        device=device,
    )


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


def _refuse_few_files(launch: Launch, environ: Mapping[str, str]) -> None:
    """Refuse to start where the connections of a new group will not fit."""
    if launch.world_size == 1 or dist.is_initialized():
        return
    hosts = launch.rank == 0 and not environ.get("TORCHELASTIC_USE_AGENT_STORE")
    refuse_few_files(
        f"rank {launch.rank} of {launch.world_size}",
        files_of_session(launch.world_size, hosts=hosts, again=store_is_open()),
    )


def _parts(backend: str) -> list[tuple[str, str]]:
    """Return the kind of device, or "", and the name of each backend of a text."""
    parts = [part.strip().rpartition(":") for part in backend.lower().split(",")]
    return [(kind, name.strip()) for kind, _, name in parts]


def _refuse_a_missing_backend(backend: str) -> None:
    """Refuse a backend that this torch was built without: "nccl", "cuda:nccl,cpu:gloo".

    Raises:
        SessionError: A backend is missing.
    """
    missing = [n for _, n in _parts(backend) if not dist.is_backend_available(n)]
    if missing:
        there = [n for n in _KNOWN_BACKENDS if dist.is_backend_available(n)]
        raise SessionError(
            f"backend={backend!r}: this torch has no {' and no '.join(missing)}.",
            f"torch {torch.__version__} has {', '.join(there)}.",
            "Write one that is there, or leave backend out; another one comes with "
            "another build of torch.",
        )


def _refuse_a_backend_of_other_devices(backend: str, kind: str) -> None:
    """Refuse a backend that does not serve this rank's device: "nccl" on the CPU.

    What a backend serves is in torch.distributed.Backend.backend_capability.

    Raises:
        SessionError: It serves other kinds of devices.
    """
    parts = _parts(backend)
    served = [served for served, _ in parts if served]
    if not served:
        served = dist.Backend.backend_capability.get(parts[0][1], [kind])
    if kind not in served:
        raise SessionError(
            f"backend={backend!r} does not serve {kind} devices.",
            f"It serves {', '.join(served)}; this rank is to train on {kind}.",
            f"Leave backend out, and torch's own for {kind} is taken. If another "
            "device was meant, `gpumap show` tells which there are.",
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
        if rehearsed and kind in BACKENDS:
            return BACKENDS[kind]
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

"""ddp_session: a session around one model, wrapped in DistributedDataParallel."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Unpack

from gpumap.errors import SessionError
from gpumap.mapping.choice import Gpus, Scores, Strategy
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.runtime.ddp_options import DDPOptions
from gpumap.runtime.preparation import Asked, Prepared
from gpumap.runtime.session import Session, open_session

__all__ = ["ddp_session"]

_DECIDED_HERE = (
    "module",
    "device_ids",
    "output_device",
    "process_group",
    "device_mesh",
)


@contextmanager
def ddp_session(
    model: nn.Module,
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
    **ddp: Unpack[DDPOptions],
) -> Generator[DistributedDataParallel, None, None]:
    """Open a session around a model and yield it as DistributedDataParallel.

    The model is moved to this rank's device and wrapped, also in a world of one. After
    the block the process group is gone and `m.module` is the trained model.

    Args:
        model: The module to train, not wrapped yet.
        strategy: "local_rank" (the default), "explicit" (the default with gpus),
            "modulo", "scored" (the default with scores), "linked", or a function
            (launch, node) -> device.
        gpus: The devices this job may use, in order: indices as torch counts them after
            masking, UUIDs or PCI bus IDs; or a mapping from host name or node_rank to
            such a list. Without it, all that are visible.
        scores: For "scored", the highest first: {device: number}, "memory",
            "multiprocessors", or a function of Device.
        device: "auto" for whatever accelerator there is, a torch device type that must
            be there, or "cpu".
        backend: The process group's backend; by device when None.
        timeout: Seconds that a collective, and the meeting at the end, may take;
            torch's default when None. In a collective torch's builds count them by the
            system's clock: where it is set back, they wait for that much longer.
        start_timeout: Seconds that the ranks have to come together.
        oversubscribe: Whether two ranks may share a device (gloo only).
        launch: Who this process is, instead of detecting it.
        node: The devices, instead of detecting them.
        ddp: Passed on to DistributedDataParallel.

    Raises:
        LaunchError: What started this process cannot be told, or contradicts itself.
        DeviceError: A device is asked for that is not there.
        PlacementError: Two ranks would share a device, or one has none.
        RollCallError: The ranks, comparing notes, cannot start together.
        SessionError: The model cannot be wrapped, a session is open already, or another
            rank failed after this one had ended.
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
    with open_session(asked, lambda prepared: _check(model, ddp, prepared)) as session:
        wrapped = _wrap(model, ddp, session)
        try:
            yield wrapped
        finally:
            _let_go(wrapped)


def _check(model: object, ddp: DDPOptions, prepared: Prepared) -> None:
    decided = [name for name in _DECIDED_HERE if name in ddp]
    if decided:
        raise SessionError(
            f"{', '.join(decided)} cannot be passed: gpumap decides it.",
            "",
            "Say which device with strategy=… and gpus=[…].",
        )
    if not isinstance(model, nn.Module) or isinstance(model, DistributedDataParallel):
        raise SessionError(
            f"a {type(model).__name__} is not a model to wrap.",
            "",
            "Pass the nn.Module itself; it is wrapped here.",
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise SessionError(
            f"{type(model).__name__} has no parameter that requires a gradient.",
            "DistributedDataParallel averages gradients and refuses such a model.",
            "For evaluation or a frozen model, use gpumap.session() and its device.",
        )
    if prepared.device.type == "cpu" and any(
        isinstance(module, nn.SyncBatchNorm) for module in model.modules()
    ):
        raise SessionError(
            f"{type(model).__name__} has SyncBatchNorm layers; this runs on the CPU.",
            "torch synchronises batch norms on accelerators only.",
            "Convert the model only where torch.accelerator.is_available().",
        )


def _wrap(
    model: nn.Module, ddp: DDPOptions, session: Session
) -> DistributedDataParallel:
    device = session.device
    on_cpu = device.type == "cpu"
    return DistributedDataParallel(
        model.to(device), device_ids=None if on_cpu else [device.index], **ddp
    )


def _over(*_: object, **__: object) -> NoReturn:
    """Stand for forward once the session is over."""
    raise SessionError(
        "the session is over, and with it the wrapped model.",
        "Its process group was destroyed when the block was left.",
        "Use m.module, the trained model itself.",
    )


def _let_go(wrapped: DistributedDataParallel) -> None:
    """Drop what keeps the group's threads alive: they abort a dying interpreter."""
    for name in ("reducer", "logger", "process_group"):
        setattr(wrapped, name, None)
    wrapped.forward = _over  # type: ignore[method-assign]

"""One model: what all ranks must share of it, its wrapping, and its letting go."""

from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpumap.errors import SessionError
from gpumap.loading import without_collection
from gpumap.rendezvous.likeness import likeness_of
from gpumap.rendezvous.model_digest import Likeness
from gpumap.runtime.ddp_options import DDPOptions

if TYPE_CHECKING:
    from gpumap.mapping.balance import Balance

__all__ = ["import_what_ddp_needs", "let_go", "likeness_checked", "wrapped_on"]


def import_what_ddp_needs() -> None:
    """Import what the first DDP of a process would import, which takes a second."""
    with without_collection():
        import_module("torch._dynamo")


def likeness_checked(
    model: object,
    ddp: DDPOptions,
    device: torch.device,
    balance: "Balance | None" = None,
) -> Likeness:
    """Return what all ranks' models must share.

    Raises:
        SessionError: DDP refuses such a model; or, with a balance, such an option.
    """
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
    if device.type == "cpu" and any(
        isinstance(module, nn.SyncBatchNorm) for module in model.modules()
    ):
        raise SessionError(
            f"{type(model).__name__} has SyncBatchNorm layers; this runs on the CPU.",
            "torch synchronises batch norms on accelerators only.",
            "Convert it where the session's device is an accelerator: in "
            'gpumap.session(), if session.device.type != "cpu", before session.wrap().',
        )
    if balance is not None:
        from gpumap.runtime.weights import refuse_options  # noqa: PLC0415 - rare

        refuse_options(ddp)
    return likeness_of(model, ddp)


def wrapped_on(
    device: torch.device, model: nn.Module, ddp: DDPOptions
) -> DistributedDataParallel:
    """Move a model to a device and wrap it; all ranks do so together."""
    import_what_ddp_needs()
    on_cpu = device.type == "cpu"
    return DistributedDataParallel(
        model.to(device), device_ids=None if on_cpu else [device.index], **ddp
    )


def let_go(wrapped: DistributedDataParallel) -> None:
    """Drop what keeps the group's threads alive: they would abort an exiting Python."""
    for name in ("reducer", "logger", "process_group"):
        setattr(wrapped, name, None)
    for name in ("forward", "join", "__getstate__"):
        setattr(wrapped, name, _over)


def _over(*_: object, **__: object) -> NoReturn:
    """Raise, in place of methods that need the ended group, copying included."""
    raise SessionError(
        "the session is over, and with it the wrapped model.",
        "Its process group was destroyed when the block was left.",
        "Use m.module, the trained model itself.",
    )

"""Describes a rank's model for the other ranks, by torch."""

from collections.abc import Mapping
from types import NoneType

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gpumap.rendezvous.model_digest import Likeness

__all__ = ["likeness_of"]


def likeness_of(model: nn.Module, options: Mapping[str, object]) -> Likeness:
    """Return what all ranks must have in common of a model and its DDP options."""
    plain = {
        name: repr(value)
        if isinstance(value, bool | int | float | NoneType)
        else type(value).__name__
        for name, value in options.items()
    }
    return Likeness(_rows_of(model, options), plain)


def _rows_of(model: nn.Module, options: Mapping[str, object]) -> list[str]:
    """Return a row for each tensor that DDP synchronises: its kind, a tab, its name.

    options are DDP's: without init_sync and broadcast_buffers, buffers are each rank's
    own. So are the tensors that the model itself tells DDP to ignore.
    """
    ignored = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    rows = [
        f"{_kind(tensor)}{'' if tensor.requires_grad else ', frozen'}\tparameter {name}"
        for name, tensor in model.named_parameters()
        if name not in ignored
    ]
    if options.get("init_sync", True) or options.get("broadcast_buffers", True):
        rows += [
            f"{_kind(tensor)}\tbuffer {name}"
            for name, tensor in model.named_buffers()
            if name not in ignored
        ]
    return rows


def _kind(tensor: torch.Tensor) -> str:
    shape = "not initialised" if is_lazy(tensor) else str(tuple(tensor.shape))
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"

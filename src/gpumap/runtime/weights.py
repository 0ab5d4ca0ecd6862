"""The exact gradient of unequal batches under DistributedDataParallel."""

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from reprlib import repr as short
from typing import Any, NoReturn, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpumap.errors import SessionError
from gpumap.runtime.gradients import has_gradients, tensors_in, with_gradients
from gpumap.runtime.weighed_reduction import Hook, WeighedReduction

__all__ = ["Count", "Weights", "refuse_options"]

Count: TypeAlias = Callable[[tuple[object, ...], Mapping[str, object]], int]

_REFUSED_OPTIONS = {
    "delay_all_reduce_named_params": "Delayed gradients pass no communication hook.",
    "mixed_precision": "It reduces by a communication hook of its own.",
    "skip_all_reduce_unused_params": "The ranks may skip the bucket that counts.",
}
_REFUSED_METHODS = {
    "join": (
        "A rank that has no batch has no samples to count.",
        "Give every rank the same number of steps, as gpumap.BalancedSampler does.",
    ),
    "_register_builtin_comm_hook": (
        "No other hook can call a hook in C++.",
        "Register one of torch.distributed.algorithms.ddp_comm_hooks instead.",
    ),
    "_register_fused_optim": (
        "It would step with gradients that are not weighed yet.",
        "Call the optimizer's step() after backward().",
    ),
}


def refuse_options(options: Mapping[str, object]) -> None:
    """Check DDP's options.

    Raises:
        SessionError: With one of them, the gradient would not be exact.
    """
    for name, why in _REFUSED_OPTIONS.items():
        if options.get(name):
            raise SessionError(
                f"{name} cannot be used with unequal batches.",
                why,
                "Leave it out, or train with equal batches, without balance=….",
            )


class Weights:
    """Weighs every sample alike, however many of a batch each rank trains on.

    Rank r's loss is the mean over its n_r samples, of a batch of B on W ranks, and has
    the gradient g_r. DDP gives Σ g_r / W; one process on the whole batch has
    Σ n_r·g_r / Σ n_r. So the gradient of each output is multiplied by n_r·W / B on its
    way back into the model, and what was reduced by B·Σc / (W·Σn), with the sums over
    all ranks, n the samples and c the calls of the model since the last reduction. The
    second factor is 1 for full batches, and corrects the first for all others.

    With c calls to a reduction (gradient accumulation under no_sync), each loss divided
    by c as usual, a step equals that of one process on all samples of the c batches at
    once. It is also that of one process that accumulates, if its c batches are equally
    large. Where losses are not divided by c, it is c times as much, there and here.

    It is exact if each rank calls the model equally often for each reduction, each loss
    is a mean over the samples of one call, and a communication hook of the user's is
    linear and reduces over all ranks: register_comm_hook takes one, which then reduces
    in DDP's place. What samples have in common (batch norms, contrastive losses) is
    each rank's own, as it always is with DDP. Outputs are found in tuples, lists,
    mappings and dataclasses; gradients of tensors elsewhere are not weighed. Factors
    are rounded in an output's own precision, as all gradients are.
    """

    def __init__(
        self,
        wrapped: DistributedDataParallel,
        batch: int,
        *,
        count: Count | None = None,
        computed: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Install the hooks; the options of wrapped have passed refuse_options.

        Args:
            wrapped: The model, on all ranks, which has no communication hook yet.
            batch: Samples of a full batch, of all ranks together.
            count: Gives the samples of a call, from its args and kwargs, where that is
                not the first dimension of their first tensor.
            computed: Called once for each reduction, when this rank's own gradients are
                there and before it waits for others, with the samples of its last call.
        """
        self._wrapped = weakref.ref(wrapped)  # which holds this, by its hooks
        self._batch = batch
        self._ranks = dist.get_world_size()
        self._count = count or _first_dimension
        self._reduction = WeighedReduction(batch, computed)
        cast("Any", wrapped).register_comm_hook(None, self._reduction.reduce)
        self._handles = (
            wrapped.register_forward_pre_hook(self._enter, with_kwargs=True),
            wrapped.register_forward_hook(self._leave, with_kwargs=True),
        )
        self._methods: dict[str, Callable[..., None]] = {
            "register_comm_hook": self._compose,
            **{name: partial(_refuse, name) for name in _REFUSED_METHODS},
        }
        for name, method in self._methods.items():
            setattr(wrapped, name, method)

    def remove(self) -> None:
        """Remove the hooks, but for DDP's own hook, which then only reduces."""
        self._reduction.only_reduce()
        for handle in self._handles:
            handle.remove()
        wrapped = self._wrapped()
        for name, method in self._methods.items():
            if wrapped is not None and vars(wrapped).get(name) is method:
                delattr(wrapped, name)

    def _compose(self, state: object, hook: Hook) -> None:
        """Take a hook of the user's: the wrapped model's register_comm_hook."""
        if hook.__module__.endswith(".optimizer_overlap_hooks"):
            _refuse("_register_fused_optim")
        self._reduction.compose(state, hook)

    def _enter(
        self, _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        """Undo the outputs' factor where gradients leave the model by its inputs."""
        if not has_gradients((args, kwargs)):
            return None
        factor = self._batch / (self._samples_of(args, kwargs) * self._ranks)
        return with_gradients((args, kwargs), lambda gradient: gradient * factor)

    def _leave(
        self,
        _: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        output: object,
    ) -> object:
        """Multiply the gradient of each output, and count the call once one comes."""
        if not has_gradients(output):
            return output
        samples = self._samples_of(args, kwargs)
        factor = samples * self._ranks / self._batch
        is_counted = False

        def weigh(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal is_counted
            if not is_counted:
                is_counted = True
                self._reduction.add(samples)
            return gradient if factor == 1 else gradient * factor

        return with_gradients(output, weigh)

    def _samples_of(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> int:
        samples = self._count(args, kwargs)
        if type(samples) is not int or samples < 1:
            raise SessionError(
                f"the wrapped model is called with {short(samples)} samples.",
                "A rank's loss is the mean over one or more.",
                "Give every rank a sample in each step, and let count= return a whole "
                "number.",
            )
        return samples


def _first_dimension(args: tuple[object, ...], kwargs: Mapping[str, object]) -> int:
    for tensor in tensors_in((args, kwargs)):
        if tensor.ndim:
            return len(tensor)
    raise SessionError(
        "the wrapped model is called with an unknown number of samples.",
        "No tensor is found among its arguments.",
        "Say how to count them: count=lambda args, kwargs: ….",
    )


def _refuse(name: str, *_: object, **__: object) -> NoReturn:
    why, instead = _REFUSED_METHODS[name]
    raise SessionError(f"{name} cannot be used with unequal batches.", why, instead)

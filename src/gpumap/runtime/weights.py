"""The exact gradient of unequal batches under DistributedDataParallel."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpumap.errors import SessionError
from gpumap.runtime.gradients import has_gradients, with_gradients
from gpumap.runtime.samples import Count, samples_of
from gpumap.runtime.weighed_reduction import Hook, WeighedReduction

__all__ = ["Weights", "refuse_options"]

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
    Σ n_r·g_r / Σ n_r. So each bucket of gradients is multiplied by n_r·W / B before it
    is reduced, and by B·Σc / (W·Σn) afterwards, with the sums over all ranks, n the
    samples and c the calls of the model since the last reduction. The second factor is
    1 for full batches, and corrects the first for all others. It does not matter which
    way a gradient has come to its parameter: by an output of the model, by a loss that
    a module keeps, or by a penalty on the parameters themselves.

    With c calls to a reduction (gradient accumulation under no_sync), each loss divided
    by c as usual, a step equals that of one process on all samples of the c batches at
    once. It is also that of one process that accumulates, if its c batches are equally
    large. Where losses are not divided by c, it is c times as much, there and here.
    n_r is then that of the first call, and gradients by the outputs of each other call
    are multiplied by its samples over n_r, on their way back into the model.

    It is exact if each rank calls the model equally often for each reduction, each loss
    is a mean over the samples of its call, and a communication hook of the user's is
    linear and reduces over all ranks: register_comm_hook takes one, which then reduces
    in DDP's place. If calls of different sizes are accumulated, gradients that come
    otherwise than by outputs, and what was in .grad before, count as the first call
    does; outputs are looked for in tuples, lists, mappings and dataclasses. What
    samples have in common (batch norms, contrastive losses) is each rank's own, as it
    always is with DDP. Factors are rounded in the gradients' own precision.
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
        self._count = count
        self._reduction = WeighedReduction(batch, computed)
        cast("Any", wrapped).register_comm_hook(None, self._reduction.reduce)
        self._handles = (
            wrapped.register_forward_pre_hook(self._enter, with_kwargs=True),
            wrapped.register_forward_hook(self._leave, with_kwargs=True),
        )
        self._methods: dict[str, Callable[..., object]] = {
            "register_comm_hook": self._compose,
            "__getstate__": self._state_of_a_copy,
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

    def _state_of_a_copy(self) -> dict[str, Any]:
        """Return what a copy or file of the wrapped model has: nothing of gpumap's."""
        state: dict[str, Any] = cast("Any", DistributedDataParallel).__getstate__(
            self._wrapped()
        )
        for name in self._methods:
            state.pop(name, None)
        for name in ("_forward_pre_hooks", "_forward_hooks"):
            state[name] = OrderedDict(
                (key, hook) for key, hook in state[name].items() if not _is_ours(hook)
            )
        return state | {"_comm_hooks": []}

    def _enter(
        self,
        wrapped: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        """Undo the outputs' factor where gradients leave the model by its inputs."""
        if self._reduction.has_counted and all(
            parameter.grad is None for parameter in wrapped.parameters()
        ):
            self._reduction.forget()
        if not has_gradients((args, kwargs)):
            return None
        samples = samples_of(self._count, args, kwargs)

        def undo(gradient: torch.Tensor) -> torch.Tensor:
            factor = self._reduction.over_the_first(samples)
            return gradient if factor == 1 else gradient / factor

        return with_gradients((args, kwargs), undo)

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
        samples = samples_of(self._count, args, kwargs)
        is_counted = False

        def weigh(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal is_counted
            if not is_counted:
                is_counted = True
                self._reduction.add(samples)
            factor = self._reduction.over_the_first(samples)
            return gradient if factor == 1 else gradient * factor

        return with_gradients(output, weigh)


def _is_ours(hook: Callable[..., object]) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("gpumap.")


def _refuse(name: str, *_: object, **__: object) -> NoReturn:
    why, instead = _REFUSED_METHODS[name]
    raise SessionError(f"{name} cannot be used with unequal batches.", why, instead)

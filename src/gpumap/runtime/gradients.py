"""Changing gradients where they enter or leave a model, whatever holds its tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, TypeVar, cast

import torch

from gpumap.errors import SessionError

__all__ = ["has_gradients", "tensors_in", "with_gradients"]

T = TypeVar("T")


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value: of tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for part in _parts(value):
            yield from tensors_in(part)


def has_gradients(value: object) -> bool:
    """Tell whether gradients will flow back through a tensor of a value."""
    return torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in tensors_in(value)
    )


def with_gradients(value: T, change: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """Return an equal value through whose tensors gradients flow back changed.

    Tensors share their memory with those of the value; what holds them is a copy. Only
    gradients that come from outside are changed: a loss and the logits that it was made
    of may both be in the value, and the gradient of each passes the change once. A
    mapping that cannot be modified, and is no MappingProxyType, stays as it is.
    """
    return cast("T", _changed(value, change)) if has_gradients(value) else value


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, tuple | list):
        return cast("Iterable[object]", value)
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).values()
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return ()


def _changed(value: object, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401 - a value of the same type
    if isinstance(value, torch.Tensor):
        return cast("Any", _Changed).apply(value, change)
    parts = [with_gradients(part, change) for part in _parts(value)]
    if isinstance(value, tuple):
        of = cast("Any", type(cast("object", value)))
        return of(*parts) if hasattr(of, "_fields") else of(parts)
    if isinstance(value, MappingProxyType):
        keys = cast("Mapping[object, object]", value)
        return MappingProxyType(dict(zip(keys, parts, strict=True)))
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return cast("object", value)
    new: Any = copy(cast("Any", value))
    if isinstance(value, list):
        new[:] = parts
    elif isinstance(value, MutableMapping):
        # One by one: the outputs of Hugging Face's transformers refuse update().
        for key, part in zip(list(new), parts, strict=True):
            new[key] = part
    else:
        for field, part in zip(fields(new), parts, strict=True):
            object.__setattr__(new, field.name, part)  # also if it is frozen
    return new


class _Changed(torch.autograd.Function):
    """The same tensor, whose gradient is changed on its way back."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own
        tensor: torch.Tensor,
        change: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        ctx.change = change
        # Not a view: it can be modified in place, as the tensor itself could be.
        return tensor.detach()

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - torch's own
        *grad_outputs: torch.Tensor,
    ) -> tuple[torch.Tensor, None]:
        if torch.is_grad_enabled():
            raise SessionError(
                "a gradient is to be differentiated again (create_graph=True).",
                "The samples of unequal batches are weighed in first gradients only.",
                "Train with equal batches, without balance=….",
            )
        (gradient,) = grad_outputs
        return ctx.change(gradient), None

"""The number of samples in a call of a model."""

from collections.abc import Callable, Mapping
from operator import index
from reprlib import repr as short
from typing import SupportsIndex, TypeAlias, cast

from gpumap.errors import SessionError
from gpumap.runtime.gradients import tensors_in

__all__ = ["Count", "samples_of"]

Count: TypeAlias = Callable[[tuple[object, ...], Mapping[str, object]], SupportsIndex]


def samples_of(
    count: Count | None, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> int:
    """Return the number that count gives of a call's arguments, 1 or more.

    Without count it is the first dimension of the first tensor that has one.

    Raises:
        SessionError: There is no such tensor, or count gives no whole number from 1 on.
    """
    if count is None:
        return _whole(_first_dimension(args, kwargs))
    return _whole(count(args, kwargs))


def _whole(samples: object) -> int:
    """Return a number, also one of numpy's or of a tensor, as an int."""
    try:
        found = index(cast("SupportsIndex", samples))
    except TypeError:
        found = 0
    if found < 1 or isinstance(samples, bool):
        raise SessionError(
            f"the wrapped model is called with {short(samples)} samples.",
            "A rank's loss is the mean over one or more.",
            "Give every rank a sample in each step, and let count= return a whole "
            "number: int(…).",
        )
    return found


def _first_dimension(args: tuple[object, ...], kwargs: Mapping[str, object]) -> int:
    for tensor in tensors_in((args, kwargs)):
        if tensor.ndim:
            return len(tensor)
    raise SessionError(
        "the wrapped model is called with an unknown number of samples.",
        "No tensor is found among its arguments.",
        "Say how to count them: count=lambda args, kwargs: ….",
    )

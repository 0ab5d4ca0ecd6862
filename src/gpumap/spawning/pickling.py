"""Pickling of functions, arguments and results between spawn and its ranks."""

import io
import logging
import pickle
from importlib import import_module
from typing import Any

import torch

__all__ = ["dumps", "loads"]

log = logging.getLogger(__name__)


def dumps(value: object, pickler: str) -> bytes:
    """Pickle a value, with its tensors on the CPU.

    pickler is "pickle" or "cloudpickle", which includes definitions that another
    process cannot import. A tensor that stayed on its accelerator would open a context
    there in every process that loads it.
    """
    base: Any = import_module(pickler)  # cloudpickle is an extra, without types
    moved: list[torch.device] = []

    class OnCPU(base.Pickler):  # type: ignore[misc]
        """A pickler that replaces tensors by copies on the CPU."""

        def reducer_override(self, thing: object) -> Any:  # noqa: ANN401 - pickle's own signature
            if type(thing) is torch.Tensor and is_on_accelerator(thing):
                moved.append(thing.device)
                copy: Any = thing.detach().cpu().requires_grad_(thing.requires_grad)
                return copy.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
            above = getattr(super(), "reducer_override", None)
            return NotImplemented if above is None else above(thing)

    file = io.BytesIO()
    OnCPU(file, pickle.DEFAULT_PROTOCOL).dump(value)
    if moved:
        log.warning(
            "tensors on %s went to another process as copies on the CPU, since each "
            "process that loads one would open a context there. Move them to "
            "gpumap.current().device where they are needed.",
            ", ".join(sorted(set(map(str, moved)))),
        )
    return file.getvalue()


def loads(data: bytes) -> Any:  # noqa: ANN401 - whatever was pickled
    """Load what dumps() made in a process of the same spawn."""
    return pickle.loads(data)  # noqa: S301 - from our own pipes


def is_on_accelerator(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's values are in the memory of an accelerator."""
    return tensor.device.type not in ("cpu", "meta")

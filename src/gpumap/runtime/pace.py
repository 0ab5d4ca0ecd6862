"""How fast this rank trains, without the time that it waits for others."""

from collections import deque
from statistics import median
from time import perf_counter
from typing import Any, Protocol, Self, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Pace"]

# The first steps choose kernels, ask for memory and rebuild DDP's buckets.
_FIRST_STEPS = 3


class Pace:
    """Times steps, from the begin of a forward to this rank's own last gradient.

    That leaves out the optimizer, the data loader, and what ranks wait for each other
    for: DDP's broadcast of buffers before the forward, and its reduction. Collectives
    of the model itself are not left out, such as SyncBatchNorm's. Of several forwards
    to one reduction (gradient accumulation) the last is timed.

    On an accelerator its events give the times, and nothing waits for it. On the CPU
    the clock gives them; ranks on the same cores slow each other down, and it shows.
    """

    def __init__(self, wrapped: DistributedDataParallel) -> None:
        """Install a hook that starts the clock; Weights calls computed, to stop it."""
        ddp = cast("Any", wrapped)  # its own attributes have no types
        self._device: torch.device = ddp.device
        self._began: _Moment | None = None
        self._pending: deque[tuple[_Moment, _Moment, int]] = deque()
        self._seconds: list[float] = []
        self._handle = wrapped.register_forward_pre_hook(self._await)

    def computed(self, samples: int) -> None:
        """Stop the clock: the gradients of so many samples are computed."""
        if self._began is not None:
            self._pending.append((self._began, _now(self._device), samples))
            self._began = None
        self._read()

    def samples_per_second(self) -> float | None:
        """Return the median over the steps since the last call; None without any.

        The first 3 steps count only if there are no 6. Steps that an accelerator has
        not finished yet do not count.
        """
        self._read()
        self._pending.clear()
        seconds, self._seconds = self._seconds, []
        if not seconds:
            return None
        counted = seconds[_FIRST_STEPS:] if len(seconds) >= 2 * _FIRST_STEPS else None
        return 1 / median(counted or seconds)

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def _await(self, wrapped: nn.Module, _: tuple[object, ...]) -> None:
        """Start the clock once DDP calls the model, after its broadcast of buffers."""
        if not torch.is_grad_enabled():
            return

        def begin(*_: object) -> None:
            # The model may be saved or copied between two forwards, without this hook.
            handle.remove()
            self._began = _now(self._device)

        module: nn.Module = cast("Any", wrapped).module
        handle = module.register_forward_pre_hook(begin)

    def _read(self) -> None:
        """Read the times of the steps that are finished."""
        while self._pending and self._pending[0][1].query():
            began, ended, samples = self._pending.popleft()
            self._seconds.append(began.elapsed_time(ended) / 1000 / samples)


class _Moment(Protocol):
    """A point in time, as torch.cuda.Event is one on its device."""

    def query(self) -> bool:
        """Tell whether it has come."""
        ...

    def elapsed_time(self, end: Self, /) -> float:
        """Return the milliseconds from this to another."""
        ...


class _Instant:
    """A point in time of the CPU, which has come once it is noted."""

    def __init__(self) -> None:
        self._at = perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Self, /) -> float:
        return (end._at - self._at) * 1000


def _now(device: torch.device) -> _Moment:
    if device.type == "cpu":
        return _Instant()
    event: Any = torch.get_device_module(device).Event(enable_timing=True)
    event.record()
    moment: _Moment = event
    return moment

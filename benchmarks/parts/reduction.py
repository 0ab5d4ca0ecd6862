"""One rank's part of a measurement: all-reduces that are checked, then timed.

Nothing here knows gpumap; the group that is open is the one that is measured.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

__all__ = ["Buffers", "Measured", "checked", "expected", "filled", "timed"]

# A prime, so that no shift by a block's size looks right.
_PERIOD = 7
_PIECE = 2**24


@dataclass(frozen=True)
class Buffers:
    """What an all-reduce reads from, and what it leaves its result in."""

    source: torch.Tensor
    result: torch.Tensor

    @classmethod
    def of(cls, count: int, dtype: torch.dtype, device: torch.device) -> "Buffers":
        """Allocate both, filled with what this rank contributes."""
        source = filled(dist.get_rank(), count, dtype, device)
        return cls(source, source.clone())

    def first(self, count: int) -> "Buffers":
        """Return the first elements of both."""
        return Buffers(self.source[:count], self.result[:count])


@dataclass(frozen=True)
class Measured:
    """Out of place and in place: a number for each."""

    out_of_place: float
    in_place: float


def filled(
    rank: int, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return what a rank contributes: (i + rank) mod 7 at place i."""
    return _tiled([(i + rank) % _PERIOD for i in range(_PERIOD)], count, dtype, device)


def expected(
    world_size: int, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the sum of what all ranks contribute."""
    sums = [
        sum((i + rank) % _PERIOD for rank in range(world_size)) for i in range(_PERIOD)
    ]
    return _tiled(sums, count, dtype, device)


def _tiled(
    values: list[int], count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    pattern = torch.tensor(values, dtype=dtype, device=device)
    return pattern.repeat(count // _PERIOD + 1)[:count].contiguous()


def checked(buffers: Buffers) -> Measured:
    """Return how many elements, over all ranks, are wrong after one all-reduce."""
    source, result = buffers.source, buffers.result
    right = expected(dist.get_world_size(), source.numel(), source.dtype, source.device)
    out_of_place(source, result)
    wrong_out = _differences(result, right)
    result.copy_(source)
    dist.all_reduce(result)
    wrong = torch.stack([wrong_out, _differences(result, right)])
    dist.all_reduce(wrong)
    return Measured(*map(int, wrong.tolist()))


def _differences(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Count piece by piece: torch's count of a mask takes eight bytes an element."""
    pieces = (slice(first, first + _PIECE) for first in range(0, a.numel(), _PIECE))
    return torch.stack([(a[piece] != b[piece]).sum() for piece in pieces]).sum()


def timed(buffers: Buffers, warm_ups: int, iterations: int) -> Measured:
    """Return the mean seconds of an all-reduce, over iterations and ranks."""
    source, result = buffers.source, buffers.result
    for _ in range(warm_ups):
        dist.all_reduce(result)
    result.copy_(source)
    _meet(result)
    began = time.perf_counter()
    for _ in range(iterations):
        out_of_place(source, result)
    _finish(result)
    between = time.perf_counter()
    result.copy_(source)
    _meet(result)
    restart = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(result)
    _finish(result)
    seconds = torch.tensor(
        [between - began, time.perf_counter() - restart], device=result.device
    )
    dist.all_reduce(seconds)
    seconds /= iterations * dist.get_world_size()
    return Measured(*seconds.tolist())


def out_of_place(source: torch.Tensor, result: torch.Tensor) -> None:
    """Copy, then reduce in place: what torch's functional all_reduce does."""
    result.copy_(source)
    dist.all_reduce(result)


def _meet(tensor: torch.Tensor) -> None:
    """Return once all ranks are here and nothing is left to do on the device."""
    dist.all_reduce(torch.ones(1, device=tensor.device))
    _finish(tensor)


def _finish(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        torch.accelerator.synchronize(tensor.device)

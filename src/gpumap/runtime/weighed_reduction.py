"""DDP's reduction of gradients, multiplied so that every sample counts alike."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gpumap.errors import SessionError

__all__ = ["Hook", "WeighedReduction"]

_Gradients: TypeAlias = torch.futures.Future[torch.Tensor]
_Sums: TypeAlias = torch.futures.Future[list[torch.Tensor]]
Hook: TypeAlias = Callable[[Any, dist.GradBucket], _Gradients]


class WeighedReduction:
    """Reduces as the user's hook does or DDP would, and multiplies before and after.

    With a batch of B on W ranks, this rank's gradients are multiplied by n₁·W / B: n₁
    are the samples of its first call of the model since the last reduction. What was
    reduced is multiplied by B·Σc / (W·Σn): c are the calls since then and n their
    samples, summed over the ranks by one more all-reduce of two integers. It begins
    before the first bucket's, and nothing waits for it on the host.

    The first factor takes the place of DDP's own division by W, so that a step has one
    more multiplication than DDP's, and on the CPU none where the second factor is 1.
    """

    def __init__(self, batch: int, computed: Callable[[int], None]) -> None:
        """Set the batch, and what is called once this rank's own gradients are there.

        computed is given the samples of the last call of the model.
        """
        self._batch = batch
        self._ranks = dist.get_world_size()
        self._computed = computed
        self._samples = self._calls = self._first = self._latest = 0
        self._sums: _Sums | None = None
        self._hook: Hook | None = None
        self._state: object = None
        self._only_reduces = False

    @property
    def has_counted(self) -> bool:
        """Whether calls have been counted since the last reduction."""
        return self._calls > 0

    def compose(self, state: object, hook: Hook) -> None:
        """Reduce by a hook of the user's, as register_comm_hook registers it."""
        if self._hook is not None:
            raise SessionError(
                "a second communication hook cannot be registered.",
                "DistributedDataParallel calls one.",
                "Register one that does both.",
            )
        self._state, self._hook = state, hook

    def only_reduce(self) -> None:
        """Multiply no more."""
        self._only_reduces = True

    def add(self, samples: int) -> None:
        """Count one call of the model, whose gradient has come."""
        if self._sums is not None:
            raise SessionError(
                "a call of the wrapped model counts too late.",
                "Its gradient came when others of the same backward were reduced.",
                "Call the model once for each backward, or backward under no_sync().",
            )
        if not self._calls:
            self._first = samples
        self._samples += samples
        self._calls += 1
        self._latest = samples

    def forget(self) -> None:
        """Count anew: the gradients of the calls so far were thrown away."""
        self._samples = self._calls = 0

    def over_the_first(self, samples: int) -> float:
        """Return samples over those of the first call that was counted."""
        return samples / (self._first or samples)

    def reduce(
        self, _: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """Multiply a bucket, reduce it, and multiply; a communication hook of DDP.

        Source: torch/csrc/distributed/c10d/reducer.cpp, mark_bucket_ready: every rank
        reduces its buckets in the order of their index.
        """
        if self._only_reduces:
            hook = cast("Hook", self._hook or allreduce_hook)
            return hook(self._state, bucket)
        if bucket.index() == 0:
            self._sums = self._sum_up(bucket.buffer().device)
        assert self._sums is not None  # noqa: S101 - index 0 came first
        multiplied = partial(self._multiplied, self._sums)
        if bucket.is_last():
            self._sums = None
            self._computed(self._latest)
        # Divided, not multiplied: where this is W, it is DDP's own rounding.
        parts = self._batch / self._first
        if self._hook is None:
            bucket.buffer().div_(parts)
            return _summed(bucket.buffer()).then(_first_of).then(multiplied)
        if parts != self._ranks:
            bucket.buffer().div_(parts / self._ranks)
        return self._hook(self._state, bucket).then(multiplied)

    def _sum_up(self, device: torch.device) -> _Sums:
        """Begin to sum the samples and calls of all ranks, and count anew."""
        if not self._calls:
            raise SessionError(
                "there are gradients that no call of the wrapped model has given.",
                "They come from a call of m.module, or from tensors of an output that "
                "are in no tuple, list, mapping or dataclass.",
                "Call m(…) itself, and return a tensor in one of these.",
            )
        # fill_ copies nothing from the host, which would wait for that.
        sums = torch.full((2,), self._calls, dtype=torch.int64, device=device)
        sums[0].fill_(self._samples)
        self._samples = self._calls = 0
        return _summed(sums)

    def _multiplied(self, sums: _Sums, reduced: _Gradients) -> torch.Tensor:
        gradients = reduced.value()
        samples, calls = sums.wait()[0]
        dtype = torch.promote_types(gradients.dtype, torch.float32)
        factor = (calls * self._batch).to(dtype) / (samples * self._ranks)
        # To look at the factor, the host would have to wait for an accelerator.
        if factor.is_cpu and factor == 1:
            return gradients
        return gradients.mul_(factor)


def _summed(tensor: torch.Tensor) -> _Sums:
    """Begin to sum a tensor up over the ranks, as DDP does after its division."""
    future: _Sums = cast("Any", dist).all_reduce(tensor, async_op=True).get_future()
    return future


def _first_of(done: _Sums) -> torch.Tensor:
    return done.value()[0]

"""Two ranks of unequal speed, which train by one of several ways."""

import os
import time
from copy import deepcopy
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset

import gpumap
from gpumap.mapping.base import FrozenModel

__all__ = ["WAYS", "Job", "Step", "Way", "train"]

Way: TypeAlias = Literal["equal", "balanced", "adapting"]
WAYS: tuple[Way, ...] = ("equal", "balanced", "adapting")

# Small enough for a core's own cache, so that a sample takes as long in each batch.
_ROWS, _WIDTH = 8, 128
_BACKWARD = 2  # in forwards
_SEED = 3


class Job(FrozenModel):
    """What both ranks train.

    Attributes:
        k: How many times as long as rank 0 rank 1 computes for a sample.
        batch: Samples of a step, of both ranks together.
        length: Samples of the data set.
        epochs: How often it is trained on.
        work: What rank 0 computes for a sample, in forwards; a backward counts as two.
    """

    way: Way
    k: float
    batch: int
    length: int
    epochs: int = 1
    work: int = 432


class Step(FrozenModel):
    """One rank's step; times in seconds of one clock of the machine.

    Attributes:
        samples: This rank's samples.
        loss: The mean over them.
        began: When it had its samples.
        computed: When its own gradients were there.
        cpu: Seconds of a CPU that it had from began to computed.
        ended: When the optimizer had used those of all ranks.
        alone: Seconds of the same step without the other rank, in the last epoch.
    """

    epoch: int
    samples: int
    loss: float
    began: float
    computed: float
    cpu: float
    ended: float
    alone: float | None


class _Laborious(nn.Module):
    """Computes a net's outputs many times over, and returns them once."""

    def __init__(self, net: nn.Module, times: int) -> None:
        super().__init__()
        self.net = net
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(self.times - 1):
                self.net(x)
        outputs: torch.Tensor = self.net(x)
        return outputs


def train(job: Job) -> list[Step]:
    """Train in a session of its own; return this rank's steps.

    In the last epoch each step is followed by one on the same samples, at the same time
    on both ranks, of a model that is each rank's own: no gradients are exchanged.
    """
    rank = gpumap.detect_launch().rank
    _keep_to_a_core(rank)
    work = round(job.work * (job.k if rank else 1))
    model = _Laborious(_net(), work - _BACKWARD)
    speeds: Any = "adapt" if job.way == "adapting" else {0: job.k, 1: 1.0}
    balance = None
    if job.way != "equal":
        balance = gpumap.Balance(batch=job.batch, speeds=speeds)
    own = _Trainer(deepcopy(model))
    with gpumap.ddp_session(model, balance=balance) as wrapped:
        shared = _Trainer(wrapped)
        loader = _loader(_data(job.length), job)
        return [
            _step(epoch, inputs, targets, shared, own if is_last else None)
            for epoch in range(job.epochs)
            for is_last in [epoch == job.epochs - 1]
            for inputs, targets in loader
        ]


def _loader(data: TensorDataset, job: Job) -> DataLoader[Any]:
    if job.way != "equal":
        batches = gpumap.BalancedSampler(data, seed=_SEED)
        return DataLoader(data, batch_sampler=batches)
    order: Sampler[int] = DistributedSampler(data, seed=_SEED)
    return DataLoader(data, job.batch // gpumap.current().world_size, sampler=order)


class _Trainer:
    """Trains a model, and notes when its gradients are computed."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._computed: list[tuple[float, float]] = []
        self._optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
        if isinstance(model, DistributedDataParallel) and dist.get_world_size() > 1:
            model.register_comm_hook(None, self._reduce)

    @property
    def computed(self) -> tuple[float, float]:
        """When the last step had computed this rank's own gradients, as _now() says."""
        return self._computed[0]

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Return the loss."""
        self._computed.clear()
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        torch.autograd.backward(loss)
        self._computed.append(_now())
        self._optimizer.step()
        return loss.item()

    def _reduce(
        self, _: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        self._computed.append(_now())
        return allreduce_hook(None, bucket)  # type: ignore[arg-type] # the usual group


def _step(
    epoch: int,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    shared: _Trainer,
    own: _Trainer | None,
) -> Step:
    _meet()
    began, cpu = _now()
    loss = shared.step(inputs, targets)
    ended, _ = _now()
    computed, then = shared.computed
    alone = None
    if own is not None:
        _meet()
        start, _ = _now()
        own.step(inputs, targets)
        alone = _now()[0] - start
    return Step(
        epoch=epoch,
        samples=len(inputs),
        loss=loss,
        began=began,
        computed=computed,
        cpu=then - cpu,
        ended=ended,
        alone=alone,
    )


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def _now() -> tuple[float, float]:
    """Return the machine's clock, and what this process has had of its CPUs."""
    return time.monotonic(), time.process_time()


def _keep_to_a_core(rank: int) -> None:
    """Let this rank, and all threads that it starts, run on one core of its own."""
    torch.set_num_threads(1)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, _WIDTH)
    return nn.Sequential(*layers).double()


@cache
def _data(length: int) -> TensorDataset:
    """Return samples of unequal size, so that the losses of batches differ."""
    generator = torch.Generator().manual_seed(1)
    shape = length, _ROWS, _WIDTH
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x *= 2 * torch.rand(length, 1, 1, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.roll(1, dims=2).tanh())

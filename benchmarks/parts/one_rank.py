"""One rank of a two-process gloo job, opened and closed in one of several ways.

`python benchmarks/parts/one_rank.py WAY STEPS` prints the seconds of each phase as
JSON. Each way imports what it needs, then wraps a model as its own documentation does.
"""

import json
import statistics
import sys
import time
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    Backward = Callable[[Tensor], object]
    Wrapped = tuple[nn.Module, Backward]
    Opener = Callable[[nn.Module], AbstractContextManager[Wrapped]]

__all__ = ["WAYS"]


def _torch() -> "Opener":
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    @contextmanager
    def opened(model: "nn.Module") -> "Generator[Wrapped, None, None]":
        dist.init_process_group("gloo")
        yield DistributedDataParallel(model), torch.autograd.backward
        dist.destroy_process_group()

    return opened


def _gpumap() -> "Opener":
    import torch

    import gpumap

    ddp_session = gpumap.ddp_session  # loads what a session needs

    @contextmanager
    def opened(model: "nn.Module") -> "Generator[Wrapped, None, None]":
        with ddp_session(model) as m:
            yield m, torch.autograd.backward

    return opened


def _accelerate() -> "Opener":
    from accelerate import Accelerator

    @contextmanager
    def opened(model: "nn.Module") -> "Generator[Wrapped, None, None]":
        accelerator = Accelerator(cpu=True)
        yield accelerator.prepare(model), accelerator.backward
        accelerator.end_training()

    return opened


def _fabric() -> "Opener":
    import torch.distributed as dist
    from lightning_fabric import Fabric

    @contextmanager
    def opened(model: "nn.Module") -> "Generator[Wrapped, None, None]":
        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        yield fabric.setup_module(model), fabric.backward
        dist.destroy_process_group()

    return opened


def _ignite() -> "Opener":
    import ignite.distributed as idist
    import torch

    @contextmanager
    def opened(model: "nn.Module") -> "Generator[Wrapped, None, None]":
        idist.initialize("gloo")
        yield idist.auto_model(model), torch.autograd.backward
        idist.finalize()

    return opened


WAYS: "dict[str, Callable[[], Opener]]" = {
    "torch": _torch,
    "gpumap": _gpumap,
    "accelerate": _accelerate,
    "lightning_fabric": _fabric,
    "ignite": _ignite,
}
"""By the name of the module that each imports; torch is written by hand."""


def main(way: str, steps: int) -> None:
    """Import, set up, train, tear down; print the seconds of each."""
    times: dict[str, float] = {}
    began = time.perf_counter()
    import torch

    opener = WAYS[way]()
    times["import"] = time.perf_counter() - began

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )
    x = torch.randn(64, 256)
    other = deepcopy(model)
    began = time.perf_counter()
    with opener(model) as (m, backward):
        times["set-up"] = time.perf_counter() - began
        times["first step"] = _step(m, x, backward)
        times |= _compared(m, backward, other, x, steps)
        began = time.perf_counter()
    times["tear-down"] = time.perf_counter() - began
    times["import + set-up"] = times["import"] + times["set-up"]
    print(json.dumps(times), flush=True)


def _compared(
    m: "nn.Module",
    backward: "Backward",
    other: "nn.Module",
    x: "Tensor",
    steps: int,
) -> dict[str, float]:
    """Take steps with this wrap and with one by hand in turn; return the medians."""
    from torch.autograd import backward as usual
    from torch.nn.parallel import DistributedDataParallel

    plain = DistributedDataParallel(other)
    _step(plain, x, usual)
    each = [(_step(m, x, backward), _step(plain, x, usual)) for _ in range(steps)]
    own, by_hand = (statistics.median(seconds) for seconds in zip(*each, strict=True))
    return {"step": own, "step by hand": by_hand}


def _step(m: "nn.Module", x: "Tensor", backward: "Backward") -> float:
    """Run forward and backward; return the seconds."""
    began = time.perf_counter()
    backward(m(x).sum())
    return time.perf_counter() - began


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

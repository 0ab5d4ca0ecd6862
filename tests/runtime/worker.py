"""What the ranks of a test job do: `python worker.py CASE`."""

import gc
import os
import sys
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gpumap

RANK = int(os.environ.get("RANK", "0"))
START = float(os.environ.get("START_TIMEOUT", "30"))


def model() -> nn.Module:
    torch.manual_seed(RANK)
    return nn.Linear(2, 1)


def step(m: nn.Module) -> float:
    loss = m(torch.full((4, 2), float(RANK))).sum()
    loss.backward()
    return float(loss.detach())


def ddp(**options: Any) -> Any:
    return gpumap.ddp_session(model(), start_timeout=START, timeout=20, **options)


def train() -> None:
    """One step; prints the mapped device, the device in use and the gradient."""
    with ddp() as m:
        step(m)
        s = gpumap.current()
        grad = m.module.weight.grad
        print(
            f"rank={s.rank} world={s.world_size} device={s.device} "
            f"mapped={s.placement.device.kind}:{s.placement.device.index} "
            f"grad={grad.tolist()}"
        )
    print("initialized =", dist.is_initialized())


def explicit() -> None:
    """Explicit ids from the environment."""
    gpus = [int(x) for x in os.environ["GPUS"].split(",")]
    with ddp(gpus=gpus) as m:
        step(m)
        print("mapped", gpumap.current().placement.device)


def modulo() -> None:
    with ddp(strategy="modulo") as m:
        step(m)
        print("mapped", gpumap.current().placement.device)


def shared() -> None:
    """Two ranks on one device, as gloo can."""
    with ddp(strategy="modulo", oversubscribe=True, backend="gloo") as m:
        step(m)
        print("mapped", gpumap.current().placement.device)


def body_fails() -> None:
    """Rank FAILS raises in the body; the others go on with a collective."""
    try:
        with ddp() as m:
            step(m)
            if os.environ["FAILS"] == str(RANK):
                raise ValueError("bad batch")
            for _ in range(1000):
                step(m)
    except Exception as error:
        print("args", error.args)
        print("notes", getattr(error, "__notes__", []))
        raise


def fails_when_other_has_ended() -> None:
    with ddp() as m:
        step(m)
        if RANK == 1:
            time.sleep(1)
            raise ValueError("late failure")


def forty() -> None:
    """Forty sessions in a row on one port, one rank half a second behind."""
    for n in range(int(os.environ.get("SESSIONS", "40"))):
        if RANK == 1 and n < 4:
            time.sleep(0.5)
        with ddp() as m:
            x = torch.tensor([float(n)])
            dist.all_reduce(x)
            assert x.item() == 2 * n
            step(m)
    print("sessions ok")


def job() -> None:
    """Two jobs on one port must never add up each other's numbers."""
    with ddp() as _:
        x = torch.tensor([1.0 if os.environ["JOB"] == "A" else 100.0])
        dist.all_reduce(x)
        print("sum", x.item())


def own_group() -> None:
    """A process group that exists already is used and left standing."""
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    for _ in range(2):
        with ddp() as m:
            step(m)
            print("rank", gpumap.current().rank)
    assert dist.group.WORLD is group
    dist.barrier()
    dist.destroy_process_group()
    print("left standing")


def buffers() -> None:
    """Buffers follow rank 0, as DDP does by itself."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[1].running_mean.fill_(float(RANK))
    with gpumap.ddp_session(net, start_timeout=START) as m:
        print("mean at start", m.module[1].running_mean.tolist())
        m.eval()
        m(torch.ones(3, 2))
    print("names", sorted(dict(net.named_buffers())))


def unused() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x)

    with gpumap.ddp_session(
        Half(), start_timeout=START, find_unused_parameters=True
    ) as m:
        for _ in range(3):
            step(m)
        print("unused ok", m.find_unused_parameters)


def no_sync() -> None:
    """Gradients stay this rank's own inside no_sync, and are averaged after it."""
    with ddp() as m:
        with m.no_sync():
            step(m)
        print("own", m.module.weight.grad.tolist())
        m.zero_grad()
        step(m)
        print("mean", m.module.weight.grad.tolist())


def after() -> None:
    hook = sys.excepthook
    with ddp() as m:
        step(m)
    assert sys.excepthook is hook
    print("module", m.module(torch.ones(1, 2)).shape)
    try:
        m(torch.ones(1, 2))
    except gpumap.SessionError as error:
        print("said", error)


def session_only() -> None:
    with gpumap.session(start_timeout=START) as s:
        x = torch.tensor([float(s.rank)], device=s.device)
        dist.all_reduce(x)
        s.store.set(f"hello/{s.rank}", str(s.rank))
        s.store.wait(["hello/0", "hello/1"])
        print("sum", x.item(), "device", s.device)


def frozen() -> None:
    net = model()
    net.requires_grad_(False)
    with gpumap.ddp_session(net, start_timeout=START):
        pass


def uneven_model() -> None:
    """The ranks' models differ: torch finds it while wrapping."""
    with gpumap.ddp_session(nn.Linear(2, 1 + RANK), start_timeout=START, timeout=10):
        pass


def counting() -> None:
    """What a list of the files and threads that a session leaves behind."""
    with ddp() as m:
        step(m)
    del m
    gc.collect()
    print("initialized", dist.is_initialized())


def terms() -> None:
    with ddp(strategy=os.environ["STRATEGY"]) as m:
        step(m)


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    time.sleep(float(os.environ.get("DELAY", "0")))
    globals()[sys.argv[1]]()
    assert DistributedDataParallel

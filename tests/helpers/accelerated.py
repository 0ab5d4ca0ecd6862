"""Scripts for the ranks of a pretended accelerator: `python accelerated.py CASE`."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gpumap
from gpumap.rendezvous.store_client import Client
from gpumap.runtime import inside, wrapping

RANK = int(os.environ.get("RANK", "0"))
START = float(os.environ.get("START", "30"))


def say(*words: object) -> None:
    """Print a line at once, so that lines of several ranks do not mix."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def contexts() -> list[int]:
    """Return the devices on which this process has a context."""
    has_context: Any = vars(torch._C)["_pretend_hasPrimaryContext"]  # noqa: SLF001 - as CUDA's
    return [n for n in range(torch.accelerator.device_count()) if has_context(n)]


def summed(group: dist.ProcessGroup | None = None) -> float:
    """All-reduce a 1 of each rank of a group, and return the sum."""
    one = torch.ones(1, device=gpumap.current().device)
    dist.all_reduce(one, group=group)
    return one.item()


def model() -> nn.Module:
    """Return a small model with buffers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def train() -> None:
    """Train in two successive sessions."""
    for number in range(2):
        with gpumap.ddp_session(model(), start_timeout=START) as m:
            device = gpumap.current().device
            for _ in range(3):
                m(torch.ones(5, 4, device=device)).sum().backward()
            say("trained", number, RANK, device, m.device_ids, summed())
    say("contexts", RANK, contexts())


def mesh() -> None:
    """Make a group of rank 0 and a group of a DeviceMesh, in each of two sessions."""
    for number in range(2):
        with gpumap.session(start_timeout=START):
            group = dist.new_group([0])
            if RANK == 0:
                say("first", number, summed(group))
            grid = init_device_mesh("pretend", (1, 2), mesh_dim_names=("a", "b"))
            say("grid", number, RANK, summed(grid.get_group("b")))


def fsdp() -> None:
    """Train with FSDP2's fully_shard inside session()."""
    with gpumap.session(start_timeout=START) as s:
        torch.manual_seed(0)
        whole = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(s.device)
        fully_shard(whole, mesh=init_device_mesh("pretend", (2,)))
        steps = torch.optim.SGD(whole.parameters(), 0.1)
        losses = []
        for _ in range(3):
            loss = whole(torch.ones(2, 8, device=s.device)).square().sum()
            loss.backward()
            steps.step()
            steps.zero_grad()
            losses.append(loss.item())
        say("losses", RANK, losses == sorted(losses, reverse=True), contexts())


def elsewhere() -> None:
    """Open contexts on devices that are not rank 1's, before and in the session."""
    if RANK == 1:
        torch.ones(1, device="pretend:0")
    with gpumap.session(start_timeout=START):
        if RANK == 1:
            torch.ones(1, device="pretend:3")
        saved = io.BytesIO()
        torch.save(torch.ones(1), saved)


def kernel() -> None:
    """Let rank 1's last kernel fail, with nothing in the block that waits for it."""
    with gpumap.session(start_timeout=START) as s:
        summed()
        if RANK == 1:
            torch.get_device_module("pretend").fail_kernel(s.device.index)
        if os.environ.get("COLLECTIVES"):
            time.sleep(0 if RANK else 1)
            summed()  # the watchdog looks while a collective runs: rank 1's stands


def held() -> None:
    """Block rank 0's main thread in a library while rank 1 fails."""
    with gpumap.session(start_timeout=START, timeout=3) as s:
        summed()
        with s.rank_zero_first():
            pass  # rank 1 fails once rank 0 has left its collective
        if RANK == 1:
            raise ValueError("bad batch")
        say("held")
        time.sleep(60)


def computes() -> None:
    """Let rank 0 work for 5 s while rank 1 fails, and then begin a collective."""
    with gpumap.session(start_timeout=START, timeout=3) as s:
        summed()
        with s.rank_zero_first():
            pass  # rank 1 fails once rank 0 has left its collective
        if RANK == 1:
            raise ValueError("bad batch")
        end = time.monotonic() + 5
        while time.monotonic() < end:
            time.sleep(0.2)  # each time the same call, at the same place
        say("computed")
        summed()
        say("met")


def imports() -> None:
    """Let rank 1 fail while rank 0 still imports what DDP needs."""
    if RANK == 0:
        wrapping.import_what_ddp_needs = lambda: time.sleep(3)
    wrap: Any = vars(inside)["wrapped_on"]

    def wrap_or_fail(*args: Any, **kwargs: Any) -> Any:
        if RANK == 1:
            raise ValueError("bad batch")
        return wrap(*args, **kwargs)

    vars(inside)["wrapped_on"] = wrap_or_fail
    with gpumap.ddp_session(model(), start_timeout=START):
        say("wrapped")


def variables() -> None:
    """Print NCCL's variables as they are before, in and after a session."""
    names = ("NCCL_SOCKET_IFNAME", "TORCH_NCCL_RETHROW_CUDA_ERRORS")
    found = [[os.environ.get(name) for name in names]]
    with gpumap.session(start_timeout=START):
        found.append([os.environ.get(name) for name in names])
    found.append([os.environ.get(name) for name in names])
    say("variables", found)


def again() -> None:
    """Kill rank 1; on rank 0 catch the error and open another session."""
    try:
        with gpumap.session(start_timeout=START):
            summed()
            if RANK == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            summed()
    except gpumap.SessionError as error:
        say("caught", error.happened)
    with gpumap.session():
        pass


def raises() -> None:
    """Stop rank 0, so that it aborts nothing; raise on rank 1."""
    with gpumap.session(start_timeout=START):
        summed()
        if RANK == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)
        say("raised", time.monotonic())
        raise ValueError("bad batch")


def quiet() -> None:
    """Train for 12 s in step, and list the requests to the store meanwhile."""
    asked: list[str] = []
    meanwhile: list[str] = []
    real = Client._request  # noqa: SLF001 - where every request passes

    def counting(self: Client, number: int, *fields: bytes) -> Any:
        asked.append(threading.current_thread().name)
        return real(self, number, *fields)

    with gpumap.session(start_timeout=START, timeout=8):
        summed()
        Client._request = counting  # type: ignore[method-assign] # noqa: SLF001
        for _ in range(12):
            time.sleep(1)
            meanwhile = list(asked)  # before the other rank can have come to its end
            summed()
        say("asked", meanwhile)


def child() -> None:
    """Start a program in a session, which prints how many devices it sees."""
    with gpumap.session(start_timeout=START):
        code = "import torch; print('child', torch.accelerator.device_count())"
        subprocess.run([sys.executable, "-c", code], check=True)
        summed()


def spawned() -> list[int]:
    """Train in a process of spawn(); return its contexts."""
    with gpumap.ddp_session(model()) as m:
        m(torch.ones(5, 4, device=gpumap.current().device)).sum().backward()
    return contexts()


def spawn() -> None:
    """Start one training process for each device."""
    say("spawned", gpumap.spawn(spawned), contexts())


if __name__ == "__main__":
    globals()[sys.argv[1]]()

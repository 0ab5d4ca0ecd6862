"""The cases that the ranks of a test job run: `python worker.py CASE`."""

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import gpumap
from gpumap.rendezvous.roll_call import roll_call
from gpumap.rendezvous.session_store import SessionStore

RANK = int(os.environ.get("RANK", "0"))
START = float(os.environ.get("START_TIMEOUT", "30"))


def say(*parts: object) -> None:
    """Write one line at once, so that two ranks' lines do not run into each other."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")
    sys.stdout.flush()


def model() -> nn.Module:
    torch.manual_seed(RANK)
    return nn.Linear(2, 1)


def step(m: nn.Module) -> float:
    loss = m(torch.full((4, 2), float(RANK))).sum()
    loss.backward()
    return float(loss.detach())


def ddp(**options: Any) -> Any:
    return gpumap.ddp_session(model(), start_timeout=START, timeout=20, **options)


def racing() -> None:
    """Each rank has scores of its own, and its own device is best."""
    with ddp(gpus=[0, 1], scores={RANK: 9, 1 - RANK: 1}):
        say("unreachable")


def by_memory() -> None:
    """All ranks score by memory, which they read alike."""
    with ddp(scores="memory"):
        say("unreachable")


def train() -> None:
    """One step; prints the mapped device, the device in use and the gradient."""
    with ddp() as m:
        step(m)
        s = gpumap.current()
        grad = m.module.weight.grad
        say(
            f"rank={s.rank} world={s.world_size} device={s.device} "
            f"mapped={s.placement.device.kind}:{s.placement.device.index} "
            f"grad={grad.tolist()}"
        )
    say("initialized =", dist.is_initialized())


def explicit() -> None:
    """One step with the device indices of the variable GPUS."""
    gpus = [int(x) for x in os.environ["GPUS"].split(",")]
    with ddp(gpus=gpus) as m:
        step(m)
        say("mapped", gpumap.current().placement.device)


def modulo() -> None:
    with ddp(strategy="modulo") as m:
        step(m)
        say("mapped", gpumap.current().placement.device)


def shared() -> None:
    """Two ranks on one device, as gloo can."""
    with ddp(strategy="modulo", oversubscribe=True, backend="gloo") as m:
        step(m)
        say("mapped", gpumap.current().placement.device)


def body_fails() -> None:
    """Rank FAILS raises in the body; the others go on with collectives."""
    try:
        with ddp() as m:
            step(m)
            if os.environ["FAILS"] == str(RANK):
                raise ValueError("bad batch")
            for _ in range(1000):
                step(m)
    except Exception as error:
        say("args", error.args)
        say("notes", getattr(error, "__notes__", []))
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
    say("sessions ok")


def job() -> None:
    """Sum 1 for each rank of job A, and 100 for each of another job."""
    with ddp() as _:
        x = torch.tensor([1.0 if os.environ["JOB"] == "A" else 100.0])
        dist.all_reduce(x)
        say("sum", x.item())


def own_group() -> None:
    """Sessions use a process group that exists already, and leave it open."""
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    for _ in range(2):
        with ddp() as m:
            step(m)
            say("rank", gpumap.current().rank)
    assert dist.group.WORLD is group
    dist.barrier()
    dist.destroy_process_group()
    say("left standing")


def buffers() -> None:
    """Buffers follow rank 0, as DDP does by itself."""
    norm = nn.BatchNorm1d(2)
    assert norm.running_mean is not None
    norm.running_mean.fill_(float(RANK))
    net = nn.Sequential(nn.Linear(2, 2), norm)
    with gpumap.ddp_session(net, start_timeout=START) as m:
        say("mean at start", norm.running_mean.tolist())
        m.eval()
        m(torch.ones(3, 2))
    say("names", sorted(dict(net.named_buffers())))


def unused() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x)  # type: ignore[no-any-return]

    with gpumap.ddp_session(
        Half(), start_timeout=START, find_unused_parameters=True
    ) as m:
        for _ in range(3):
            step(m)
        say("unused ok", m.find_unused_parameters)


def no_sync() -> None:
    """Gradients stay this rank's own inside no_sync, and are averaged after it."""
    with ddp() as m:
        with m.no_sync():
            step(m)
        say("own", m.module.weight.grad.tolist())
        m.zero_grad()
        step(m)
        say("mean", m.module.weight.grad.tolist())


def after() -> None:
    hook = sys.excepthook
    with ddp() as m:
        step(m)
    assert sys.excepthook is hook
    say("module", m.module(torch.ones(1, 2)).shape)
    try:
        m(torch.ones(1, 2))
    except gpumap.SessionError as error:
        say("said", error)


def session_only() -> None:
    with gpumap.session(start_timeout=START) as s:
        x = torch.tensor([float(s.rank)], device=s.device)
        dist.all_reduce(x)
        s.store.set(f"hello/{s.rank}", str(s.rank))
        s.store.wait(["hello/0", "hello/1"])
        say("sum", x.item(), "device", s.device)


def frozen() -> None:
    net = model()
    net.requires_grad_(requires_grad=False)
    with gpumap.ddp_session(net, start_timeout=START):
        pass


def uneven_model() -> None:
    """The ranks' models differ: torch finds it while wrapping."""
    with gpumap.ddp_session(nn.Linear(2, 1 + RANK), start_timeout=START, timeout=10):
        pass


def alone() -> None:
    """One process by itself: wrapped, without a socket."""
    with ddp() as m:
        step(m)
        say("world", gpumap.current().world_size, type(m).__name__)
        say("listens", listens())


def listening() -> None:
    """Print the TCP addresses that this process listens on, loopback or not."""
    with ddp() as m:
        step(m)
        say("listens", listens())


def nothing_left() -> None:
    """After a first session, a second one leaves no thread, socket or hook."""
    hook = sys.excepthook
    with ddp() as m:
        step(m)
    before = threads(), sockets()
    with ddp() as m:
        step(m)

    def left() -> tuple[int, int]:
        return max(threads() - before[0], 0), max(sockets() - before[1], 0)

    # What was told to end may take a moment, after the first session too.
    deadline = time.monotonic() + 5
    while (more := left()) != (0, 0) and time.monotonic() < deadline:
        time.sleep(0.1)
    hook_back = sys.excepthook is hook
    say(f"threads +{more[0]} sockets +{more[1]} hook back {hook_back}")


def threads() -> int:
    """Return the number of this process's threads, torch's own included."""
    return len(list(Path("/proc/self/task").iterdir()))


def sockets() -> int:
    """Return the number of this process's open internet sockets."""
    inodes = {row[9] for row in tcp_table()}
    return sum(f"socket:[{inode}]" in links() for inode in inodes)


def listens() -> list[str]:
    """Return the addresses on which this process listens."""
    mine = links()
    found = []
    for row in tcp_table():
        host, _, number = row[1].partition(":")
        if row[3] == "0A" and f"socket:[{row[9]}]" in mine:
            quads = [int(host[i : i + 2], 16) for i in range(0, len(host), 2)]
            found.append(".".join(map(str, reversed(quads))) + f":{int(number, 16)}")
    return found


def tcp_table() -> list[list[str]]:
    """Return the rows of the kernel's tables of TCP sockets."""
    rows = []
    for table in ("tcp", "tcp6"):
        rows += Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    return [row.split() for row in rows]


def links() -> set[str]:
    """Return what this process's file descriptors point to."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(fd.readlink()))
    return found


def ends_late() -> None:
    """Rank 1 stays in the body for longer than end_timeout."""
    with gpumap.ddp_session(
        model(), start_timeout=START, end_timeout=float(os.environ["TIMEOUT"])
    ) as m:
        step(m)
        if RANK == 1:
            time.sleep(8)


def closing_fails() -> None:
    """Destroying the group fails while the user's own error is raised."""
    with ddp() as m:
        step(m)

        def planted(*_: object) -> None:
            raise RuntimeError("RuntimeError: planted")

        dist.destroy_process_group = planted  # type: ignore[assignment]
        raise ValueError("the user's own")


def per_node() -> None:
    """One step with a list of devices for each node."""
    with ddp(gpus={0: [1], 1: [3]}) as m:
        step(m)
        say("mapped", gpumap.current().placement.device)


def shared_nccl() -> None:
    """oversubscribe=True with the pretended device's own backend."""
    with ddp(strategy="modulo", oversubscribe=True):
        pass


def is_in(function: Callable[..., object], thread: int) -> bool:
    """Tell whether a thread is in a function."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - Python has no public way
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def interrupted() -> None:
    """Rank 1 is interrupted once it waits for the verdict; rank 2 comes after that."""
    flag = Path(os.environ["FLAG"])
    # A job in the background inherits that SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        while not (is_in(roll_call, main) and is_in(SessionStore.wait, main)):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        flag.touch()

    main = threading.get_ident()
    if RANK == 1:
        threading.Thread(target=interrupt, daemon=True).start()
    while RANK == 2 and not flag.exists():
        time.sleep(0.1)
    with ddp():
        pass


def timed() -> None:
    """Run train and print the seconds until it succeeded or failed."""
    began = time.monotonic()
    try:
        train()
    finally:
        say(f"after {time.monotonic() - began:.2f} s")


def jumping() -> None:
    """Run timed while time.time() jumps by hours at every call."""
    jumps = itertools.cycle((-10_800.0, 0.0, 10_800.0))
    wall = time.time
    time.time = lambda: wall() + next(jumps)
    timed()


def terms() -> None:
    with ddp(strategy=os.environ["RANKS_OWN"]) as m:
        step(m)


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    time.sleep(float(os.environ.get("DELAY", "0")))
    globals()[sys.argv[1]]()

"""Sessions that split a batch by speed: `python balanced.py CASE`."""

import json
import logging
import os
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gpumap

RANK = int(os.environ.get("RANK", "0"))
BATCH = int(os.environ.get("BATCH", "8"))
SPEEDS = [float(speed) for speed in os.environ.get("SPEEDS", "1,1").split(",")]


def say(*words: object) -> None:
    """Print a line at once, so that lines of several ranks do not mix."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def model() -> nn.Module:
    """Return a small model, alike on all ranks, in double precision."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def session(**options: Any) -> Any:
    """Return a session with a balance by these options and speeds by device."""
    speeds = dict(enumerate(SPEEDS))
    balance = gpumap.Balance(**{"batch": BATCH, "speeds": speeds, **options})
    return gpumap.ddp_session(model(), balance=balance, start_timeout=30)


def train() -> None:
    """Train for three epochs, whose last batches are smaller; print the parameters."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(37, 3, generator=generator, dtype=torch.float64)
    data = TensorDataset(x, x[:, :2].square())
    with session() as m:
        s = gpumap.current()
        say("rank", RANK, "has", s.batch_size, "of", s.shares)
        loader = DataLoader(data, batch_sampler=gpumap.BalancedSampler(data, seed=3))
        optimizer = torch.optim.SGD(m.parameters(), lr=0.2, momentum=0.9)
        for _ in range(3):
            for inputs, targets in loader:
                optimizer.zero_grad()
                found = m(inputs.to(s.device))
                loss: Any = nn.functional.mse_loss(found, targets.to(s.device))
                loss.backward()
                optimizer.step()
        trained = [p.detach().cpu().flatten().tolist() for p in m.parameters()]
    say("parameters", json.dumps(trained))


def shares() -> None:
    """Print the shares, or fail."""
    options = json.loads(os.environ.get("OPTIONS", "{}"))
    with session(**options):
        s = gpumap.current()
        say("rank", RANK, "has", s.batch_size, "of", s.shares, "split", s.split(5))


def adapt() -> None:
    """Measure speeds that are known, and split by them between epochs."""
    from gpumap.runtime.pace import Pace  # noqa: PLC0415 - others do not load it

    logging.basicConfig(level=logging.INFO)
    measured = iter([None, SPEEDS[RANK], 1.0])
    pace: Any = Pace
    pace.samples_per_second = lambda _: next(measured)
    with session(speeds="adapt"):
        s = gpumap.current()
        for _ in range(3):
            s.rebalance()
            say("rank", RANK, "has", s.batch_size)


def without() -> None:
    """Ask for a share where no batch is split."""
    with gpumap.session(start_timeout=30):
        say("loaded", [name for name in sys.modules if name in RARE])
        say(gpumap.current().batch_size)


RARE = [
    f"gpumap.{name}"
    for name in (
        "detect.claims",
        "detect.cpus",
        "detect.tenants",
        "mapping.balance",
        "mapping.batches",
        "mapping.closest",
        "mapping.cpu_shares",
        "mapping.idle",
        "runtime.balanced_batch",
        "runtime.binding",
        "runtime.pace",
        "runtime.pool_decision",
        "runtime.weights",
    )
]


if __name__ == "__main__":
    globals()[sys.argv[1]]()

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
OPTIONS: dict[str, Any] = json.loads(os.environ.get("OPTIONS", "{}"))
SPEEDS = [float(speed) for speed in os.environ.get("SPEEDS", "1,1").split(",")]


def say(*words: object) -> None:
    """Print a line at once, so that lines of several ranks do not mix."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def model() -> nn.Module:
    """Return a small model, alike on all ranks, in double precision."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def session(own: nn.Module | None = None, **options: Any) -> Any:
    """Return a session with a balance by these options and OPTIONS."""
    given = {"batch": BATCH, "speeds": dict(enumerate(SPEEDS)), **options, **OPTIONS}
    balance = gpumap.Balance(**given)
    return gpumap.ddp_session(own or model(), balance=balance, start_timeout=30)


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
    """Print the shares, and those of batches of other sizes; or fail."""
    with session():
        s = gpumap.current()
        say("rank", RANK, "has", s.batch_size, "of", s.shares, "split", s.split(5))
        for total in json.loads(os.environ.get("SPLIT", "[]")):
            say("split", total, s.split(total))


class Timed(nn.Module):
    """A model that takes 1 / speed seconds for a sample, by a clock of its own."""

    def __init__(self) -> None:
        """Make a layer, and set the clock to 0."""
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.speed, self.now = nn.Linear(3, 2), 1.0, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, and set the clock forward."""
        self.now += len(x) / self.speed
        out: torch.Tensor = self.layer(x)
        return out


def adapt() -> None:
    """Train by a clock that each rank sets by its speed; rebalance between epochs.

    EPOCHS has the speed of each rank in each epoch; none if its step is not finished.
    """
    from gpumap.runtime import pace  # noqa: PLC0415 - others do not load it

    logging.basicConfig(level=logging.INFO)
    timed = Timed()
    moment: Any = pace._Instant  # noqa: SLF001 - a point in time
    vars(pace)["perf_counter"] = lambda: timed.now
    with session(timed, speeds="adapt") as m:
        s = gpumap.current()
        say("rank", RANK, "has", s.batch_size)
        for speeds in json.loads(os.environ["EPOCHS"]):
            moment.query = lambda _, speed=speeds[RANK]: speed is not None
            timed.speed = speeds[RANK] or 1.0
            out: Any = m(torch.ones(2, 3))
            out.mean().backward()
            s.rebalance()
            say("rank", RANK, "has", s.batch_size)
    left = [*m._forward_pre_hooks.values(), *m._forward_hooks.values()]  # noqa: SLF001 - where torch keeps them
    say("left", left, "register_comm_hook" in vars(m))


def sideways() -> None:
    """Train twice on samples that are in the second dimension; COUNT counts them."""
    counted: list[int] = []

    def count(args: tuple[Any, ...], _: object) -> int:
        counted.append(args[0].shape[1])
        return counted[-1]

    own: dict[str, Any] = {"count": count} if "COUNT" in os.environ else {}
    with session(**own) as m:
        x = torch.ones(5, gpumap.current().batch_size, 3, dtype=torch.float64)
        for _ in range(2):
            out: Any = m(x)
            out.mean().backward()
    say("counted", counted)


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
        "runtime.samples",
        "runtime.weights",
    )
]


if __name__ == "__main__":
    globals()[sys.argv[1]]()

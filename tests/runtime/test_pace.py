"""What is timed of a step, by a clock that the tests set forward."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gpumap
from gpumap.runtime import pace
from gpumap.runtime.pace import Pace
from gpumap.runtime.weights import Weights
from helpers.accelerator import accelerator
from helpers.programs import run_python

HERE = Path(__file__)


class Clock:
    """A clock that stands still unless it is set forward."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Give gpumap a clock that the test sets forward."""
    for name in ("RANK", "WORLD_SIZE", "GPUMAP_REHEARSAL"):
        monkeypatch.delenv(name, raising=False)
    made = Clock()
    monkeypatch.setattr(pace, "perf_counter", made)
    yield made
    assert not dist.is_initialized()


class Slow(nn.Module):
    """A model that takes a second for a sample forward, and three backward."""

    def __init__(self, clock: Clock) -> None:
        """Make a layer, and a buffer for DDP to broadcast."""
        super().__init__()
        self.layer, self.clock = nn.Linear(2, 1), clock
        self.register_buffer("kept", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        self.clock.forward(1.0 * len(x))
        out: Any = self.layer(x)
        if out.requires_grad:
            out.register_hook(lambda _: self.clock.forward(3.0 * len(x)))
        scores: torch.Tensor = out
        return scores


Step = Callable[[int], None]


def timed(m: DistributedDataParallel, clock: Clock) -> tuple[Pace, Step]:
    """Return the pace of a model, and a step in which all else takes time as well."""
    broadcast: Any = m._sync_buffers  # noqa: SLF001 - which waits for other ranks

    def slow_broadcast() -> None:
        broadcast()
        clock.forward(100.0)

    def slow_reduction(
        _: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        clock.forward(200.0)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    vars(m)["_sync_buffers"] = slow_broadcast
    measured = Pace(m)
    Weights(m, 4, computed=measured.computed)
    m.register_comm_hook(None, slow_reduction)

    def step(samples: int) -> None:
        clock.forward(400.0)  # the data loader's
        out: Any = m(torch.ones(samples, 2, device=gpumap.current().device))
        clock.forward(0.5 * samples)  # the loss's
        out.mean().backward()
        clock.forward(800.0)  # the optimizer's

    return measured, step


# 1 s forward, 0.5 s loss, 3 s backward
EXPECTED = pytest.approx(1 / 4.5)


def test_the_forward_the_loss_and_the_backward_are_timed(clock: Clock) -> None:
    """The loader, the optimizer, the broadcast and the reduction are left out."""
    with gpumap.ddp_session(Slow(clock)) as m:
        measured, step = timed(m, clock)
        for samples in (4, 1, 7):
            step(samples)
        assert measured.samples_per_second() == EXPECTED


def test_each_call_begins_anew(clock: Clock) -> None:
    """The pace is that since the last call, and None if there was no step."""
    with gpumap.ddp_session(Slow(clock)) as m:
        measured, step = timed(m, clock)
        assert measured.samples_per_second() is None
        step(4)
        assert measured.samples_per_second() == EXPECTED
        assert measured.samples_per_second() is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([8.0], 8.0),
        ([8.0, 2.0, 4.0, 1.0, 2.0], 2.0),
        ([50.0, 60.0, 70.0, 1.0, 9.0, 2.0], 2.0),
        ([50.0, 60.0, 70.0, 1.0, 9.0, 2.0, 3.0], 2.5),
    ],
)
def test_the_pace_is_the_median_without_the_first_steps(
    clock: Clock, seconds: list[float], expected: float
) -> None:
    """Of six steps and more, the first three do not count; of the rest, the median."""
    with gpumap.ddp_session(nn.Linear(2, 1)) as m:
        measured = Pace(m)
        for each in seconds:
            m(torch.ones(5, 2))
            clock.forward(5 * each)
            measured.computed(5)
        assert measured.samples_per_second() == pytest.approx(1 / expected)


def test_evaluation_is_not_timed(clock: Clock) -> None:
    """A forward without gradients starts no clock."""
    with gpumap.ddp_session(Slow(clock)) as m:
        measured, step = timed(m, clock)
        step(4)
        with torch.no_grad():
            m(torch.ones(9, 2))
        clock.forward(1000.0)
        measured.computed(9)
        assert measured.samples_per_second() == EXPECTED


def test_of_accumulated_gradients_the_last_forward_is_timed(clock: Clock) -> None:
    """Of several forwards to a reduction, the last and its backward are timed."""
    with gpumap.ddp_session(Slow(clock)) as m:
        measured, step = timed(m, clock)
        with m.no_sync():
            step(9)
            step(2)
        step(4)
        assert measured.samples_per_second() == EXPECTED


class Later:
    """An event of an accelerator, which comes when the test says so."""

    def __init__(self) -> None:
        """Begin as an event that has not come."""
        self.has_come = False

    def query(self) -> bool:
        """Tell whether it has come."""
        return self.has_come

    def elapsed_time(self, _: object) -> float:
        """Return milliseconds, which may be asked once both events have come."""
        assert self.has_come
        return 2000.0


def test_steps_that_an_accelerator_has_not_finished_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An event is read once it has come, and is not waited for."""
    events: list[Later] = []

    def event(_: torch.device) -> Later:
        events.append(Later())
        return events[-1]

    monkeypatch.setattr(pace, "_now", event)
    with gpumap.ddp_session(nn.Linear(2, 1)) as m:
        measured = Pace(m)
        for _ in range(2):
            m(torch.ones(1, 2))
            measured.computed(1)
        for each in events[:2]:
            each.has_come = True
        assert measured.samples_per_second() == pytest.approx(0.5)
        for each in events:
            each.has_come = True
        assert measured.samples_per_second() is None


def test_the_model_itself_keeps_no_hook(clock: Clock) -> None:
    """Between two steps the model can be copied and saved, and has no hook of ours."""
    with gpumap.ddp_session(Slow(clock)) as m:
        before = dict(vars(m.module))
        measured, step = timed(m, clock)
        step(4)
        assert vars(m.module).keys() == before.keys()
        assert not m.module._forward_pre_hooks  # noqa: SLF001 - where torch keeps them
        copy.deepcopy(m.module)
        measured.remove()
        step(4)
        assert measured.samples_per_second() == EXPECTED  # of the first step


ON_AN_ACCELERATOR = """
import importlib.util, sys, time
import torch, gpumap

spec = importlib.util.spec_from_file_location("here", sys.argv[1])
here = importlib.util.module_from_spec(spec)
spec.loader.exec_module(here)
clock = here.Clock()
with gpumap.ddp_session(here.Slow(clock)) as m:
    measured, step = here.timed(m, clock)
    time.perf_counter, real = clock, time.perf_counter
    step(4)
    step(2)
    time.perf_counter = real
    print(gpumap.current().device, measured.samples_per_second())
"""


@pytest.mark.timeout(600)  # the accelerator may have to be built
def test_an_accelerators_events_time_the_same() -> None:
    """On an accelerator its events give the time of the same parts of a step."""
    environ = accelerator()
    environ["PYTHONPATH"] += f":{HERE.parents[1]}"
    done = run_python("-c", ON_AN_ACCELERATOR, str(HERE), environ=environ)
    assert done.returncode == 0, done.stderr
    device, pace_there = done.stdout.split()
    assert device == "pretend:0"
    assert float(pace_there) == EXPECTED

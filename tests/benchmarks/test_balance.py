"""The benchmark of ranks of unequal speed: its arithmetic, and one short run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from balance import losses, main, of_ideal, shares, speeds_alone, taken
from parts.uneven import Job, Step

import gpumap
from helpers.programs import run_python

SCRIPT = str(Path(__file__).parent.parent.parent / "benchmarks/balance.py")
# Samples per second of rank 0 and rank 1; alone they have 300 and 100.
SPEEDS = {"equal": (100.0, 100.0), "balanced": (285.0, 95.0), "adapting": (270.0, 90.0)}


def steps(
    speed: float = 1.0, alone: float = 1.0, samples: int = 10, **given: Any
) -> list[Step]:
    """Return a rank's four steps, of which the first two take ten times as long."""
    return [
        Step(
            **{"epoch": 0, "loss": 1.0, "cpu": 1.5, "computed": 2.0, **given},
            samples=samples,
            began=0.0,
            ended=slow * samples / speed,
            alone=slow * samples / alone,
        )
        for slow in (10, 10, 1, 1)
    ]


def spawned(apart: float) -> Callable[..., list[list[list[Step]]]]:
    """Return a spawn whose ranks have the speeds above; one process's loss is apart."""

    def spawn(
        _: object, jobs: Sequence[Job], __: object, nprocs: int
    ) -> list[list[list[Step]]]:
        loss = 1.0 if nprocs == 2 else 1.0 + apart
        return [
            [steps(SPEEDS[job.way][rank], (300, 100)[rank], loss=loss) for job in jobs]
            for rank in range(nprocs)
        ]

    return spawn


def test_a_jobs_speed_is_set_against_the_speeds_alone() -> None:
    """Two ranks of 300 and 100 samples/s that both train 100 reach half of 400."""
    found = of_ideal([(steps(100.0, 300.0), steps(100.0, 100.0))])
    assert found == 2 * [pytest.approx(0.5)]


def test_a_ranks_speed_is_that_of_its_usual_step() -> None:
    """Ten samples in a step of 0.1 s are 100 samples/s, after a slow begin."""
    ranks = steps(alone=100.0), steps(alone=50.0)
    assert speeds_alone([ranks, ranks]) == pytest.approx([100, 50])


def test_what_others_took_is_told() -> None:
    """Ranks that had a CPU for 1.5 s of the 2 s that they computed lost a quarter."""
    assert taken(steps()) == pytest.approx(0.25)


def test_shares_are_told_for_each_epoch() -> None:
    """Ranks that go from 10 and 10 to 15 and 5 samples have two lines of shares."""
    ranks = (
        [*steps(samples=10), *steps(samples=15, epoch=1)],
        [*steps(samples=10), *steps(samples=5, epoch=1)],
    )
    assert shares(ranks) == [(10, 10), (15, 5)]


def test_a_jobs_loss_counts_every_sample_alike() -> None:
    """A mean of 2 over 15 samples and one of 6 over 5 are a mean of 3 over all."""
    ranks = steps(samples=15, loss=2.0), steps(samples=5, loss=6.0)
    assert losses(ranks) == 4 * [3.0]


@pytest.mark.parametrize(("apart", "code"), [(1e-9, 0), (1e-3, 1)])
def test_speeds_are_printed_as_shares_of_the_ideal(
    apart: float,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of 300 + 100 samples/s, 200 are 0.5 and 380 are 0.95; other losses are code 1."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "")  # main() sets it
    monkeypatch.setattr(gpumap, "spawn", spawned(apart))
    assert main(["--k", "3", "--rounds", "2"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].split() == [
        *("3", "300.0", "100.0", "0.500"),
        *("0.500", "(0.500-0.500)", "0.950", "(0.950-0.950)", "0.900", "(0.900-0.900)"),
        "10+10",
    ]
    assert lines[-2].startswith("other programs took 25.0% ")
    assert lines[-1].endswith(f"at most {apart:.1g} apart")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--k", "1.7"], "--k: write 1, 1.5, 2 and so on"),
        (["--batch", "7"], "--batch: write an even number"),
        (["--steps", "2"], "write more than 2 --steps"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers that would not give the ranks what they say are exit code 2."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


def test_unequal_ranks_train_as_one_process_does(tmp_path: Path) -> None:
    """Two ranks of 9 and 3 samples have one process's losses, in 64-bit arithmetic."""
    picture = tmp_path / "steps.png"
    done = run_python(
        *(SCRIPT, "--k", "1.5", "--batch", "12", "--steps", "3", "--work", "8"),
        *("--plot", str(picture)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, speeds, _, others, loss = done.stdout.splitlines()
    assert speeds.split()[0] == "1.5"
    assert "6+6, " in speeds  # adapting starts with equal shares
    assert others.startswith("other programs took ")
    assert "loss of one process and of 9+3: 12 steps" in loss
    assert float(loss.split()[-2]) < 1e-12
    for file in (picture, tmp_path / "steps-loss.png"):
        assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

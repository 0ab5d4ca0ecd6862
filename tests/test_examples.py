"""The examples, run as a user would."""

import re
from pathlib import Path

import pytest

from helpers.programs import run_python

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
EXAMPLES = Path(__file__).parent.parent / "examples"


def output(*command: str, **environ: str) -> str:
    """Return what a command prints; its exit code must be 0."""
    done = run_python(*command, environ=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracy(out: str) -> float:
    """Return the accuracy, which only rank 0 must have printed."""
    [found] = re.findall(r"accuracy (\S+)", out)
    return float(found)


def test_the_demo_prints_plan_progress_and_accuracy() -> None:
    """The demo trains ranks 0 and 1 on cuda:2 and cuda:3 of a rehearsed DGX A100."""
    out = output(str(EXAMPLES / "demo.py"))
    plan, training = out.split("rank 0 on cuda:2")[0], out
    assert re.search(r"0 .* cuda:2 \(GPU-a1000002…\)  NVIDIA A100-SXM4-40GB", plan)
    assert re.search(r"1 .* cuda:3 \(GPU-a1000003…\)  NVIDIA A100-SXM4-40GB", plan)
    assert "rank 1 on cuda:3" in training
    assert len(re.findall(r"epoch \d/8: loss", training)) == 8
    assert accuracy(training) > 0.9


def test_the_same_script_runs_under_python_alone() -> None:
    """Under plain python the training script is one rank on the CPU."""
    out = output(str(EXAMPLES / "train.py"))
    assert "rank 0 on cpu" in out
    assert accuracy(out) > 0.9

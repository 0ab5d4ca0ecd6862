"""Fixtures of the tests under real launchers."""

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

import gpumap
from helpers.launchers import REPORT, Report, Run, Shown, reports
from helpers.programs import run_program


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a rehearsal file of two nodes with four GPUs and one with two."""
    whole = gpumap.machine("dgx-a100")
    nodes = [
        json.loads(
            whole.keeping(range(count))
            .model_copy(update={"hostname": f"machine{number}"})
            .model_dump_json()
        )
        for number, count in enumerate((4, 4, 2))
    ]
    path = tmp_path_factory.mktemp("rehearsal") / "machines.json"
    path.write_text(json.dumps(nodes))
    return str(path)


@pytest.fixture
def run(machines: str) -> Run:
    """Return a function that runs a command and reads its ranks' reports, by rank."""

    def run_command(
        command: Sequence[str], *, limit: float = 100, **environ: str
    ) -> list[Report]:
        environ = {"GPUMAP_REHEARSAL": machines, **environ}
        done = run_program(command, environ, stderr=subprocess.STDOUT, timeout=limit)
        assert done.returncode == 0, done.stdout
        return reports(done.stdout)

    return run_command


@pytest.fixture
def shown(machines: str) -> Shown:
    """Return a function that runs a command and returns its launch lines, sorted.

    starts: whether the exit code must say that a session could start.
    """

    def run_command(
        command: Sequence[str], *, starts: bool = True, **environ: str
    ) -> list[str]:
        done = run_program(command, {"GPUMAP_REHEARSAL": machines, **environ})
        assert (done.returncode == 0) == starts, done.stdout + done.stderr
        return sorted(line for line in done.stdout.splitlines() if "launch:" in line)

    return run_command


@pytest.fixture
def python() -> list[str]:
    """Return the command that runs the report under this Python."""
    return [sys.executable, REPORT]

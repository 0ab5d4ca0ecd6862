"""benchmarks/allreduce.py under real launchers."""

import sys
from collections.abc import Sequence
from pathlib import Path

from helpers.launchers import HERE, need
from helpers.programs import run_program

BENCH = [
    *(sys.executable, str(Path(HERE).parent.parent / "benchmarks/allreduce.py")),
    *("-b", "4K", "-e", "16K", "-n", "2", "--rounds", "1"),
]


def table(command: Sequence[str], **environ: str) -> str:
    """Return a job's output, which must have two tables without wrong sums."""
    done = run_program(command, environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("# Out of bounds values : 0 OK") == 2
    return done.stdout


def test_open_mpi_starts_it() -> None:
    """The benchmark runs under mpirun as three ranks of one node."""
    need("mpirun.openmpi")
    launch = ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-np", "3"]
    out = table([*launch, *BENCH])
    assert "# all-reduce of 3 ranks by gloo on cpu" in out


def test_srun_starts_it(slurm_conf: str) -> None:
    """The benchmark runs under srun as one rank on each of two nodes."""
    out = table(
        ["srun", "--quiet", "-N2", "-n2", "-w", "n1,n2", *BENCH],
        SLURM_CONF=slurm_conf,
        MASTER_ADDR="127.0.0.1",
    )
    placed = [line.split()[1:3] for line in out.splitlines() if " cpu  " in line]
    assert placed == [["0", "0"], ["1", "1"]]

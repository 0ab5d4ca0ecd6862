"""The real mpirun and mpiexec, on one machine."""

import sys
from collections.abc import Sequence

import pytest

from helpers.jobs import free_port
from helpers.launchers import Run, Shown, need
from helpers.programs import run_program

OPEN_MPI = ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root"]


def test_mpirun(run: Run, python: list[str]) -> None:
    """Under mpirun the ranks agree on a port, and each has its local rank's device."""
    need("mpirun.openmpi")
    ranks = run([*OPEN_MPI, "-np", "3", *python])
    assert {rank["launcher"] for rank in ranks} == {"Open MPI"}
    assert sorted(rank["local_rank"] for rank in ranks) == [0, 1, 2]
    assert [rank["index"] for rank in ranks] == [rank["local_rank"] for rank in ranks]


def test_mpiexec_hydra(run: Run, python: list[str]) -> None:
    """Under mpiexec.hydra the ranks meet if the user sets MASTER_PORT."""
    need("mpiexec.hydra")
    port = str(free_port())
    ranks = run(["mpiexec.hydra", "-n", "3", *python], MASTER_PORT=port)
    assert {rank["launcher"] for rank in ranks} == {"MPICH"}
    assert [rank["index"] for rank in ranks] == [0, 1, 2]


def test_python_m_gpumap_shows_the_same(shown: Shown) -> None:
    """`gpumap show` prints one launch line per rank under mpirun and mpiexec."""
    need("mpirun.openmpi", "mpiexec.hydra")
    gpumap = [sys.executable, "-m", "gpumap", "show"]
    for launcher, command in (
        ("Open MPI", [*OPEN_MPI, "-np", "2", *gpumap]),
        ("MPICH", ["mpiexec.hydra", "-n", "2", *gpumap]),
    ):
        lines = shown(command, MASTER_PORT=str(free_port()))
        assert [line.partition(", local rank")[0] for line in lines] == [
            f"launch: {launcher}, rank {rank} of 2" for rank in range(2)
        ]


@pytest.mark.parametrize(
    ("program", "options", "lost"),
    [
        ("mpirun.openmpi", OPEN_MPI[1:], ["OMPI_COMM_WORLD_RANK", "PMIX_RANK"]),
        ("mpiexec.hydra", [], ["PMI_RANK", "MPI_LOCALRANKID"]),
    ],
)
def test_processes_whose_variables_are_lost_are_told_of_each_other(
    program: str, options: Sequence[str], lost: Sequence[str]
) -> None:
    """If a wrapper clears the variables, one of the two single processes warns."""
    need(program)
    code = "import gpumap, time\nwith gpumap.session() as s: time.sleep(6)"
    forget = [word for name in lost for word in ("-u", name)]
    done = run_program(
        [program, *options, "-n", "2", "env", *forget, sys.executable, "-c", code],
        {"GPUMAP_REHEARSAL": "dgx-a100"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is alone on cuda:0 (GPU-a1000000…) too") == 1

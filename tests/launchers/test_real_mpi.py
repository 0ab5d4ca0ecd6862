"""The real mpirun and mpiexec, on one machine."""

from conftest import Run, need
from jobs import free_port

OPEN_MPI = ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root"]


def test_mpirun(run: Run, python: list[str]) -> None:
    """Open MPI names its job, from which all ranks work out the port."""
    need("mpirun.openmpi")
    ranks = run([*OPEN_MPI, "-np", "3", *python])
    assert {rank["launcher"] for rank in ranks} == {"Open MPI"}
    assert sorted(rank["local_rank"] for rank in ranks) == [0, 1, 2]
    assert [rank["index"] for rank in ranks] == [rank["local_rank"] for rank in ranks]


def test_mpiexec_hydra(run: Run, python: list[str]) -> None:
    """MPICH names nothing: the port is the user's to give."""
    need("mpiexec.hydra")
    port = str(free_port())
    ranks = run(["mpiexec.hydra", "-n", "3", *python], MASTER_PORT=port)
    assert {rank["launcher"] for rank in ranks} == {"MPICH"}
    assert [rank["index"] for rank in ranks] == [0, 1, 2]

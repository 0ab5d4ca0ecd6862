"""Which launcher a process finds behind the variables that `gpumap run` has set."""

import pytest

from gpumap.detect.launchers import detect_launch

ALONE = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0",
    "NODE_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "CUDA_VISIBLE_DEVICES": "0",
    "GPUMAP_RUN": "0/1 single process",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
}


def test_a_script_alone_is_a_single_process() -> None:
    """RANK and WORLD_SIZE are gpumap's, and no launcher's."""
    assert detect_launch(ALONE).launcher == "single process"


@pytest.mark.parametrize(
    ("launcher", "theirs"),
    [("Open MPI", OPEN_MPI), ("MPICH", MPICH), ("torchrun", TORCHRUN)],
)
def test_ranks_that_a_script_starts_are_their_launchers(
    launcher: str, theirs: dict[str, str]
) -> None:
    """Below `gpumap run` alone, mpirun, mpiexec and torchrun start two ranks."""
    launch = detect_launch(ALONE | theirs)

    assert launch.launcher == launcher
    assert (launch.rank, launch.world_size, launch.local_rank) == (1, 2, 1)


def test_who_sets_other_ranks_since_is_believed() -> None:
    """A script that starts two processes with RANK and WORLD_SIZE of its own."""
    own = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}

    launch = detect_launch(ALONE | own)

    assert launch.launcher == "torch variables"
    assert (launch.rank, launch.world_size, launch.local_rank) == (1, 2, 1)


def test_a_rank_of_one_number_starts_torchrun_in_its_turn() -> None:
    """Rank 1 of two with its own device starts two: local ranks 0 and 1 are theirs."""
    outer = {
        **TORCHRUN,
        "LOCAL_RANK": "0",
        "CUDA_VISIBLE_DEVICES": "5",
        "GPUMAP_RUN": "1/2 torchrun",
        "GPUMAP_LOCAL_RANK": "1",
    }
    assert detect_launch(outer).local_rank == 1

    inner = outer | {"RANK": "0", "LOCAL_RANK": "0"}
    assert detect_launch(inner).local_rank == 0


def test_a_kubeflow_pod_is_one_again() -> None:
    """Its row is marked by a LOCAL_RANK that is not set, which run has set."""
    pod = {"RANK": "1", "WORLD_SIZE": "2", "PET_NNODES": "2"}
    told = pod | {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    own = {
        "LOCAL_RANK": "0",
        "GPUMAP_RUN": "1/2 Kubeflow PyTorchJob",
        "GPUMAP_LOCAL_RANK": "",
    }

    assert detect_launch(told | own) == detect_launch(told)
    assert detect_launch(told).launcher == "Kubeflow PyTorchJob"

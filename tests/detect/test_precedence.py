"""Which launcher wins if several have set variables, and what is a contradiction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.detect.launchers import LAUNCHERS, detect_launch
from gpumap.errors import LaunchError
from gpumap.mapping.launch import Launch
from helpers.captured import jobs

Facts = tuple[str, int, int, int | None, int | None, int | None, int | None]


def facts(launch: Launch) -> Facts:
    """Return launcher, rank, world size, local rank and size, node rank and nodes."""
    return (
        *(launch.launcher, launch.rank, launch.world_size, launch.local_rank),
        *(launch.local_world_size, launch.node_rank, launch.num_nodes),
    )


def of(text: str) -> dict[str, str]:
    """Return "A=1 B=x" as variables."""
    return dict(item.split("=", 1) for item in text.split())


ALONE: Facts = ("single process", 0, 1, 0, 1, 0, 1)
STEP = of(
    "SLURM_JOB_ID=1234 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1 "
    "SLURM_STEP_NUM_TASKS=8 SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=4(x2) "
    "SLURM_STEP_NODELIST=node[01-02]"
)
OMPI = (
    "OMPI_COMM_WORLD_RANK=6 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=2 "
    "OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_NODE_RANK=2"
)


def test_a_slurm_task_knows_its_place_and_where_rank_0_is() -> None:
    """On two nodes of four tasks, task 5 is local rank 1 of the second node."""
    launch = detect_launch(STEP)
    assert facts(launch) == ("Slurm", 5, 8, 1, 4, 1, 2)
    assert (launch.master_addr, launch.job_id) == ("node01", "1234.0")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            "SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_NODEID=3 SLURM_PROCID=6 "
            "SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_NUM_NODES=4",
            ("Slurm", 6, 7, 0, 1, 3, 4),
        ),
        ("SLURM_NTASKS=16 SLURM_NNODES=4", ("Slurm", 5, 8, 1, 4, 1, 2)),
        ("SLURM_JOB_NAME=interactive", ("Slurm", 5, 8, 1, 4, 1, 2)),
        ("PMI_RANK=5 PMI_SIZE=8 PMI_FD=3", ("Slurm", 5, 8, 1, 4, 1, 2)),
        ("PMIX_RANK=5 PMIX_NAMESPACE=slurm.pmix.1", ("Slurm", 5, 8, 1, 4, 1, 2)),
        ("SLURM_STEP_ID=-5", ALONE),
        ("SLURM_STEP_ID=4294967290", ALONE),
        ("RANK=5 LOCAL_RANK=1 WORLD_SIZE=8", ("torch variables", 5, 8, 1, 4, 1, 2)),
        (
            "RANK=9 LOCAL_RANK=1 WORLD_SIZE=16 LOCAL_WORLD_SIZE=2",
            ("torch variables", 9, 16, 1, 2, None, None),
        ),
        ("RANK=7", ("Slurm", 5, 8, 1, 4, 1, 2)),
        (OMPI, ("Open MPI", 6, 8, 2, 4, None, None)),
        (
            "PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4",
            ("MPICH", 5, 8, 1, 4, None, None),
        ),
        (
            "TORCHELASTIC_RUN_ID=none RANK=2 WORLD_SIZE=5 LOCAL_RANK=0 "
            "LOCAL_WORLD_SIZE=3 GROUP_RANK=1 GROUP_WORLD_SIZE=2",
            ("torchrun", 2, 5, 0, 3, 1, 2),
        ),
    ],
)
def test_the_innermost_launcher_wins_over_a_slurm_step(
    environ: str, expected: Facts
) -> None:
    """The innermost launcher wins; stale, job-wide and special values never do."""
    assert facts(detect_launch(STEP | of(environ))) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            "RANK=3 LOCAL_RANK=1 WORLD_SIZE=5 LOCAL_SIZE=2 CROSS_RANK=1 CROSS_SIZE=2",
            ("DeepSpeed", 3, 5, 1, 2, 1, 2),
        ),
        (
            "RANK=1 WORLD_SIZE=3 PET_NNODES=3 PET_NODE_RANK=1 MASTER_ADDR=j-master-0",
            ("Kubeflow PyTorchJob", 1, 3, 0, 1, 1, 3),
        ),
        (
            "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 NODE_RANK=1",
            ("torch variables", 5, 8, 1, 4, 1, None),
        ),
        (
            "JSM_NAMESPACE_RANK=7 JSM_NAMESPACE_SIZE=12 JSM_NAMESPACE_LOCAL_RANK=1 "
            "JSM_NAMESPACE_LOCAL_SIZE=6 OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=12",
            ("IBM jsrun", 7, 12, 1, 6, None, None),
        ),
        (
            "MV2_COMM_WORLD_RANK=3 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=1 "
            "MV2_COMM_WORLD_LOCAL_SIZE=2",
            ("MVAPICH2", 3, 4, 1, 2, None, None),
        ),
        (
            "MVP_COMM_WORLD_RANK=3 MVP_COMM_WORLD_SIZE=4 MVP_COMM_WORLD_LOCAL_RANK=1",
            ("MVAPICH", 3, 4, 1, None, None, None),
        ),
        (
            "FLUX_TASK_RANK=3 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=2 "
            "PMI_RANK=3 PMI_SIZE=4",
            ("Flux", 3, 4, 1, None, None, 2),
        ),
        (
            "PALS_RANKID=5 PALS_LOCAL_RANKID=1 PALS_NODEID=1 PMI_RANK=5 PMI_SIZE=8 "
            "PMI_LOCAL_SIZE=4 PBS_JOBID=123.polaris",
            ("Cray PALS", 5, 8, 1, 4, 1, None),
        ),
        (
            'SM_HOSTS=["algo-1","algo-2"] SM_CURRENT_HOST=algo-2 SM_NUM_GPUS=8',
            ("SageMaker", 1, 2, 0, 1, 1, 2),
        ),
        (
            f'SM_HOSTS=["algo-1","algo-2"] SM_CURRENT_HOST=algo-1 {OMPI}',
            ("Open MPI", 6, 8, 2, 4, None, None),
        ),
        ("OMPI_MCA_plm_slurm_args=x PBS_JOBID=1 LSB_JOBID=2 SLURM_JOB_ID=7", ALONE),
    ],
)
def test_launchers_that_do_not_run_here_are_read_as_their_sources_say(
    environ: str, expected: Facts
) -> None:
    """Launchers that are not installed are read by the names that they document."""
    assert facts(detect_launch(of(environ))) == expected


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ("RANK=0 LOCAL_RANK=0 WORLD_SIZE=8", "RANK is 0 of 8, and Slurm says 5 of 8."),
        ("RANK=1 WORLD_SIZE=4", "RANK is 1 of 4, and Slurm says 5 of 8."),
        (f"RANK=5 WORLD_SIZE=8 {OMPI}", "RANK is 5 of 8, and Open MPI says 6 of 8."),
        ("SLURM_NODEID=2", "SLURM_NODEID is 2, and the step has 2 nodes."),
        ("SLURM_STEP_TASKS_PER_NODE=4(y2)", "'4(y2)' is no list of tasks per node."),
        ("SLURM_STEP_NODELIST=node[1-", "'node[1-' is no list of nodes."),
        ("MASTER_PORT=abc", "MASTER_PORT is 'abc', where a whole number from 0"),
    ],
)
def test_what_contradicts_a_slurm_step_is_an_error(environ: str, said: str) -> None:
    """Variables that contradict the step, such as an exported RANK, are an error."""
    with pytest.raises(LaunchError) as caught:
        detect_launch(STEP | of(environ))
    assert caught.value.happened.startswith(said)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ("PMI_RANK=1", "PMI_RANK is set, and MPI_LOCALRANKID, PMI_SIZE are not."),
        (
            "OMPI_COMM_WORLD_RANK=1",
            "OMPI_COMM_WORLD_RANK is set, and OMPI_COMM_WORLD_S",
        ),
        ("FLUX_TASK_RANK=1", "FLUX_TASK_RANK is set, and FLUX_JOB_SIZE is not."),
        ("PALS_RANKID=5 PALS_LOCAL_SIZE=4", "PALS_RANKID is set, and PMI_SIZE is not."),
        ("PALS_RANKID=5 PMI_SIZE=8 PMI_RANK=4", "PMI_RANK is 4, and the rank is 5."),
        ("LOCAL_RANK=1 NODE_RANK=0 WORLD_SIZE=2", "WORLD_SIZE and LOCAL_RANK are set"),
        ("TORCHELASTIC_RUN_ID=x WORLD_SIZE=2", "WORLD_SIZE is set, and RANK, MASTER_"),
        (
            "RANK=1 WORLD_SIZE=12 PET_NNODES=3 PET_NPROC_PER_NODE=4",
            "RANK is this pod's number, and each pod runs 4 processes.",
        ),
        ("SM_HOSTS=[1] SM_CURRENT_HOST=algo-1", "SM_HOSTS does not list this host."),
        (
            'SM_HOSTS="algo-1" SM_CURRENT_HOST=algo-1',
            "SM_HOSTS does not list this host.",
        ),
        ("SM_HOSTS=x SM_CURRENT_HOST=algo-1", "SM_HOSTS does not list this host."),
        ("GPUMAP_LAUNCHER=slurmm", "GPUMAP_LAUNCHER names 'slurmm', which gpumap does"),
        ("GPUMAP_LAUNCHER=Flux", "Nothing is set, and FLUX_TASK_RANK, FLUX_JOB_SIZE"),
    ],
)
def test_half_of_a_family_is_an_error(environ: str, said: str) -> None:
    """If part of a launcher's variables is missing, the error names both parts."""
    with pytest.raises(LaunchError) as caught:
        detect_launch(of(environ))
    assert caught.value.happened.startswith(said)


def test_a_launcher_can_be_named_or_switched_off() -> None:
    """GPUMAP_LAUNCHER selects a launcher; `none` makes it a single process."""
    both = STEP | of("RANK=5 LOCAL_RANK=1 WORLD_SIZE=8")
    assert detect_launch(both | {"GPUMAP_LAUNCHER": "Slurm"}).launcher == "Slurm"
    assert facts(detect_launch(both | {"GPUMAP_LAUNCHER": "none"})) == ALONE


def test_the_users_own_address_and_port_win() -> None:
    """MASTER_ADDR and MASTER_PORT override Slurm's; the rank is still Slurm's."""
    launch = detect_launch(STEP | of("MASTER_ADDR=10.0.0.4 MASTER_PORT=29501"))
    assert (launch.rank, launch.master_addr, launch.master_port) == (
        5,
        "10.0.0.4",
        29501,
    )


@pytest.mark.parametrize(
    "environ",
    [
        "SLURM_DISTRIBUTION=arbitrary",
        "SLURM_HOSTFILE=hosts",
        "SLURM_PROCID=0 SLURM_LOCALID=0",
    ],
)
def test_rank_0_elsewhere_is_not_guessed(environ: str) -> None:
    """If rank 0 may be on any node of the step, master_addr is None."""
    assert detect_launch(STEP | of(environ)).master_addr is None


def test_jobs_and_steps_beside_each_other_have_other_ports() -> None:
    """Each Slurm step has its own port below the ephemeral ones, alike in all tasks."""
    ports = {
        detect_launch(STEP | of(f"SLURM_JOB_ID={job} SLURM_STEP_ID={step}")).master_port
        for job in (1234, 1235, 1236, 11234, 21234, 31234)
        for step in (0, 1, 2)
    }
    assert len(ports) == 18
    assert all(10_000 <= (port or 0) < 32_768 for port in ports)
    tasks = {
        detect_launch(STEP | of(f"SLURM_PROCID={rank}")).master_port
        for rank in range(8)
    }
    assert len(tasks) == 1


def test_an_mpi_job_on_one_machine_works_its_port_out_from_its_name() -> None:
    """Open MPI's ranks derive their port from PMIX_NAMESPACE; MPICH's have no name."""
    ranks = [detect_launch(environ) for environ in jobs()["openmpi-n4"]]
    other = detect_launch(jobs()["openmpi-np4oversubscribe"][0])
    assert len({launch.master_port for launch in ranks}) == 1
    assert ranks[0].master_port not in (None, other.master_port)
    assert detect_launch(jobs()["mpich-n4"][0]).master_port is None


VARIABLES = sorted(
    {name for job in jobs().values() for environ in job for name in environ}
    | {mark for row in LAUNCHERS for mark in row.marks}
    | {name for row in LAUNCHERS for names in row.numbers.values() for name in names}
    | {"MASTER_ADDR", "MASTER_PORT", "GPUMAP_JOB_ID", "PET_NPROC_PER_NODE"}
)
TEXTS = st.one_of(
    st.integers(-2, 9).map(str),
    st.sampled_from(["4(x2)", "n[1-3]", "[1", "a,b", "-5", "4294967290", "n1", "0,2"]),
    st.text(max_size=6),
)


@given(st.dictionaries(st.sampled_from(VARIABLES), TEXTS))
def test_any_environment_is_a_launch_or_a_launch_error(environ: dict[str, str]) -> None:
    """Any texts in launchers' variables give a launch or a LaunchError."""
    try:
        launch = detect_launch(environ)
    except LaunchError:
        return
    assert 0 <= launch.rank < launch.world_size


@given(st.sampled_from([e for job in jobs().values() for e in job]), st.data())
def test_a_real_environment_with_anything_changed_is_one_too(
    environ: dict[str, str], data: st.DataObject
) -> None:
    """A captured environment with changed values gives a launch or a LaunchError."""
    changed = data.draw(st.dictionaries(st.sampled_from(sorted(environ)), TEXTS))
    try:
        launch = detect_launch(environ | changed)
    except LaunchError:
        return
    assert 0 <= launch.rank < launch.world_size

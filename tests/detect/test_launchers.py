"""Which launcher started a process, from captured and made-up environments."""

import pytest

from gpumap.detect.launchers import detect_launch
from gpumap.errors import LaunchError
from gpumap.mapping.launch import Launch
from helpers.captured import environment, jobs

# Shells in a Slurm allocation, which are no tasks of a step.
SHELLS = {
    *("slurm-salloc-shell", "slurm-sbatch-noSrun", "slurm22-sallocInteractive"),
    *("slurm22-sallocLocal", "slurm22-sbatchNosrun"),
}
# A launcher inside a launcher: the innermost wins.
INSIDE = {
    "slurm-torchrun-in-srun": "torchrun",
    "slurm22-sbatchSrunTorchrun": "torchrun",
    "slurm22-sbatchOmpirun": "Open MPI",
}
FAMILIES = {
    "torchrun": "torchrun",
    "torchlaunch": "torchrun",
    "slurm": "Slurm",
    "slurm22": "Slurm",
    "slurm22cg": "Slurm",
    "slurm22net": "Slurm",
    "openmpi": "Open MPI",
    "openmpi4": "Open MPI",
    "openmpi5": "Open MPI",
    "mpich": "MPICH",
    "mpich5": "MPICH",
    "impi": "MPICH",
}
RANKED = {n: j for n, j in jobs().items() if n not in SHELLS and n != "prrte-n3"}


@pytest.mark.parametrize("name", RANKED)
def test_the_ranks_of_a_captured_job_fit_together(name: str) -> None:
    """Ranks are 0 to N - 1 once each, local ranks contiguous, node sizes add up."""
    job = RANKED[name]
    launches = [detect_launch(environ) for environ in job]
    family = INSIDE.get(name, FAMILIES[name.partition("-")[0]])
    assert {launch.launcher for launch in launches} == {family}
    assert sorted(launch.rank for launch in launches) == list(range(len(job)))
    assert {launch.world_size for launch in launches} == {len(job)}
    hosts = [launch.node_rank for launch in launches]
    if None in hosts:
        names = ("SLURMD_NODENAME", "#HOSTNAME")
        hosts = [next(e[n] for n in names if n in e) for e in job]  # type: ignore[misc]
    sizes = dict(zip(hosts, (x.local_world_size for x in launches), strict=True))
    assert sum(size or 0 for size in sizes.values()) == len(job)
    for host, size in sizes.items():
        here = [x for x, h in zip(launches, hosts, strict=True) if h == host]
        assert sorted(x.local_rank or 0 for x in here) == list(range(size or 0))
        listed = [x.node_ranks for x in here if x.node_ranks is not None]
        by_place = sorted(here, key=lambda x: x.local_rank or 0)
        assert listed in ([], [tuple(x.rank for x in by_place)] * len(here))


@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_in_an_allocation_is_a_single_process(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A shell in an allocation is a single process, despite its SLURM_NTASKS."""
    [environ] = jobs()[name]
    launch = detect_launch(environ)
    assert (launch.launcher, launch.world_size) == ("single process", 1)
    assert "is no task of a step" in caplog.text


def test_prterun_tells_a_rank_and_no_size() -> None:
    """PMIX_RANK alone, as captured from prterun, is an error: the size is missing."""
    with pytest.raises(LaunchError, match="PMIX_RANK is set, and RANK, WORLD_SIZE"):
        detect_launch(jobs()["prrte-n3"][0])


def test_torchrun_tells_everything() -> None:
    """All fields come from `torchrun --standalone --nproc-per-node 3`, rank 1."""
    assert detect_launch(environment("torchrun-standalone3-rank1")) == Launch(
        launcher="torchrun",
        rank=1,
        world_size=3,
        local_rank=1,
        local_world_size=3,
        node_rank=0,
        num_nodes=1,
        master_addr="localhost",
        master_port=43757,
        node_ranks=(0, 1, 2),
        job_id="78756be6-94c6-467e-8e9c-d8eea3c44f90",
    )


def test_torchrun_inside_srun_wins_over_slurm() -> None:
    """The ranks are torchrun's: its rank 0 is on node 0, captured on SLURM_NODEID 1."""
    environ = environment("slurm-torchrun-in-srun-rank0")
    assert environ["SLURM_NODEID"] == "1"
    launch = detect_launch(environ)
    assert (launch.launcher, launch.rank, launch.node_rank) == ("torchrun", 0, 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_virtual_local_rank_is_undone(rank: int) -> None:
    """Under --virtual-local-rank (LOCAL_RANK=0 in both) local ranks are still 0, 1."""
    environ = environment(f"torchrun-virtual2-rank{rank}")
    assert environ["LOCAL_RANK"] == "0"
    launch = detect_launch(environ)
    assert launch.local_rank == rank
    assert launch.devices_bound


def test_virtual_local_rank_on_several_nodes_is_not_guessed() -> None:
    """On several nodes a virtual local rank stays unknown: no variable has it.

    rank % size would be wrong on unequal nodes.
    """
    two_nodes = {"WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}
    environ = environment("torchrun-virtual2-rank1") | two_nodes
    assert detect_launch(environ).local_rank is None


def test_torchs_own_variables_are_enough() -> None:
    """The variables of env:// are a launch; what is not set is None, not guessed."""
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    assert detect_launch(environ) == Launch(
        launcher="torch variables",
        rank=1,
        world_size=2,
        master_addr="127.0.0.1",
        master_port=29500,
    )


def test_no_variables_are_a_single_process() -> None:
    """Without a rank in the environment the process is rank 0 of 1."""
    launch = detect_launch({"MASTER_ADDR": "n1", "PATH": "/bin", "WORLD_SIZE": ""})
    assert launch.launcher == "single process"
    assert (launch.rank, launch.world_size, launch.local_rank) == (0, 1, 0)


def test_a_world_size_of_one_by_itself_is_harmless() -> None:
    """WORLD_SIZE=1 without RANK is a single process, not an error."""
    assert detect_launch({"WORLD_SIZE": "1"}).launcher == "single process"


def test_a_world_of_one_leaves_no_choice() -> None:
    """RANK=0 of WORLD_SIZE=1 is local rank 0, even if LOCAL_RANK is -1."""
    launch = detect_launch({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "-1"})
    assert (launch.local_rank, launch.local_world_size, launch.num_nodes) == (0, 1, 1)


@pytest.mark.parametrize(
    ("mask", "size", "bound"),
    [("3", "8", True), ("0,1", "8", False), (None, "8", False), ("3", "1", False)],
)
def test_one_visible_device_for_several_local_ranks_is_bound(
    mask: str | None, size: str, *, bound: bool
) -> None:
    """A mask of one device, for several local ranks, is the process's own."""
    environ = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}
    environ["LOCAL_WORLD_SIZE"] = size
    if mask is not None:
        environ["CUDA_VISIBLE_DEVICES"] = mask
    assert detect_launch(environ).devices_bound is bound


@pytest.mark.parametrize(
    ("on_node", "tasks", "mask", "bound"),
    [
        # --gpus-per-task=1, three tasks: gres.conf(5), each task sees its own.
        ("3", "3", "5", True),
        # --gpus-per-task=2, two tasks: by local rank they take the first's first
        # device and the second's second.
        ("4", "2", "2,3", False),
        # --gpus-per-task=2, three tasks.
        ("6", "3", "4,5", True),
        # One mask in the job script, for all three tasks on a node with eight.
        ("8", "3", "5,6,7", False),
        ("8", "3", "4,5,6,7", False),
    ],
)
def test_a_mask_with_a_device_for_each_task_is_no_tasks_own(
    on_node: str, tasks: str, mask: str, *, bound: bool
) -> None:
    """A task's own mask has one device, or fewer than the node has tasks."""
    environ = {
        "SLURM_JOB_ID": "4712",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_GPUS_ON_NODE": on_node,
        "CUDA_VISIBLE_DEVICES": mask,
    }
    assert detect_launch(environ).devices_bound is bound


def test_a_pod_with_the_operators_default_tells_no_local_rank() -> None:
    """PET_NPROC_PER_NODE=auto, one process per GPU, leaves the local rank unknown.

    Source: kubeflow/training-operator release-1.9, pytorch/envvar.go and defaults.
    """
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "auto",
        "MASTER_ADDR": "job-master-0",
        "MASTER_PORT": "23456",
    }
    assert detect_launch(environ) == Launch(
        launcher="Kubeflow PyTorchJob",
        rank=1,
        world_size=2,
        node_rank=1,
        num_nodes=2,
        master_addr="job-master-0",
        master_port=23456,
    )


def test_missing_variables_are_all_named_at_once() -> None:
    """One error names all missing variables; torch names one per run."""
    with pytest.raises(LaunchError) as caught:
        detect_launch({"RANK": "1"})
    assert str(caught.value) == (
        "RANK is set, and WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not.\n"
        "RANK='1'.\n"
        "Set WORLD_SIZE, MASTER_ADDR, MASTER_PORT too; or, for a single process, unset "
        "RANK. torchrun sets RANK, WORLD_SIZE and all that goes with them."
    )
    assert caught.value.variables == ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"RANK": "one"}, "RANK is 'one', where a whole number from 0 belongs."),
        ({"RANK": "-1"}, "RANK is '-1', where a whole number from 0 belongs."),
        ({"WORLD_SIZE": "2.0"}, "WORLD_SIZE is '2.0', where a whole number from 0"),
        ({"RANK": "²"}, "RANK is '²', where a whole number from 0 belongs."),
        ({"MASTER_PORT": "tcp://x"}, "MASTER_PORT is 'tcp://x', where a whole number"),
        ({"MASTER_PORT": "70000"}, "master_port 70000 is no TCP port."),
        ({"RANK": "2"}, "rank 2 is out of range for world_size 2."),
        ({"LOCAL_RANK": "2"}, "local_rank 2 is out of range for local_world_size 2."),
        ({"WORLD_SIZE": "0"}, "this is not a valid Launch."),
    ],
)
def test_wrong_values_name_the_variable(changed: dict[str, str], said: str) -> None:
    """An error about a wrong value names its variable and quotes the value."""
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    } | changed
    with pytest.raises(LaunchError) as caught:
        detect_launch(environ)
    assert caught.value.happened.startswith(said)
    name, value = next(iter(changed.items()))
    assert f"{name}={value!r}" in caught.value.seen


def test_a_jobs_name_can_be_given() -> None:
    """GPUMAP_JOB_ID sets the job id, and overrides a launcher's."""
    environ = {"RANK": "0", "WORLD_SIZE": "2", "GPUMAP_JOB_ID": "night run"}
    assert detect_launch(environ).job_id == "night run"
    environ = environment("torchrun-standalone3-rank1") | {"GPUMAP_JOB_ID": "x"}
    assert detect_launch(environ).job_id == "x"


def test_the_log_names_the_variables_that_the_launch_came_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names the variables that were used, and not a stray RANK."""
    name = next(n for n in RANKED if n.startswith("slurm-") and n not in INSIDE)
    with caplog.at_level("DEBUG", logger="gpumap"):
        launch = detect_launch({**RANKED[name][0], "RANK": "7"})
    assert launch.launcher == "Slurm"
    [line] = caplog.messages
    assert line.startswith("launch: Slurm, from SLURM_STEP_ID=")
    assert "SLURM_PROCID=" in line
    assert " RANK=" not in line


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun --nproc-per-node 4"),
        (
            {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"},
            "mpirun_rsh -np 4",
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            "mpirun --map-by ppr:4:node",
        ),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"}, "flux run --tasks-per-node 4"),
    ],
)
def test_each_launcher_has_a_command_of_its_own(
    environ: dict[str, str], command: str
) -> None:
    """The suggested command is the launcher's own; mpirun_rsh counts all processes."""
    assert detect_launch(environ).command(4) == command

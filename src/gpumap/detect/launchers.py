"""Which launcher started this process: a table of launchers, and its lookup."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpumap.detect import slurm
from gpumap.detect.before_run import before_run
from gpumap.detect.draft import Draft
from gpumap.detect.environment import Environment
from gpumap.detect.launcher_rules import (
    check_pods,
    fit_around,
    hosts_of_sagemaker,
    ranks_in_a_row,
    same_rank,
    virtual_local_rank,
)
from gpumap.detect.missing_variables import incomplete, refuse_half_a_family
from gpumap.errors import LaunchError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.visibility import without_foreign_masks

__all__ = ["LAUNCHERS", "detect_launch", "launched", "launched_on"]

log = logging.getLogger(__name__)

_ALONE = "single process"
Names = tuple[str, ...]


def _nothing_more(_draft: Draft) -> None:
    """Leave the draft as it was read."""


@dataclass(frozen=True)
class _Row:
    """One launcher.

    Attributes:
        launcher: Its name in Launch.launcher.
        source: Where its variables are documented or set.
        marks: The variables that are all set if it started this process.
        numbers: For each number of Launch, the variables to read; the first that is set
            is used.
        command: What starts {n} processes on each node, {total} in all; None means
            torchrun's.
        job_id: The variables that identify its jobs.
        settle: Fills in what follows from the numbers for certain, and checks them.
        applies: Whether it started this process, if its marks are set.
    """

    launcher: str
    source: str
    marks: Names
    numbers: Mapping[str, Names]
    job_id: Names = ()
    settle: Callable[[Draft], None] = _nothing_more
    applies: Callable[[Environment], bool] = lambda _: True
    command: str | None = None


def _family(prefix: str, local: str = "LOCAL_", **more: Names) -> dict[str, Names]:
    """Return the four usual variables of a launcher, and others."""
    return {
        "rank": (f"{prefix}RANK",),
        "world_size": (f"{prefix}SIZE",),
        "local_rank": (f"{prefix}{local}RANK",),
        "local_world_size": (f"{prefix}{local}SIZE",),
        **more,
    }


_TORCH: dict[str, Names] = {
    "rank": ("RANK",),
    "world_size": ("WORLD_SIZE",),
    "local_rank": ("LOCAL_RANK",),
    "local_world_size": ("LOCAL_WORLD_SIZE",),
}

LAUNCHERS = (
    _Row(
        # First, since gpumap.spawn started this process, whatever started its parent.
        "gpumap.spawn",
        "gpumap.spawning.spawn",
        ("GPUMAP_SPAWNED", "RANK", "WORLD_SIZE"),
        _TORCH,
        settle=ranks_in_a_row,
        command="gpumap.spawn(…, nprocs={n})",
    ),
    _Row(
        "torchrun",
        "torch.distributed.run, section Environment Variables",
        ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
        {**_TORCH, "node_rank": ("GROUP_RANK",), "num_nodes": ("GROUP_WORLD_SIZE",)},
        ("TORCHELASTIC_RUN_ID",),
        virtual_local_rank,
    ),
    _Row(
        "DeepSpeed",
        "deepspeed/launcher/launch.py; LOCAL_SIZE is the processes on this node",
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "CROSS_RANK", "CROSS_SIZE"),
        {
            **_TORCH,
            "local_world_size": ("LOCAL_SIZE",),
            "node_rank": ("CROSS_RANK",),
            "num_nodes": ("CROSS_SIZE",),
        },
        command="deepspeed --num_gpus {n}",
    ),
    _Row(
        "Kubeflow PyTorchJob",
        "kubeflow/training-operator release-1.9, pkg/controller.v1/pytorch/envvar.go: "
        "RANK is the pod's number",
        ("RANK", "WORLD_SIZE", "PET_NNODES"),
        {"rank": ("RANK",), "world_size": ("WORLD_SIZE",)},
        settle=check_pods,
        applies=lambda env: env.number("LOCAL_RANK") is None,
    ),
    _Row(
        "torch variables",
        "torch.distributed.init_process_group, section Environment variable "
        "initialization; NODE_RANK as Azure ML, Composer and Ray set it",
        ("RANK", "WORLD_SIZE"),
        {**_TORCH, "node_rank": ("NODE_RANK", "GROUP_RANK")},
        settle=fit_around,
    ),
    _Row(
        "IBM jsrun",
        "IBM Spectrum LSF/JSM: jsrun sets JSM_NAMESPACE_* beside Spectrum MPI's OMPI_*",
        ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
        _family("JSM_NAMESPACE_"),
        ("LSB_JOBID",),
        same_rank("OMPI_COMM_WORLD_RANK"),
        command="jsrun --tasks_per_rs {n}",
    ),
    _Row(
        # OMPI_COMM_WORLD_NODE_RANK is the process's rank on its node among all jobs.
        "Open MPI",
        "Open MPI 5 documentation, Environment variables set for MPI applications",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        _family("OMPI_COMM_WORLD_"),
        ("PMIX_NAMESPACE",),
        command="mpirun --map-by ppr:{n}:node",
    ),
    _Row(
        # Without MPI_LOCALRANKID, PMI_RANK comes from srun, Flux or Cray.
        "MPICH",
        "pmodels/mpich src/pm/hydra/proxy/pmip_cb.c; Intel MPI's hydra sets the same",
        ("MPI_LOCALRANKID", "PMI_RANK", "PMI_SIZE"),
        {
            "rank": ("PMI_RANK",),
            "world_size": ("PMI_SIZE",),
            "local_rank": ("MPI_LOCALRANKID",),
            "local_world_size": ("MPI_LOCALNRANKS",),
        },
        ("I_MPI_HYDRA_UUID",),
        command="mpiexec -ppn {n}",
    ),
    _Row(
        "MVAPICH2",
        "MVAPICH2 user guide, section on mpirun_rsh",
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        _family("MV2_COMM_WORLD_"),
        command="mpirun_rsh -np {total}",
    ),
    _Row(
        "MVAPICH",
        "MVAPICH 3 and 4: the same with MVP; only LOCAL_RANK is in its documentation",
        ("MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE"),
        _family("MVP_COMM_WORLD_"),
        command="mpirun_rsh -np {total}",
    ),
    _Row(
        "Flux",
        "flux-environment(7); FLUX_JOB_SIZE counts tasks, FLUX_JOB_NNODES nodes",
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
        {
            "rank": ("FLUX_TASK_RANK",),
            "world_size": ("FLUX_JOB_SIZE",),
            "local_rank": ("FLUX_TASK_LOCAL_ID",),
            "num_nodes": ("FLUX_JOB_NNODES",),
        },
        ("FLUX_JOB_ID",),
        command="flux run --tasks-per-node {n}",
    ),
    _Row(
        "Slurm",
        "srun(1), section Output environment variables; SLURM_NTASKS can be the job's",
        ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
        {
            "rank": ("SLURM_PROCID",),
            "world_size": ("SLURM_STEP_NUM_TASKS",),
            "local_rank": ("SLURM_LOCALID",),
            "node_rank": ("SLURM_NODEID",),
            "num_nodes": ("SLURM_STEP_NUM_NODES",),
        },
        settle=slurm.complete,
        applies=Environment.in_slurm_step,
        command="srun --ntasks-per-node {n}",
    ),
    _Row(
        "Cray PALS",
        "Slurm's src/plugins/mpi/cray_shasta and ALCF's user guides; there is no "
        "PALS_SIZE, and PALS_LOCAL_SIZE is the node's",
        ("PALS_RANKID", "PMI_SIZE"),
        {
            "rank": ("PALS_RANKID",),
            "world_size": ("PMI_SIZE",),
            "local_rank": ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
            "local_world_size": ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
            "node_rank": ("PALS_NODEID",),
        },
        ("PALS_APID", "PBS_JOBID"),
        same_rank("PMI_RANK"),
        command="mpiexec --ppn {n}",
    ),
    _Row(
        # By itself it starts one process per host; its other launchers have rows above.
        "SageMaker",
        "aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md",
        ("SM_HOSTS", "SM_CURRENT_HOST"),
        {},
        ("TRAINING_JOB_NAME",),
        hosts_of_sagemaker,
    ),
)


# The variables that go with each rank's; Slurm's rank is set in plain shells too.
_RANKS = {
    row.numbers["rank"][0]: row.marks
    for row in LAUNCHERS
    if "rank" in row.numbers and row.launcher != "Slurm"
}


def detect_launch(
    environ: Mapping[str, str] | None = None, node: Node | None = None
) -> Launch:
    """Return what started this process, from its environment alone.

    If node is given, masks that only another vendor's driver reads do not count as
    making devices a task's own.

    The first row of LAUNCHERS whose variables are set gives the rank and all sizes; if
    there is none, this is a single process. MASTER_ADDR, MASTER_PORT and GPUMAP_JOB_ID
    count under every launcher. GPUMAP_LAUNCHER selects a row, or "none", instead of the
    search.

    Raises:
        LaunchError: Variables contradict each other, or part of a launcher's variables
            is missing; all that are missing are named at once.

    >>> detect_launch({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}).local_rank
    1
    >>> detect_launch({}).launcher
    'single process'
    """
    variables = before_run(os.environ if environ is None else environ)
    if node is not None:
        variables = without_foreign_masks(node, variables)
    if (found := launched(variables)) is not None:
        return found
    env = Environment(variables)
    if env.text("GPUMAP_LAUNCHER") is None:
        refuse_half_a_family(_RANKS, env)
        slurm.say_no_step(env)
    log.debug("launch: %s", _ALONE)
    return _alone(env)


def launched(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Return the launch that a launcher's variables describe; None without a launcher.

    Raises:
        LaunchError: As detect_launch, but not for launchers of which part is missing.
    """
    variables = before_run(os.environ if environ is None else environ)
    look = Environment(variables)
    chosen = look.text("GPUMAP_LAUNCHER")
    for row in LAUNCHERS if chosen is None else _named(chosen):
        if all(look.text(mark) is not None for mark in row.marks) and row.applies(look):
            # A new Environment: the variables of the rows before were not used.
            env = Environment(variables)
            env.present(row.marks)
            launch = _read(row, env)
            log.debug("launch: %s, from %s", row.launcher, env.seen())
            return launch
        if chosen is not None:
            raise _not_this_one(row, look)
    return None


def _alone(env: Environment) -> Launch:
    return Launch(
        launcher=_ALONE,
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        num_nodes=1,
        node_ranks=(0,),
        job_id=env.text("GPUMAP_JOB_ID"),
    )


def launched_on(node: Node, launch: Launch, environ: Mapping[str, str]) -> Launch:
    """Return a launch, detected again without masks that this node does not read."""
    own = without_foreign_masks(node, environ)
    return launch if own == environ else launched(own) or launch


def _named(launcher: str) -> tuple[_Row, ...]:
    if launcher == "none":
        return ()
    rows = tuple(row for row in LAUNCHERS if row.launcher == launcher)
    if not rows:
        raise LaunchError(
            f"GPUMAP_LAUNCHER names {launcher!r}, which gpumap does not know.",
            f"It knows {', '.join(row.launcher for row in LAUNCHERS)} and none.",
            "Write one of these, or unset it.",
            ("GPUMAP_LAUNCHER",),
        )
    return rows


def _not_this_one(row: _Row, env: Environment) -> LaunchError:
    if not all(env.text(mark) is not None for mark in row.marks):
        return incomplete(row.marks, env)
    return LaunchError(
        f"{row.launcher} did not start this process.",
        f"{env.seen(row.marks)}.",
        "Unset GPUMAP_LAUNCHER, or name another.",
        ("GPUMAP_LAUNCHER",),
    )


def _read(row: _Row, env: Environment) -> Launch:
    draft = Draft(env)
    for name, variables in row.numbers.items():
        setattr(draft, name, env.first_number(variables))
    draft.master_addr = env.text("MASTER_ADDR")
    draft.master_port = env.number("MASTER_PORT")
    ids = (env.text(name) for name in ("GPUMAP_JOB_ID", *row.job_id))
    draft.job_id = next((text for text in ids if text is not None), None)
    row.settle(draft)
    return draft.finish(row.launcher, row.command)

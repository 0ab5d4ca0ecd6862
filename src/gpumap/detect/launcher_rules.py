"""Rules for launchers whose variables need to be checked or corrected."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import cast

from gpumap.detect import slurm
from gpumap.detect.draft import Draft
from gpumap.detect.environment import Environment
from gpumap.errors import LaunchError
from gpumap.mapping.environment import LOCAL_RANK

__all__ = [
    "check_pods",
    "fit_around",
    "hosts_of_sagemaker",
    "ranks_in_a_row",
    "same_rank",
    "virtual_local_rank",
]

# The port that sagemaker-training-toolkit's own launchers use.
_SAGEMAKERS_PORT = 7777
# More ranks than any node has: longer lists are not made.
_MOST_ON_A_NODE = 4096


def virtual_local_rank(draft: Draft) -> None:
    """Undo torchrun's --virtual-local-rank, and list the ranks of this node.

    With that option LOCAL_RANK is 0 in every process, and each sees one device of its
    own; no variable of torchrun's holds the true local rank. torchrun numbers the ranks
    of a node consecutively.
    """
    draft.devices_bound = draft.has_own_devices()
    told = draft.env.text(LOCAL_RANK) is not None  # `gpumap run` has kept it
    if draft.devices_bound and draft.local_rank == 0 and not told:
        one_node = draft.local_world_size == draft.world_size
        draft.local_rank = draft.rank if one_node else None
    ranks_in_a_row(draft)


def ranks_in_a_row(draft: Draft) -> None:
    """List the ranks of this node, if its launcher numbers them consecutively."""
    rank, local_rank, size = draft.rank, draft.local_rank, draft.local_world_size
    if rank is None or local_rank is None or size is None:
        return
    if local_rank <= rank and local_rank < size <= _MOST_ON_A_NODE:
        first = rank - local_rank
        draft.node_ranks = tuple(range(first, first + size))


def fit_around(draft: Draft) -> None:
    """Check bare RANK and WORLD_SIZE against the launcher that they were set in.

    `export RANK=$SLURM_PROCID` typed before srun gives every task the same rank. If the
    world sizes are equal, the ranks must be too. If WORLD_SIZE is larger, several
    processes were started in each task, and RANK and WORLD_SIZE are used.

    Raises:
        LaunchError: They disagree.
    """
    env, rank, size = draft.env, draft.rank, draft.world_size
    around = _around(env)
    if around is not None and size is not None:
        launcher, names = around
        outer_rank, outer_size = (env.number(name) for name in names)
        if outer_size is not None and size <= outer_size and outer_size > 1:
            if (rank, size) != (outer_rank, outer_size):
                raise LaunchError(
                    f"RANK is {rank} of {size}, and {launcher} says {outer_rank} of "
                    f"{outer_size}.",
                    f"{env.seen(('RANK', 'WORLD_SIZE', *names))}.",
                    f"Unset RANK and WORLD_SIZE, so that {launcher}'s count; they were "
                    "set before it started the tasks.",
                    ("RANK", "WORLD_SIZE"),
                )
            if launcher == "Slurm":
                _fill_from_slurm(draft)
    here = draft.local_world_size
    if size is not None and size == here and draft.local_rank == rank:
        draft.node_ranks = tuple(range(size)) if size <= _MOST_ON_A_NODE else None


def same_rank(name: str) -> Callable[[Draft], None]:
    """Return a check that another variable, if it is set, has the same rank."""

    def check(draft: Draft) -> None:
        other = draft.env.number(name)
        if other is not None and other != draft.rank:
            raise LaunchError(
                f"{name} is {other}, and the rank is {draft.rank}.",
                f"{draft.env.seen()}.",
                f"Unset {name} if it is left over from an outer program.",
                (name,),
            )

    return check


def check_pods(draft: Draft) -> None:
    """Take a pod's number as the rank, which it is with one process per pod.

    The operator's default, PET_NPROC_PER_NODE=auto, means one process per GPU of the
    pod. With one GPU this is the only process; with several, the local rank is unknown.

    Raises:
        LaunchError: PET_NPROC_PER_NODE says that there are several.
    """
    env = draft.env
    processes = env.text("PET_NPROC_PER_NODE")
    draft.node_rank, draft.num_nodes = draft.rank, draft.world_size
    if processes == "auto":
        return
    if processes not in (None, "1"):
        raise LaunchError(
            f"RANK is this pod's number, and each pod runs {processes} processes.",
            f"{env.seen(['RANK', 'WORLD_SIZE', 'PET_NPROC_PER_NODE'])}.",
            "Start the script with torchrun in each pod; it reads the PET_* variables.",
            ("PET_NPROC_PER_NODE",),
        )
    draft.local_rank, draft.local_world_size = 0, 1


def hosts_of_sagemaker(draft: Draft) -> None:
    """Take the hosts of a SageMaker job as its ranks, if nothing launched others.

    Raises:
        LaunchError: SM_HOSTS is no list of hosts that contains this one.
    """
    env = draft.env
    current = env.text("SM_CURRENT_HOST") or ""
    try:
        found = json.loads(env.text("SM_HOSTS") or "")
    except (ValueError, RecursionError):
        found = None
    listed = cast("list[object]", found) if isinstance(found, list) else []
    hosts = [str(host) for host in listed]
    if current not in hosts:
        raise LaunchError(
            "SM_HOSTS does not list this host.",
            f"{env.seen(['SM_HOSTS', 'SM_CURRENT_HOST'])}.",
            "SageMaker sets both; unset what was changed, or set RANK and WORLD_SIZE.",
            ("SM_HOSTS", "SM_CURRENT_HOST"),
        )
    draft.rank = draft.node_rank = hosts.index(current)
    draft.world_size = draft.num_nodes = len(hosts)
    draft.local_rank, draft.local_world_size = 0, 1
    draft.fill(master_addr=hosts[0], master_port=_SAGEMAKERS_PORT)


def _around(env: Environment) -> tuple[str, tuple[str, ...]] | None:
    if env.text("OMPI_COMM_WORLD_RANK") and env.text("OMPI_COMM_WORLD_SIZE"):
        return "Open MPI", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if env.in_slurm_step():
        return "Slurm", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    return None


def _fill_from_slurm(draft: Draft) -> None:
    """Fill in from an agreeing Slurm step what the bare variables do not say."""
    env = draft.env
    outer = replace(
        draft,
        node_rank=env.number("SLURM_NODEID"),
        num_nodes=env.number("SLURM_STEP_NUM_NODES"),
    )
    slurm.complete(outer)
    draft.fill(**{x.name: getattr(outer, x.name) for x in fields(outer)})

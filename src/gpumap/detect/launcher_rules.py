"""Where one launcher's variables need another look before they are believed."""

import json
import re
from collections.abc import Callable
from typing import cast

from gpumap.detect import slurm
from gpumap.detect.environment import Environment
from gpumap.errors import LaunchError
from gpumap.mapping.visibility import ALL_MASKS, mask_length

__all__ = [
    "bound_devices",
    "check_pods",
    "fit_around",
    "hosts_of_sagemaker",
    "ranks_in_a_row",
    "same_rank",
    "virtual_local_rank",
]

Fields = dict[str, object]

# More ranks than any node has; their list is for naming neighbours.
_MOST_ON_A_NODE = 4096


def bound_devices(fields: Fields, env: Environment) -> bool:
    """Tell whether this process's mask leaves it devices that are its own alone.

    One device for several local ranks, as --gpus-per-task=1 and wrappers leave it; or,
    in a Slurm step, fewer than the step has on this node and fewer than it has tasks
    here: a mask with a device for each task may be all tasks' mask, and counted by
    local rank it gives different devices where it is not.
    """
    local_rank, size = fields["local_rank"], fields["local_world_size"]
    several = (isinstance(size, int) and size > 1) or (
        isinstance(local_rank, int) and local_rank > 0
    )
    masks = (mask_length(env.text(name)) for name in ALL_MASKS)
    visible = next((count for count in masks if count is not None), None)
    if not several or not visible:
        return False
    if visible == 1:
        return True
    on_node = env.text("SLURM_GPUS_ON_NODE") or ""
    enough = isinstance(size, int) and visible >= size
    return (
        slurm.in_step(env)
        and not enough
        and re.fullmatch(r"[0-9]{1,9}", on_node, re.ASCII) is not None
        and visible < int(on_node)
    )


def virtual_local_rank(fields: Fields, env: Environment) -> None:
    """Undo torchrun's --virtual-local-rank, and list the ranks of this node.

    Under it LOCAL_RANK is 0 in every process, and each sees one device of its own; no
    variable holds the true local rank. torchrun numbers the ranks of a node in a row.
    """
    rank, local_rank = fields["rank"], fields["local_rank"]
    size = fields["local_world_size"]
    fields["devices_bound"] = bound_devices(fields, env)
    if fields["devices_bound"] and local_rank == 0:
        fields["local_rank"] = rank if size == fields["world_size"] else None
    ranks_in_a_row(fields, env)


def ranks_in_a_row(fields: Fields, _env: Environment) -> None:
    """List the ranks of this node, where its launcher numbers them in a row."""
    rank, local_rank = fields["rank"], fields["local_rank"]
    size = fields["local_world_size"]
    if (
        isinstance(rank, int)
        and isinstance(local_rank, int)
        and isinstance(size, int)
        and local_rank <= rank
        and local_rank < size <= _MOST_ON_A_NODE
    ):
        first = rank - local_rank
        fields["node_ranks"] = tuple(range(first, first + size))


def fit_around(fields: Fields, env: Environment) -> None:
    """Check bare RANK and WORLD_SIZE against a launcher around them.

    `export RANK=$SLURM_PROCID` typed before srun gives every task the same rank. Where
    the sizes are equal, the ranks must be; where WORLD_SIZE is larger, something
    started several processes in each task, and is believed.

    Raises:
        LaunchError: They disagree.
    """
    around = _around(env)
    size = fields["world_size"]
    if around is not None and isinstance(size, int):
        launcher, names = around
        outer_rank, outer_size = (env.number(name) for name in names[:2])
        if outer_size is not None and size <= outer_size and outer_size > 1:
            if (fields["rank"], size) != (outer_rank, outer_size):
                raise LaunchError(
                    f"RANK is {fields['rank']} of {size}, and {launcher} says "
                    f"{outer_rank} of {outer_size}.",
                    f"{env.seen(('RANK', 'WORLD_SIZE', *names))}.",
                    f"Unset RANK and WORLD_SIZE, so that {launcher}'s count; they were "
                    "set before it started the tasks.",
                    ("RANK", "WORLD_SIZE"),
                )
            _fill_from_slurm(fields, env, launcher)
    if (
        isinstance(size, int)
        and size == fields["local_world_size"]
        and fields["local_rank"] == fields["rank"]
        and size <= _MOST_ON_A_NODE
    ):
        fields["node_ranks"] = tuple(range(size))


def same_rank(name: str) -> Callable[[Fields, Environment], None]:
    """Return a check that another variable says the same rank, where it is set."""

    def check(fields: Fields, env: Environment) -> None:
        other = env.number(name)
        if other is not None and other != fields["rank"]:
            raise LaunchError(
                f"{name} is {other}, and the rank is {fields['rank']}.",
                f"{env.seen()}.",
                f"Unset {name} if it is left over from an outer program.",
                (name,),
            )

    return check


def check_pods(fields: Fields, env: Environment) -> None:
    """Read a pod's number as a rank, which it is with one process in each pod.

    The operator's default, PET_NPROC_PER_NODE=auto, is a process for each of the pod's
    GPUs: with one GPU this is the only one, with several a local rank is missed.

    Raises:
        LaunchError: PET_NPROC_PER_NODE says that there are more.
    """
    processes = env.text("PET_NPROC_PER_NODE")
    if processes == "auto":
        fields |= {"node_rank": fields["rank"], "num_nodes": fields["world_size"]}
        return
    if processes not in (None, "1"):
        raise LaunchError(
            f"RANK is this pod's number, and each pod runs {processes} processes.",
            f"{env.seen(['RANK', 'WORLD_SIZE', 'PET_NPROC_PER_NODE'])}.",
            "Start the script with torchrun in each pod; it reads the PET_* variables.",
            ("PET_NPROC_PER_NODE",),
        )
    fields |= {"local_rank": 0, "local_world_size": 1, "node_rank": fields["rank"]}
    fields["num_nodes"] = fields["world_size"]


def hosts_of_sagemaker(fields: Fields, env: Environment) -> None:
    """Count the hosts of a SageMaker job that has no launcher of ranks.

    Raises:
        LaunchError: SM_HOSTS is no list of hosts with this one in it.
    """
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
    rank = hosts.index(current)
    fields |= {"rank": rank, "world_size": len(hosts), "local_rank": 0}
    fields |= {"local_world_size": 1, "node_rank": rank, "num_nodes": len(hosts)}
    fields["master_addr"] = fields["master_addr"] or hosts[0]
    fields["master_port"] = fields["master_port"] or 7777


def _around(env: Environment) -> tuple[str, tuple[str, ...]] | None:
    if env.text("OMPI_COMM_WORLD_RANK") and env.text("OMPI_COMM_WORLD_SIZE"):
        return "Open MPI", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if slurm.in_step(env):
        return "Slurm", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    return None


def _fill_from_slurm(fields: Fields, env: Environment, launcher: str) -> None:
    """Take from an agreeing step what the bare variables do not say."""
    if launcher != "Slurm":
        return
    outer: Fields = {
        **fields,
        "node_rank": env.number("SLURM_NODEID"),
        "num_nodes": env.number("SLURM_STEP_NUM_NODES"),
    }
    slurm.complete(outer, env)
    fields.update({name: outer[name] for name in outer if fields.get(name) is None})

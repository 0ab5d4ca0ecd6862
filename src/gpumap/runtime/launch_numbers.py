"""A process's place among the others, as numbers: certain, or an error in words."""

from collections.abc import Callable
from typing import Literal

from gpumap.errors import LaunchError
from gpumap.mapping.launch import Launch

__all__ = ["LaunchNumber", "number_of"]

LaunchNumber = Literal["local_rank", "local_world_size", "node_rank", "num_nodes"]


def number_of(launch: Launch, name: LaunchNumber) -> int:
    """Return a number of a launch: as the launcher says it, or as it follows for sure.

    Raises:
        LaunchError: It says neither that number nor what it follows from.
    """
    told = getattr(launch, name)
    number = told if isinstance(told, int) else _FOLLOWS[name](launch)
    if number is not None:
        return number
    reads = launch.launcher == "torch variables"
    variable = _VARIABLES.get(name) if reads else None
    raise LaunchError(
        f"{_WORDS[name]} is not known: the launcher does not say it.",
        f"{launch.launcher}: rank={launch.rank}, world_size={launch.world_size}, no "
        f"{name}.",
        (f"Set {variable} for each process, or start" if variable else "Start")
        + f" with torchrun, which says it; or pass launch=gpumap.Launch(…, {name}=…).",
        () if variable is None else (variable,),
    )


_WORDS: dict[LaunchNumber, str] = {
    "local_rank": "this process's place on its node",
    "local_world_size": "the number of processes on this node",
    "node_rank": "this node's place among the nodes",
    "num_nodes": "the number of nodes",
}
# Those that are read where torch's own variables are set; num_nodes has none.
_VARIABLES: dict[LaunchNumber, str] = {
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "node_rank": "NODE_RANK",
}


def _is_one_node(launch: Launch) -> bool:
    return launch.one_node or launch.world_size == 1


def _is_alone(launch: Launch) -> bool:
    """Tell whether this is the only process of the job on its node."""
    return launch.local_world_size == 1 or launch.world_size in (1, launch.num_nodes)


def _processes(launch: Launch) -> int | None:
    if _is_one_node(launch):
        return launch.world_size
    return 1 if _is_alone(launch) else None


_FOLLOWS: dict[LaunchNumber, Callable[[Launch], int | None]] = {
    "local_rank": lambda launch: 0 if _is_alone(launch) else None,
    "local_world_size": _processes,
    "node_rank": lambda launch: 0 if _is_one_node(launch) else None,
    "num_nodes": lambda launch: 1 if _is_one_node(launch) else None,
}

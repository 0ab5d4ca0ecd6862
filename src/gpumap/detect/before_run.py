"""The launcher's variables behind those that `gpumap run` has set for a script."""

from collections.abc import Mapping

from gpumap.mapping.environment import BY_TORCHS_NAMES, LOCAL_RANK, RUN

__all__ = ["before_run"]

# What run sets anew where its launcher tells ranks by names of its own.
_SET_BY_RUN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "GROUP_WORLD_SIZE",
    LOCAL_RANK,
)
# Who sets RANK in processes of its own, also below a script that run has started.
_SET_ANEW = ("GPUMAP_SPAWNED", "TORCHELASTIC_RUN_ID", "CROSS_RANK")


def before_run(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables as they were before `gpumap run` or `gpumap env`.

    So a process finds the launcher that started it, be it the one of the script, or
    another one that the script has started. Who has set another RANK or WORLD_SIZE
    since is believed.
    """
    told, _, launcher = variables.get(RUN, "").partition(" ")
    ours = told == f"{variables.get('RANK')}/{variables.get('WORLD_SIZE')}"
    if launcher in BY_TORCHS_NAMES:
        if ours and LOCAL_RANK in variables:
            return {**variables, "LOCAL_RANK": variables[LOCAL_RANK]}
        return {n: x for n, x in variables.items() if n != LOCAL_RANK}
    if not ours or any(variables.get(name) for name in _SET_ANEW):
        return {n: x for n, x in variables.items() if n != LOCAL_RANK}
    return {n: x for n, x in variables.items() if n not in _SET_BY_RUN}

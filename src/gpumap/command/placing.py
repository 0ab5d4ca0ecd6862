"""The placements of a node's ranks, as a session decides them, with warnings."""

import argparse
import os
from collections.abc import Collection, Sequence

from gpumap.detect.cpus import bound_cpus
from gpumap.mapping.bound import bound, doubt_of_cores, refuse_unknown_neighbours
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.cpus import cpu_list, no_cpus
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.policy import Bind, Policy
from gpumap.mapping.pool import Pool
from gpumap.words import one_line

__all__ = ["placed"]

# Kinds for which every torch has a backend; for others torch is asked.
_TORCHS_KINDS = ("cpu", "cuda", "mps", "xpu")


def placed(
    launch: Launch,
    node: Node,
    policy: Policy,
    asked: argparse.Namespace,
    allowed: Collection[int] | None,
) -> tuple[list[Placement], list[str | None]]:
    """Return the placements of a node's ranks with their CPUs, and warnings.

    There are none if they depend on what only a session knows.
    """
    said: list[str | None] = []
    if policy.strategy == "closest" and node.devices:
        launch, doubt_of_cpus = _with_bound(launch)
        said.append(doubt_of_cpus)
        if launch.node_cpus is None:
            return [], said
    found, more = _on_node(launch, node, policy, asked.backend)
    said += more
    if asked.bind is not None:
        found, more = _bound(found, node, asked.bind, allowed)
        said += more
    return found, said


def _with_bound(launch: Launch) -> tuple[Launch, str | None]:
    """Return a launch with the CPUs of its node's processes, and what to say of them.

    Without them if a launcher may have bound the other processes to other CPUs.
    """
    mine = bound_cpus()
    alone = launch.world_size == 1 or launch.devices_bound
    processes = 1 if alone else launch.local_world_size or 1
    pretended = launch.launcher == "plan"
    said = None
    if processes > 1:
        said = (
            f'strategy "closest" is shown as if each of {processes} processes were '
            f"bound to CPUs {cpu_list(mine)}, as this one is."
            if pretended
            else 'strategy "closest" goes by the CPUs that each process of this node '
            f"is bound to, which only a session compares; this one's are "
            f"{cpu_list(mine)}."
        )
    known = (mine,) * processes if pretended or processes == 1 else launch.node_cpus
    return launch.model_copy(update={"node_cpus": known}), said


def _on_node(
    launch: Launch, node: Node, policy: Policy, backend: str
) -> tuple[list[Placement], list[str | None]]:
    """Return the placements of a node's ranks, and warnings about them."""
    pool = Pool.of(policy, node, launch)
    mine = pool.place(launch)
    if mine.device.kind not in _TORCHS_KINDS:
        from gpumap.runtime.local_setup import default_backend  # noqa: PLC0415 - slow

        default_backend(mine.device.kind, rehearsed=True)
    pool.refuse_conflicts(launch, backend, os.environ)
    placements = [pool.place(one) for one in launch.neighbours]
    return placements, [pool.idle(launch), *pool.warnings(launch)]


def _bound(
    found: Sequence[Placement], node: Node, how: Bind, allowed: Collection[int] | None
) -> tuple[list[Placement], list[str | None]]:
    """Return placements with their CPUs, and warnings about them.

    Raises:
        LaunchError: "exclusive", and the launcher does not tell the processes' number.
        PlacementError: "exclusive", and a rank has no CPU of its own.
    """
    said: list[str | None] = []
    launch, shown = found[0].launch, how
    if how == "exclusive":
        refuse_unknown_neighbours(launch)
        if len(found) < (launch.local_world_size or 1):
            shown = "numa"
            said.append(
                "of the CPUs shown, --bind exclusive gives this process a part: a "
                "session shares them out among the ranks with devices beside them."
            )
    placements = bound(found, node, shown, allowed)
    for one in placements:
        if not one.cpus:
            error = no_cpus(one.device, node.cpus or CpuTopology(), allowed or ())
            if how == "exclusive":
                raise error
            said.append(one_line(error))
    return placements, [*said, doubt_of_cores(found, node, shown, allowed)]

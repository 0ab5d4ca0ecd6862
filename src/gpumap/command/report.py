"""What `gpumap show` prints."""

from collections.abc import Callable, Sequence

from gpumap.mapping.base import FrozenModel
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.tables import device_table, link_table, placement_table
from gpumap.words import plural

__all__ = ["Report", "in_words"]


class Report(FrozenModel):
    """Everything that is printed, as a text or, with --json, as JSON.

    Attributes:
        launch: The detected launch, or the one that --nproc simulates.
        node: The host and its visible devices; of several nodes, the first.
        cluster: All nodes, if several are rehearsed.
        machine: The rehearsed machine, if there is one.
        mask: The variable that numbers the visible devices, and its value.
        placements: This rank's; on local rank 0, those of its whole node.
        warnings: Doubts about choices that work but could be better.
        error: Why no session could start, if none could.
    """

    launch: Launch | None = None
    node: Node | None = None
    cluster: tuple[Node, ...] = ()
    machine: str | None = None
    mask: tuple[str, str] | None = None
    placements: tuple[Placement, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None


def in_words(report: Report) -> str:
    """Return the report as a text of lines and tables."""
    parts: list[str] = []
    if report.launch is not None:
        parts.append(_launch(report.launch))
    node = report.node
    if node is not None:
        nodes = report.cluster or (node,)
        # Equal nodes are shown once.
        for one in dict.fromkeys(nodes):
            parts.append(_node(one, report))
            if one.devices and not (report.launch and report.launch.local_rank):
                parts += ["", device_table(one)]
                parts += ["", link_table(one)] if one.links else []
                parts += [""]
        if report.placements:
            names = [one.hostname for one in nodes]
            parts.append(placement_table(report.placements, _host_of(names)))
    parts += [f"warning: {warning}" for warning in report.warnings]
    parts += [report.error] if report.error else []
    return "\n".join(parts)


def _host_of(names: Sequence[str]) -> Callable[[int], str]:
    """Return a function from node_rank to host name; a single node has any rank."""
    return lambda node_rank: names[node_rank if len(names) > 1 else 0]


def _launch(launch: Launch) -> str:
    def of(place: int | None, count: int | None) -> str:
        return f"{'?' if place is None else place} of {'?' if count is None else count}"

    store = f", store {launch.master_addr or '?'}:{launch.master_port or '?'}"
    return (
        f"launch: {launch.launcher}, rank {of(launch.rank, launch.world_size)}, "
        f"local rank {of(launch.local_rank, launch.local_world_size)}, "
        f"node {of(launch.node_rank, launch.num_nodes)}"
        + ("" if launch.launcher in ("plan", "single process") else store)
        + (", each task has its own devices" if launch.devices_bound else "")
    )


def _node(node: Node, report: Report) -> str:
    pretended = f" (rehearsal of {report.machine})" if report.machine else ""
    mask = f", {report.mask[0]}={report.mask[1]!r}" if report.mask else ""
    count = len(node.devices)
    seen = f"{count or 'no'} {plural('device', count)} visible"
    return f"node: {node.hostname}{pretended}{mask}: {seen}"

"""`python -m gpumap`: show the launch, the node and the plan; change nothing."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

from gpumap.detect.cpus import allowed_cpus, bound_cpus, with_cpus
from gpumap.detect.hardware import detect_node
from gpumap.detect.launchers import detect_launch, launched_on
from gpumap.detect.nvml import nvml_node
from gpumap.detect.rehearsal import REHEARSAL, rehearsed_nodes
from gpumap.detect.tenants import with_tenants
from gpumap.errors import DeviceError, GpumapError
from gpumap.mapping.base import FrozenModel
from gpumap.mapping.bound import bound, doubt_of_cores, refuse_unknown_neighbours
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.cpus import cpu_list, no_cpus
from gpumap.mapping.device_refs import DeviceRef, refs_of
from gpumap.mapping.devices import Node, one_per_gpu
from gpumap.mapping.launch import Launch, store_address
from gpumap.mapping.placement import Placement
from gpumap.mapping.policy import Bind, Policy, Scores, StrategyName, pool_named
from gpumap.mapping.pool import Pool
from gpumap.mapping.ranks import RankLayout
from gpumap.mapping.tables import device_table, link_table, placement_table
from gpumap.mapping.visibility import doubt, mask_of
from gpumap.words import one_line, plural

# Kinds for which every torch has a backend; for others torch is asked.
_TORCHS_KINDS = ("cpu", "cuda", "mps", "xpu")
_MOST_PROCESSES = 4096  # more than any node runs
_EXAMPLES = """\
examples:
  python -m gpumap                                what this process would train on
  torchrun --nproc-per-node 2 -m gpumap           what each of two ranks would
  python -m gpumap --gpus 2,3 --nproc 2           a choice, before it is started
  python -m gpumap --machine dgx1-v100 --nproc 4 --strategy linked
  python -m gpumap --save here.json               then GPUMAP_REHEARSAL=here.json
"""


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what gpumap detects; return 1 if no session could start.

    Return 2 if the report could not be printed or the arguments are invalid.
    """
    asked = _parser().parse_args(arguments)
    report = _report(asked)
    if asked.save:
        report = _saved(report, Path(asked.save))
    if asked.json:
        text = json.dumps(report.model_dump(), indent=2, ensure_ascii=False)
    else:
        text = _in_words(report)
    if failure := _not_printed(text):
        if sys.stderr is not None:
            sys.stderr.write(f"gpumap: nothing could be printed: {failure}\n")
        return 2
    return 0 if report.error is None else 1


def _not_printed(text: str) -> str | None:
    """Print a text; return the reason if that failed.

    A reader that closes its end of a pipe is no failure.
    """
    if sys.stdout is None:
        return "standard output is closed"
    encoding = sys.stdout.encoding or "utf-8"
    try:
        # In one write: under a launcher other ranks print too.
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        sys.stdout.flush()
    except OSError as error:
        # Otherwise Python would try to flush the buffer again at exit, and fail.
        sys.stdout = None
        return None if isinstance(error, BrokenPipeError) else str(error)
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m gpumap" if sys.argv[0].endswith("__main__.py") else None,
        description="Show which GPU this process would train on, and why.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--strategy", choices=get_args(StrategyName))
    add("--gpus", type=_refs, metavar="REFS", help="2,3 or GPU-5c3a,0000:3b:00.0")
    add(
        "--scores",
        type=_scores,
        metavar="SCORES",
        help="memory, multiprocessors, or 0=100,1=90",
    )
    add("--nproc", type=_count, metavar="N", help="as if N processes were started here")
    add("--nodes", type=_count, metavar="N", help="as if started on N such nodes")
    add("--backend", default="nccl", help="gloo, where ranks may share a device")
    add("--bind", choices=get_args(Bind), help="show the CPUs of each rank, too")
    add("--oversubscribe", action="store_true", help="let ranks share a device")
    add("--machine", metavar="NAME", help="a machine's name, or a JSON file")
    add("--json", action="store_true", help="print all of it as JSON")
    add("--save", metavar="FILE", help="write the node as JSON, for a rehearsal")
    return parser


def _report(asked: argparse.Namespace) -> Report:
    """Build the report step by step; an error ends it at the step that failed."""
    report = Report()
    try:
        for report in _steps(asked):  # noqa: B007 - the last one counts
            pass
    except (GpumapError, ImportError) as error:
        slip = report.node and doubt(report.node, os.environ)
        return report.model_copy(
            update={
                "error": f"{type(error).__name__}: {error}",
                "warnings": report.warnings or ((slip,) if slip else ()),
            }
        )
    return report


def _steps(asked: argparse.Namespace) -> Generator[Report, None, None]:
    """Yield the report after each step, with more fields each time."""
    environ = dict(os.environ)
    if asked.machine is not None:
        environ[REHEARSAL] = asked.machine
    report = Report(machine=environ.get(REHEARSAL) or None)
    yield report
    launch = None if asked.nproc or asked.nodes else detect_launch()
    yield (report := report.model_copy(update={"launch": launch or _ALONE}))
    node = detect_node("auto", environ, launch or _ALONE)
    needs_cpus = asked.bind or asked.save or asked.strategy == "closest"
    if needs_cpus and not report.machine:
        node = with_cpus(node)
    mask = mask_of(node, os.environ)
    shown_mask = mask and (mask[0], mask[1].encode(errors="replace").decode())
    yield (report := report.model_copy(update={"node": node, "mask": shown_mask}))
    pool = pool_named(asked.gpus, os.environ)
    policy = Policy.of(
        asked.strategy, pool, asked.scores, oversubscribe=asked.oversubscribe
    )
    nodes: Sequence[Node] = [node]
    if launch is None or (asked.machine is not None and launch.world_size == 1):
        nodes = _cluster(asked, node, environ)
        sizes = [asked.nproc or _fitting(policy, x, n) for n, x in enumerate(nodes)]
        launches = _pretended(sizes)
    else:
        launches = [launched_on(node, launch, os.environ)]
    if asked.strategy == "idle":
        used = {one: _with_users(one, environ) for one in dict.fromkeys(nodes)}
        nodes = [used[one] for one in nodes]
    cluster = tuple(nodes) if len(nodes) > 1 else ()
    report = report.model_copy(
        update={"launch": launches[0], "node": nodes[0], "cluster": cluster}
    )
    yield report
    placements: list[Placement] = []
    warnings = [doubt(node, os.environ), None if report.machine else _unseen(node)]
    allowed = allowed_cpus() if asked.bind and not report.machine else None
    for one, here in zip(launches, nodes, strict=True):
        found, said = _placed(one, here, policy, asked, allowed)
        placements += [
            p for p in found if not one.local_rank or p.launch.rank == one.rank
        ]
        warnings += said
    yield report.model_copy(
        update={
            "placements": tuple(placements),
            "warnings": tuple(w for w in dict.fromkeys(warnings) if w),
        }
    )
    if launch is not None and launch.world_size > 1:
        store_address(launch)


def _with_users(node: Node, environ: Mapping[str, str]) -> Node:
    """Return the node with the tenants of its devices, holders of claims included."""
    from gpumap.detect.claims import with_holders  # noqa: PLC0415 - who asks pays

    return with_holders(with_tenants(node, environ), environ)


def _placed(
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


def _saved(report: Report, path: Path) -> Report:
    """Save the node as JSON, atomically, from local rank 0 only."""
    if report.launch is not None and report.launch.local_rank:
        return report
    if report.node is None:
        return report.model_copy(
            update={"error": f"{report.error}\nnothing was saved: no node was read."}
        )
    try:
        beside = path.with_name(f"{path.name}.part")
        beside.write_text(report.node.model_dump_json(indent=2) + "\n", "utf-8")
        beside.replace(path)
    except (OSError, ValueError) as error:
        return report.model_copy(update={"error": f"nothing was saved: {error}"})
    if report.mask is None:
        return report
    cut = (
        f"{path} holds what {report.mask[0]} leaves visible; unset it to save the "
        "whole machine."
    )
    return report.model_copy(update={"warnings": (*report.warnings, cut)})


def _unseen(node: Node) -> str | None:
    """Return a warning about devices that torch does not see, or unknown links."""
    if len(node.devices) > 1 and node.devices[0].kind == "cuda" and not node.links:
        return (
            "the links between the devices are not known: the extra tells them, "
            "pip install gpumap-torch[nvml]."
        )
    there = None if node.devices else nvml_node(node.hostname)
    if there is None or not there.devices:
        return None
    import torch  # noqa: PLC0415 - detect_node has imported it already

    why = "it is built without CUDA"
    if torch.version.cuda is not None:
        why = "a mask hides them, or the driver is older than torch's CUDA"
    return (
        f"torch {torch.__version__} sees no accelerator, and NVML finds "
        f"{', '.join(str(d.name) for d in there.devices)}: {why}."
    )


def _cluster(
    asked: argparse.Namespace, node: Node, environ: Mapping[str, str]
) -> Sequence[Node]:
    """Return the nodes to show: all of the described ones, or --nodes equal ones."""
    machine = environ.get(REHEARSAL)
    nodes = rehearsed_nodes(machine, environ) if machine else [node]
    if asked.nodes is None:
        return nodes
    if len(nodes) not in (1, asked.nodes):
        raise DeviceError(
            f"--nodes is {asked.nodes}, and {machine} describes {len(nodes)}.",
            "",
            "Leave --nodes out to show all of them.",
        )
    return nodes if len(nodes) > 1 else nodes * asked.nodes


def _fitting(policy: Policy, node: Node, node_rank: int) -> int:
    """Return how many processes fit a node if --nproc is not given."""
    listed = policy.listed(node, node_rank)
    return max(1, len(one_per_gpu(node.devices) if listed is None else listed))


def _pretended(sizes: Sequence[int]) -> list[Launch]:
    """Return the launch of each node's first rank; sizes are processes per node."""
    layout = RankLayout(sizes)
    ranks = [layout.ranks_of(node_rank) for node_rank in range(len(sizes))]
    return [
        Launch(
            launcher="plan",
            rank=here[0],
            world_size=layout.world_size,
            local_rank=0,
            local_world_size=len(here),
            node_rank=node_rank,
            num_nodes=len(sizes),
            node_ranks=tuple(here),
        )
        for node_rank, here in enumerate(ranks)
    ]


_ALONE = _pretended([1])[0]


def _in_words(report: Report) -> str:
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


def _refs(text: str) -> Sequence[DeviceRef]:
    try:
        return refs_of(text)
    except DeviceError as error:
        raise argparse.ArgumentTypeError(one_line(error)) from None


def _scores(text: str) -> Scores:
    if text in ("memory", "multiprocessors"):
        return cast("Scores", text)
    pairs = [item.partition("=")[::2] for item in text.split(",")]
    try:
        return {_refs(ref)[0]: float(score) for ref, score in pairs}
    except ValueError:
        message = f"{text!r} is not memory, multiprocessors or 0=100,1=90"
        raise argparse.ArgumentTypeError(message) from None


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:9]) <= _MOST_PROCESSES:
        message = f"{text!r} is not a number of processes"
        raise argparse.ArgumentTypeError(message)
    return int(text)


if __name__ == "__main__":
    sys.exit(main())

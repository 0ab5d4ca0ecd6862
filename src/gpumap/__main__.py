"""`python -m gpumap`: show the launch, the node and the plan; change nothing."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from gpumap.detect.hardware import detect_node
from gpumap.detect.launchers import detect_launch
from gpumap.detect.nvml import nvml_node
from gpumap.detect.rehearsal import REHEARSAL, rehearsed_node
from gpumap.errors import DeviceError, GpumapError
from gpumap.mapping.advice import advice
from gpumap.mapping.choice import Choice, Scores, StrategyName, pool_named
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import (
    Placement,
    apart,
    idle_devices,
    neighbours,
    place,
    refuse_conflicts,
)
from gpumap.mapping.refs import DeviceRef, refs_of
from gpumap.mapping.tables import device_table, link_table, placement_table
from gpumap.mapping.values import Value
from gpumap.mapping.visibility import doubt, mask_of

_MOST_PROCESSES = 4096  # more than any node runs
_EXAMPLES = """\
examples:
  python -m gpumap                                what this process would train on
  torchrun --nproc-per-node 2 -m gpumap           what each of two ranks would
  python -m gpumap --gpus 2,3 --nproc 2           a choice, before it is started
  python -m gpumap --machine dgx1-v100 --nproc 4 --strategy linked
  python -m gpumap --save here.json               then GPUMAP_REHEARSAL=here.json
"""


class Report(Value):
    """All that is shown; as JSON with --json.

    Attributes:
        launch: What started this process, or what --nproc pretends.
        node: The host and the devices visible there.
        machine: The machine pretended, if one is.
        mask: The variable that numbers the visible devices, and its value.
        placements: This rank's, or its whole node's from local rank 0.
        warnings: What works and is worth a second thought.
        error: Why no session could start.
    """

    launch: Launch | None = None
    node: Node | None = None
    machine: str | None = None
    mask: tuple[str, str] | None = None
    placements: tuple[Placement, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what gpumap sees here; return 1 where no session could start."""
    asked = _parser().parse_args(arguments)
    report = _report(asked)
    if asked.save:
        report = _saved(report, Path(asked.save))
    text = report.model_dump_json(indent=2) if asked.json else _in_words(report)
    encoding = sys.stdout.encoding or "utf-8"
    # At once: under a launcher others print too.
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
    sys.stdout.flush()
    return 0 if report.error is None else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m gpumap",
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
    add("--machine", metavar="NAME", help="a machine's name, or a JSON file")
    add("--json", action="store_true", help="print all of it as JSON")
    add("--save", metavar="FILE", help="write the node as JSON, for a rehearsal")
    return parser


def _report(asked: argparse.Namespace) -> Report:
    """Find out step by step; an error ends the report where it happened."""
    machine = asked.machine
    if machine is None:
        machine = os.environ.get(REHEARSAL) or None
    report = Report(machine=machine)
    try:
        launch = _pretended(asked.nproc) if asked.nproc else detect_launch()
        report = report.model_copy(update={"launch": launch})
        pretend = machine is not None
        node = rehearsed_node(machine, launch, os.environ) if pretend else detect_node()
        mask = mask_of(node, os.environ)
        shown_mask = mask and (mask[0], mask[1].encode(errors="replace").decode())
        report = report.model_copy(update={"node": node, "mask": shown_mask})
        pool = pool_named(asked.gpus, os.environ)
        choice = Choice.of(asked.strategy, pool, asked.scores, oversubscribe=False)
        processes = None if asked.nproc else _fitting(asked, launch, choice, node)
        if processes is not None:
            launch = _pretended(processes)
            report = report.model_copy(update={"launch": launch})
        mine = _placed(launch, node, choice)
        refuse_conflicts(mine, node, choice, can_share=False)
        shown = neighbours(launch) if not launch.local_rank else [launch]
        placements = [_placed(one, node, choice) for one in shown]
        warnings = (
            doubt(node, os.environ),
            None if pretend else _unseen(node),
            idle_devices(mine, node, choice),
            *advice([p.device for p in placements], node, choice.name),
        )
        return report.model_copy(
            update={
                "placements": tuple(placements),
                "warnings": tuple(w for w in warnings if w),
            }
        )
    except (GpumapError, ImportError) as error:
        slip = report.node and doubt(report.node, os.environ)
        return report.model_copy(
            update={
                "error": f"{type(error).__name__}: {error}",
                "warnings": (slip,) if slip else (),
            }
        )


def _saved(report: Report, path: Path) -> Report:
    """Write the node down, whole or not at all, from local rank 0."""
    if report.launch is not None and report.launch.local_rank:
        return report
    if report.node is None:
        return report.model_copy(
            update={"error": f"{report.error}\nnothing was saved: no node was read."}
        )
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_text(report.node.model_dump_json(indent=2) + "\n", "utf-8")
        beside.replace(path)
    except OSError as error:
        return report.model_copy(update={"error": f"nothing was saved: {error}"})
    if report.mask is None:
        return report
    partial = (
        f"{path} holds what {report.mask[0]} leaves visible; unset it to save the "
        "whole machine."
    )
    return report.model_copy(update={"warnings": (*report.warnings, partial)})


def _unseen(node: Node) -> str | None:
    """Say that there are devices which torch does not see, or links nobody knows."""
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


def _fitting(
    asked: argparse.Namespace, launch: Launch, choice: Choice, node: Node
) -> int | None:
    """Return how many processes fit a machine that was named without --nproc."""
    if asked.machine is None or launch.world_size > 1:
        return None
    listed = choice.listed(node, 0)
    return max(1, len(apart(node.devices) if listed is None else listed))


def _pretended(processes: int) -> Launch:
    return Launch(
        launcher="plan",
        rank=0,
        world_size=processes,
        local_rank=0,
        local_world_size=processes,
        node_rank=0,
        num_nodes=1,
        node_ranks=tuple(range(processes)),
    )


def _placed(launch: Launch, node: Node, choice: Choice) -> Placement:
    return place(launch, node, choice.strategy, gpus=choice.gpus, scores=choice.scores)


def _in_words(report: Report) -> str:
    parts: list[str] = []
    if report.launch is not None:
        parts.append(_launch(report.launch))
    node = report.node
    if node is not None:
        parts.append(_node(node, report))
        if node.devices and not (report.launch and report.launch.local_rank):
            parts += ["", device_table(node)]
            parts += ["", link_table(node)] if node.links else []
            parts += [""]
        if report.placements:
            parts.append(placement_table(report.placements, lambda _: node.hostname))
    parts += [f"warning: {warning}" for warning in report.warnings]
    parts += [report.error] if report.error else []
    return "\n".join(parts)


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
    seen = f"{count} device{'s'[: count > 1]} visible" if count else node.visible
    return f"node: {node.hostname}{pretended}{mask}: {seen}"


def _refs(text: str) -> Sequence[DeviceRef]:
    try:
        return refs_of(text)
    except DeviceError as error:
        raise argparse.ArgumentTypeError(" ".join(str(error).split("\n"))) from None


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

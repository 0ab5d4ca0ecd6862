"""`gpumap show`: the launch, the node and the plan; changes nothing."""

import argparse
import json
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpumap.command.placing import placed
from gpumap.command.pretended import ALONE, cluster, fitting, pretended
from gpumap.command.printing import printed
from gpumap.command.report import Report, in_words
from gpumap.command.saving import saved
from gpumap.command.unseen import unseen
from gpumap.detect.cpus import allowed_cpus, with_cpus
from gpumap.detect.hardware import detect_node
from gpumap.detect.launchers import detect_launch, launched_on
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.detect.tenants import with_tenants
from gpumap.errors import GpumapError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import store_address
from gpumap.mapping.policy import Policy, pool_named
from gpumap.mapping.visibility import doubt, mask_of

if TYPE_CHECKING:
    from gpumap.mapping.placement import Placement

__all__ = ["show"]


def show(asked: argparse.Namespace) -> int:
    """Print what gpumap detects; return 1 if no session could start.

    Return 2 if the report could not be printed.
    """
    report = _report(asked)
    if asked.save:
        report = saved(report, Path(asked.save))
    if asked.plot:
        from gpumap.command.plotting import plotted  # noqa: PLC0415 - who asks pays

        report = plotted(report, Path(asked.plot))
    if asked.json:
        text = json.dumps(report.model_dump(), indent=2, ensure_ascii=False)
    else:
        text = in_words(report)
    if not printed(text):
        return 2
    return 0 if report.error is None else 1


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
    yield (report := report.model_copy(update={"launch": launch or ALONE}))
    node = detect_node("auto", environ, launch or ALONE)
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
        nodes = cluster(asked, node, environ)
        sizes = [asked.nproc or fitting(policy, x, n) for n, x in enumerate(nodes)]
        launches = pretended(sizes)
    else:
        launches = [launched_on(node, launch, os.environ)]
    if asked.strategy == "idle":
        used = {one: _with_users(one, environ) for one in dict.fromkeys(nodes)}
        nodes = [used[one] for one in nodes]
    several = tuple(nodes) if len(nodes) > 1 else ()
    report = report.model_copy(
        update={"launch": launches[0], "node": nodes[0], "cluster": several}
    )
    yield report
    placements: list[Placement] = []
    warnings = [doubt(node, os.environ), None if report.machine else unseen(node)]
    allowed = allowed_cpus() if asked.bind and not report.machine else None
    for one, here in zip(launches, nodes, strict=True):
        found, said = placed(one, here, policy, asked, allowed)
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

"""What a ring all-reduce could reach on a machine that one does not have."""

import os
from collections.abc import Iterator, Sequence
from textwrap import fill

import gpumap
from gpumap.detect.rehearsal import rehearsed_node
from gpumap.errors import DeviceError, GpumapError, PlacementError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.tables import aligned
from parts.links import bandwidths, choice_of, links_among
from parts.options import Options

__all__ = ["predicted"]

_LEFT_OUT = """\
A ring's bus bandwidth is that of its slowest link. Left out: NCCL runs several rings
and trees at once, so meshes and switches reach more; the cost of the protocol; latency,
which rules small sizes; the PCIe generation (16 lanes of PCIe 3 are assumed), and the
CPUs behind NODE and SYS; links that several rings share; peer access that is off; other
jobs. Compare strategies by it, not machines."""
_SOURCES = """\
Sources: NCCL 2.30, src/graph/topo.h, for PCIe and for NVLink by compute capability;
AMD's MI200 and MI300 platforms for XGMI; PHB and NODE lie between."""


def predicted(machine: str, processes: int | None, options: Options) -> str:
    """Return, for each strategy, its devices and what a ring over them could carry.

    machine is a machine's name or a JSON file's path; without a number of processes,
    one for each device.

    Raises:
        DeviceError: There is no such machine, or it has no device.
    """
    alone = gpumap.Launch(launcher="prediction", rank=0, world_size=1, node_rank=0)
    node = rehearsed_node(machine, alone, os.environ)
    if not node.devices:
        raise DeviceError(f"{machine} has no device.", node.visible, "Name another.")
    count = processes or len(options.gpus or node.devices)
    return "\n".join(_lines(node, count, options))


def _lines(node: Node, count: int, options: Options) -> Iterator[str]:
    plural = "es"[: 2 * (count > 1)]
    yield f"prediction, not a measurement: {node.hostname}, {count} process{plural}"
    if node.source:
        yield fill(f"What is known of it: {node.source}.", 88)
    rows = [
        ["strategy", "devices", "links among them", "slowest of a ring", "GB/s", ""]
    ]
    first: dict[frozenset[int], str] = {}
    for strategy in options.strategies:
        try:
            devices = _devices(strategy, node, count, options)
        except GpumapError as error:
            rows.append([strategy, error.happened, "", "", "", ""])
            continue
        used = frozenset(device.index for device in devices)
        same = first.setdefault(used, strategy)
        again = "" if same == strategy else f"the devices of {same}"
        rows.append([strategy, *_prediction(devices, node), again])
    yield f"\n{aligned(rows)}\n"
    speeds = ", ".join(f"{name} {speed:g}" for name, speed in bandwidths(node).items())
    yield f"GB/s in one direction, of one NVLink and of each other class: {speeds}."
    yield _SOURCES
    yield _LEFT_OUT


def _devices(strategy: str, node: Node, count: int, options: Options) -> list[Device]:
    policy = choice_of(strategy, options)
    plan = gpumap.plan(
        [node],
        [count],
        strategy=policy.strategy,
        gpus=policy.gpus,
        scores=policy.scores,
    )
    if conflicts := plan.conflicts():
        raise PlacementError(f"{conflicts[0]}.", "", "Start fewer processes.")
    return [placement.device for placement in plan]


def _prediction(devices: Sequence[Device], node: Node) -> tuple[str, str, str, str]:
    names = ", ".join(f"{device.kind}:{device.index}" for device in devices)
    links, ring = links_among(devices, node)
    if ring is None:
        return names, "", "none known" if len(devices) > 1 else "one device", ""
    return names, links, ring[1], f"{ring[0]:g}"

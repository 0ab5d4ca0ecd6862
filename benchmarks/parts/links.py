"""The links among chosen devices, and what a ring over them could carry."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from gpumap.mapping.best_links import BANDWIDTHS, MOST_EXACT, ring_link
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.policy import Policy, StrategyName
from gpumap.mapping.tables import link_name
from parts.options import Options

__all__ = ["bandwidths", "choice_of", "links_among"]

# GB/s of one NVLink in one direction, from a compute capability on.
# Source: NCCL 2.30, src/graph/topo.h: SM60_NVLINK_BW and those that follow.
_NVLINKS = (
    ((10, 0), 40.1),
    ((9, 0), 20.6),
    ((8, 6), 12.0),
    ((7, 0), 20.0),
    ((6, 0), 18.0),
)


def choice_of(strategy: str, options: Options) -> Policy:
    """Return what a session is asked for by one of the options' strategies."""
    scores = options.scores if strategy == "scored" else None
    name = cast("StrategyName", strategy)
    return Policy.of(name, options.gpus, scores, oversubscribe=False)


def bandwidths(node: Node) -> Mapping[str, float]:
    """Return GB/s in one direction by class of link, with the NVLinks of the node."""
    known = [d.compute_capability for d in node.devices if d.compute_capability]
    speeds = [speed for first, speed in _NVLINKS if known and min(known) >= first]
    return {**BANDWIDTHS, "NVLINK": speeds[0]} if speeds else BANDWIDTHS


def links_among(
    devices: Sequence[Device], node: Node
) -> tuple[str, tuple[float, str] | None]:
    """Return the links among devices in words, and the slowest of their best ring.

    ("1 NV1, 2 NV2", (20.0, "NV1")), or ("", None) where none is known.
    """
    chosen = {device.index for device in devices}
    inside = [x for x in node.links if {x.a, x.b} <= chosen]
    if not inside or len(chosen) > MOST_EXACT:
        return "", None
    counts = Counter(map(link_name, inside))
    speed, link = ring_link(node, devices, bandwidths(node))
    return (
        ", ".join(f"{count} {name}" for name, count in sorted(counts.items())),
        (speed, link_name(link) if link else "unknown"),
    )

"""Pictures of plans: nodes, devices, links, and which rank is where."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from gpumap.drawing.labels import MOST_NODES
from gpumap.errors import GpumapError
from gpumap.mapping.devices import Node
from gpumap.mapping.placement import Placement
from gpumap.mapping.plan import Plan

__all__ = ["draw", "picture"]


def picture(plan: Plan, path: str | PathLike[str]) -> None:
    """Draw a plan into a PNG or SVG file: nodes, devices, links and ranks.

    Devices with a rank, and the links between them, are in strong colours, which are
    read on light and on dark pages; the paper is transparent. NVLinks are the thicker
    the more there are. Of more than eight nodes the first eight are drawn. One version
    of Matplotlib draws the same plan as the same bytes each time.

    Raises:
        GpumapError: Matplotlib is not installed, or the file's name ends otherwise.
        OSError: The file cannot be written.
    """
    drawn = range(min(len(plan.nodes), MOST_NODES))
    ranks = [rank for node_rank in drawn for rank in plan.layout.ranks_of(node_rank)]
    draw(plan.nodes, [plan[rank] for rank in ranks], Path(path))


def draw(nodes: Sequence[Node], placements: Sequence[Placement], path: Path) -> None:
    """Draw placements on nodes; a single node has any rank.

    Raises:
        GpumapError: Matplotlib is not installed, or the file's name ends otherwise.
        OSError: The file cannot be written.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise GpumapError(
            f"a picture cannot be written to {str(path)!r}.",
            "",
            "Give a file that ends in .png or .svg.",
        )
    try:
        from gpumap.drawing.sheet import write  # noqa: PLC0415 - an extra
    except ImportError:
        raise GpumapError(
            "a picture needs Matplotlib, and it is not installed.",
            "",
            "Install the extra: pip install 'gpumap-torch[plot]'.",
        ) from None
    write(nodes, placements, path)

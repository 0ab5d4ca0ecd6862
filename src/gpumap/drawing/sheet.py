"""A whole picture: a panel for each node, a title above and a legend below."""

# pyright: reportUnknownMemberType=false
# Matplotlib's own types leave options open.

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from gpumap.drawing.labels import MOST_NODES, title
from gpumap.drawing.panels import GREY, INCHES, Key, draw_node, reach
from gpumap.mapping.devices import Node
from gpumap.mapping.placement import Placement

__all__ = ["write"]

_COLUMNS = 4
_HEAD = 0.55  # inches above a panel, for two lines
# What would else tell when a file was made, and with which version.
_TIMELESS = {".png": {"Software": None}, ".svg": {"Creator": None, "Date": None}}


def write(nodes: Sequence[Node], placements: Sequence[Placement], path: Path) -> None:
    """Draw placements on nodes into a file that ends in .png or .svg.

    Raises:
        OSError: The file cannot be written.
    """
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever matplotlibrc says
        mpl.rcParams["svg.hashsalt"] = "gpumap"  # else ids are random
        mpl.rcParams["text.parse_math"] = False  # a host's name may have a $
        _drawn(nodes, placements).savefig(
            path,
            dpi=150,
            transparent=True,
            bbox_inches="tight",
            pad_inches=0.15,
            metadata=_TIMELESS[path.suffix.lower()],
        )


def _drawn(nodes: Sequence[Node], placements: Sequence[Placement]) -> Figure:
    """Return the picture; its title and its legend need their own height."""
    several, shown = len(nodes) > 1, nodes[:MOST_NODES]
    columns = min(len(shown), _COLUMNS)
    right, top = reach(shown)
    width, height = 2 * right * INCHES, 2 * top * INCHES  # of a panel
    whole = -(-len(shown) // columns) * (height + _HEAD)  # of all panels
    figure = Figure((columns * width, whole))
    key: Key = {}
    for place, node in enumerate(shown):
        row, column = divmod(place, columns)
        bottom = 1 - (row + 1) * (height + _HEAD) / whole
        axes = figure.add_axes((column / columns, bottom, 1 / columns, height / whole))
        axes.set(xlim=(-right, right), ylim=(-top, top))
        axes.axis("off")
        name = f"node {place}: {node.hostname}" if several else node.hostname
        ranks = _by_device(placements, place if several else None)
        key |= draw_node(axes, node, name, ranks)
    figure.text(0.5, 1, title(nodes, placements), color=GREY, fontsize=12, ha="center")
    figure.legend(
        [key[label] for label in sorted(key)],
        sorted(key),
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=min(len(key), 3 if several else 2),
        frameon=False,
        fontsize=8,
        labelcolor=GREY,
    )
    return figure


def _by_device(
    placements: Sequence[Placement], node_rank: int | None
) -> dict[int, list[int]]:
    """Return the ranks on each device of a node, by its index; None: of all."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for one in placements:
        if node_rank is None or one.launch.node_rank == node_rank:
            found[one.device.index].append(one.launch.rank or 0)
    return dict(found)

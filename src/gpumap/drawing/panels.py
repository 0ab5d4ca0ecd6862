"""One node as a picture: its devices on a circle, their links, the ranks on them."""

# pyright: reportUnknownMemberType=false
# Matplotlib's own types leave options open.

import math
from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from gpumap.drawing.labels import link_label, places, product, products, ranks_label
from gpumap.mapping.devices import CPU, Device, Link, Node

__all__ = ["GREY", "INCHES", "Key", "draw_node", "reach"]

INCHES = 1.4
"""How much paper 1.0 of a panel takes."""
# In the middle between black and white: they are read on either.
GREY = "#7d8590"
_FREE, _USED, _SHARED = "#6e7781", "#1f6feb", "#cf222e"
_NVLINK, _PCIE = "#2da44e", GREY
# Lengths of strokes and gaps, in units of a line's width.
_DASHES: dict[str | None, tuple[float, ...]] = {
    "PIX": (1, 0),
    "PXB": (4, 2),
    "PHB": (6, 2, 1, 2),
    "NODE": (1, 3),
    "SYS": (1, 1.65),
}
_WIDTH, _HEIGHT = 0.62, 0.40
_FAINT = 0.35

Key = dict[str, Artist]
"""What stands in the legend, by its text."""


def reach(nodes: Sequence[Node]) -> tuple[float, float]:
    """Return how far the devices reach from the middle, to a side and up or down."""
    ends = [end for node in nodes for end in places(len(node.devices) or 1)]
    right, top = max(abs(x) for x, _ in ends), max(abs(y) for _, y in ends)
    return max(right, 1.0) + _WIDTH / 2 + 0.1, top + _HEIGHT / 2 + 0.1


def draw_node(
    axes: Axes, node: Node, name: str, ranks: Mapping[int, Sequence[int]]
) -> Key:
    """Draw a node, with the ranks by device index; return what the legend says of it.

    Links between devices that have ranks are drawn strongly, and all others faintly.
    """
    devices = node.devices or (CPU,)
    at = places(len(devices))
    key: Key = {}
    for link in node.links:
        if label := link_label(link):
            strong = link.a in ranks and link.b in ranks
            axes.add_line(_line(link, at, strong=strong))
            key.setdefault(label, _line(link, at, strong=True))
    mixed = len({device.name for device in devices}) > 1
    for device, (x, y) in zip(devices, at, strict=True):
        here = ranks.get(device.index, ())
        colour = (_FREE, _USED, _SHARED)[min(len(here), 1 if device == CPU else 2)]
        axes.add_patch(_box(x, y, colour))
        _write(axes, x, y, _lines(device, here, mixed=mixed))
        key.setdefault(_MEANING[colour], _box(0, 0, colour))
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    for text, up, size in ((name, 0.22, 11), (products(node.devices), 0.06, 9)):
        axes.text(
            *(0, top + up, text),
            fontsize=_fitting(size, text, 2 * right),
            fontweight="bold" if text == name else "normal",
            color=GREY,
            ha="center",
        )
    return key


_MEANING = {
    _USED: "device with a rank",
    _SHARED: "device shared by ranks",
    _FREE: "device without a rank",
}


def _line(link: Link, at: Sequence[tuple[float, float]], *, strong: bool) -> Line2D:
    """Return a line for a link, the thicker the more NVLinks it has."""
    (ax, ay), (bx, by) = at[link.a], at[link.b]
    fast = link.nvlinks or link.xgmi
    return Line2D(
        [ax, bx],
        [ay, by],
        color=_NVLINK if fast else _PCIE,
        linewidth=1.3 * (1 + math.log2(max(link.nvlinks, 1))) if fast else 0.9,
        linestyle=(0, (1, 0) if fast else _DASHES[link.pcie]),
        alpha=1.0 if strong else _FAINT,
        zorder=1 + bool(fast) + 2 * strong,
        solid_capstyle="butt",
    )


def _box(x: float, y: float, colour: str) -> FancyBboxPatch:
    return FancyBboxPatch(
        (x - _WIDTH / 2 + 0.05, y - _HEIGHT / 2 + 0.05),
        _WIDTH - 0.1,
        _HEIGHT - 0.1,
        boxstyle="round,pad=0.05",
        facecolor=colour,
        edgecolor="none",
        zorder=5,
    )


def _lines(device: Device, ranks: Sequence[int], *, mixed: bool) -> list[str]:
    """Return the lines in a box: ranks, device, and its product where they differ."""
    name = "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"
    written = (ranks_label(ranks), name, product(device) if mixed else "")
    return [line for line in written if line]


def _write(axes: Axes, x: float, y: float, lines: Sequence[str]) -> None:
    """Write lines one below the other, around the middle; ranks are in bold."""
    step = 0.15 if len(lines) < 3 else 0.12  # noqa: PLR2004 - three lines are tight
    for place, line in enumerate(lines):
        of_ranks = "rank" in line
        axes.text(
            *(x, y + step * ((len(lines) - 1) / 2 - place), line),
            color="white",
            fontsize=_fitting(9 if of_ranks else 7.5, line, _WIDTH),
            fontweight="bold" if of_ranks else "normal",
            ha="center",
            va="center_baseline",
            zorder=6,
        )


def _fitting(size: float, text: str, width: float) -> float:
    """Return the size of letters, in points at most so many, with which a text fits."""
    return min(size, width * INCHES * 72 / (0.7 * max(len(text), 1)))

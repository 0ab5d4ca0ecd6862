"""Bus bandwidth against size, as a picture."""

from itertools import cycle
from pathlib import Path

from matplotlib.figure import Figure

from parts.figures import Outcome

__all__ = ["draw"]


def draw(outcome: Outcome, path: Path) -> None:
    """Write a picture: a line for each way, in place, and a dashed one for each limit.

    A band goes from the slowest round to the fastest.
    """
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for way, marker in zip(outcome.ways, cycle("osv^D"), strict=False):
        sizes = [row.size for row in way.rows]
        [line] = axes.plot(
            sizes,
            [outcome.busbw(row, row.in_place.median) for row in way.rows],
            marker=marker,
            label=way.name,
        )
        axes.fill_between(
            sizes,
            [outcome.busbw(row, max(row.in_place.seconds)) for row in way.rows],
            [outcome.busbw(row, min(row.in_place.seconds)) for row in way.rows],
            color=line.get_color(),
            alpha=0.15,
        )
    greys = cycle(("0.2", "0.6"))
    for (name, speed), grey in zip(outcome.limits.items(), greys, strict=False):
        label = f"{name}: {speed:.3g} GB/s"
        axes.axhline(speed, color=grey, linestyle="--", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(
        sizes := [row.size for row in outcome.ways[0].rows],
        [_short(s) for s in sizes],
        rotation=45,
    )
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("size")
    axes.set_ylabel("bus bandwidth, GB/s")
    axes.set_title(
        f"all-reduce in place, {outcome.world_size} ranks, "
        f"{outcome.backend} on {outcome.device}"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def _short(size: int) -> str:
    power = min((size.bit_length() - 1) // 10, 3)
    return f"{size / 2 ** (10 * power):.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"

"""The steps of two ranks of unequal speed, and the losses, as pictures."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from parts.uneven import Step

__all__ = ["draw"]

_FIRST, _COUNT = 3, 4
_CENTERED = {"ha": "center", "va": "center"}


def draw(
    ways: Mapping[str, Sequence[list[Step]]],
    one: Sequence[float],
    split: Sequence[float],
    path: Path,
) -> None:
    """Write two pictures: the steps, and beside it, as FILE-loss.png, the losses."""
    _draw_steps(ways, path)
    _draw_losses(one, split, path.with_stem(f"{path.stem}-loss"))


def _draw_steps(ways: Mapping[str, Sequence[list[Step]]], path: Path) -> None:
    """Write a picture: what each rank does in the same four steps, by each way."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    axes = figure.subplots(len(ways), sharex=True)
    for ax, (way, ranks) in zip(axes, ways.items(), strict=True):
        start = min(steps[_FIRST].began for steps in ranks)
        for rank, steps in enumerate(ranks):
            for step in steps[_FIRST : _FIRST + _COUNT]:
                began, computed = step.began - start, step.computed - start
                waits = step.ended - step.computed
                bar = partial(ax.barh, rank, edgecolor="white")
                [computes] = bar(computed - began, left=began, color=f"C{rank}")
                bar(waits, left=computed, color="0.88")
                ax.annotate(
                    step.samples, computes.get_center(), color="white", **_CENTERED
                )
        ax.set_yticks(range(len(ranks)), [f"rank {r}" for r in range(len(ranks))])
        ax.invert_yaxis()
        ax.set_title(f"{way}: {' + '.join(str(s[_FIRST].samples) for s in ranks)}")
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(
        f"s, {_COUNT} steps; in colour a rank computes its samples, in grey it waits"
    )
    figure.savefig(path, dpi=120)


def _draw_losses(one: Sequence[float], split: Sequence[float], path: Path) -> None:
    """Write a picture: the losses of one process, and on it those of two ranks."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    numbers = range(1, len(one) + 1)
    axes.plot(numbers, one, color="C0", label="one process, the whole batch")
    axes.plot(numbers, split, "o", color="C1", label="two ranks, balanced by 3:1")
    axes.set_xlabel("step")
    axes.set_ylabel("mean loss of the batch")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)

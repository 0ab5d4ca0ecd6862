"""An outcome as the text that people who know nccl-tests read without a key."""

from collections.abc import Iterator

from gpumap.mapping.tables import placement_table
from parts.figures import Outcome, Row, Seating, Timing, Way, quartiles, ratios

__all__ = ["in_words"]

_COLUMNS = f"{'time':>9} {'algbw':>7} {'busbw':>7} {'#wrong':>7}"
_UNITS = f"{'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7} {'':7}"
_HEAD = f"""\
#{"":39}  {"out of place":^33} {"in place":^33}
#{"size":>10} {"count":>11} {"type":>9} {"redop":>7} {_COLUMNS} {_COLUMNS}
#{"(B)":>10} {"(elements)":>11} {"":9} {"":7} {_UNITS} {_UNITS}"""


def in_words(outcome: Outcome) -> str:
    """Return all tables of an outcome."""
    return "\n".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    options = outcome.options
    yield (
        f"# all-reduce of {outcome.world_size} ranks by {outcome.backend} on "
        f"{outcome.device}, torch {outcome.torch}"
    )
    yield (
        f"# medians of {options.rounds} rounds, all ways in turn; in each up to "
        f"{options.iterations} iterations after up to {options.warm_ups} warm-ups"
    )
    if outcome.rehearsal:
        yield (
            f"# rehearsal of {outcome.rehearsal}: devices and links are pretended, "
            "the figures are this CPU's"
        )
    for name, why in outcome.refused.items():
        yield f"# {name} is left out: {why}"
    for way in outcome.ways:
        yield "#"
        yield from _title(way, outcome)
        yield _HEAD
        yield from (_row(row, outcome) for row in way.rows)
        yield f"# Out of bounds values : {way.wrong} {'FAILED' if way.wrong else 'OK'}"
        yield f"# Avg bus bandwidth    : {outcome.average(way):.4g}"
    yield "#"
    yield from _comparison(outcome)


def _title(way: Way, outcome: Outcome) -> Iterator[str]:
    if not way.seatings:
        yield (
            "# by hand: the same loop without gpumap, on the devices of "
            f"{outcome.ways[0].name}"
        )
        return
    for seating in way.seatings:
        yield from _seats(seating)
    if "," in way.name:
        yield f"# {way.name}: the same devices, measured once"


def _seats(seating: Seating) -> Iterator[str]:
    yield f"# {', '.join(seating.strategies)}:"
    table = placement_table(seating.placements, seating.hosts.__getitem__)
    yield from (f"#   {line}" for line in table.splitlines())
    yield from (f"#   links on {line}" for line in seating.links)
    if not seating.links and len({p.device for p in seating.placements}) > 1:
        yield "#   links: not known"


def _row(row: Row, outcome: Outcome) -> str:
    element = f"{row.size:11} {row.count:11} {outcome.options.type:>9} {'sum':>7}"
    return element + "".join(_cells(row, timing, outcome) for timing in row.timings)


def _cells(row: Row, timing: Timing, outcome: Outcome) -> str:
    time = f"{timing.median * 1e6:.2f}"[:9].rstrip(".")
    algbw = row.size / timing.median / 1e9
    busbw = outcome.busbw(row, timing.median)
    return f" {time:>9} {algbw:7.2f} {busbw:7.2f} {timing.wrong:7}"


def _comparison(outcome: Outcome) -> Iterator[str]:
    *ours, by_hand = outcome.ways
    width = max(len(way.name) for way in outcome.ways)
    yield f"# {'':{width}}  avg busbw  time by hand / time, median (quartiles) of sizes"
    for way in ours:
        low, median, high = quartiles(ratios(way, by_hand))
        yield (
            f"# {way.name:{width}}  {outcome.average(way):9.4g}  "
            f"{median:.3f} ({low:.3f} to {high:.3f})"
        )
    yield f"# {by_hand.name:{width}}  {outcome.average(by_hand):9.4g}  1"
    limits = ", ".join(f"{name} {speed:.3g}" for name, speed in outcome.limits.items())
    if limits and outcome.device == "cpu":
        yield f"# GB/s at most, in one direction: {limits}"
    elif limits:
        yield f"# GB/s of one ring, of which NCCL runs several: {limits}"

"""Splits a batch among ranks of unequal speed."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cmp_to_key
from math import inf
from numbers import Real
from reprlib import repr as short

from gpumap.errors import PlacementError
from gpumap.words import plural

__all__ = ["split_batch"]


def split_batch(
    total: int,
    speeds: Sequence[float],
    *,
    minimum: int = 1,
    most: int | Sequence[int | None] | None = None,
) -> tuple[int, ...]:
    """Return how many samples of a batch each rank gets, in proportion to its speed.

    Each rank gets at least minimum, and at most its most: one number for all ranks, or
    one or None for each. What a bound keeps from a rank or adds to it, the others share
    by their speeds. The arithmetic is exact: a rank that is not at a bound gets its
    quota rounded down or up, a faster rank never gets less than a slower one with the
    same bounds, and the same speeds in another unit of a power of two give the same
    shares. Takes O(n log n).

    A larger batch may give a rank one sample less (the Alabama paradox).

    Raises:
        PlacementError: A speed is not a positive number, a bound is not a number of
            samples, or the ranks cannot take the batch within the bounds.

    Source: the method of largest remainders (Hamilton's; Balinski and Young, Fair
    Representation, 1982), ties going to the lower rank.

    >>> split_batch(256, (3, 1))
    (192, 64)
    >>> split_batch(256, (3, 1), most=160)
    (160, 96)
    """
    weights = _whole_weights(speeds)
    limits = _limits(total, len(weights), minimum, most)
    bounded = _bounded(total, weights, minimum, limits)
    free = [rank for rank in range(len(weights)) if rank not in bounded]
    rest, weight = total - sum(bounded.values()), sum(weights[rank] for rank in free)
    quotas = {rank: divmod(rest * weights[rank], weight) for rank in free}
    shares = bounded | {rank: whole for rank, (whole, _) in quotas.items()}
    # Fewer samples are left over than there are remainders above zero, so a rank whose
    # quota is its limit exactly is not rounded past it.
    left_over = total - sum(shares.values())
    for rank in sorted(free, key=lambda rank: -quotas[rank][1])[:left_over]:
        shares[rank] += 1
    return tuple(shares[rank] for rank in range(len(weights)))


def _whole_weights(speeds: Sequence[float]) -> list[int]:
    """Return whole numbers in exactly the same proportion as the speeds, as floats."""
    given: object = speeds
    if isinstance(given, Mapping | AbstractSet | str):
        raise PlacementError(
            f"speeds={short(given)} is not a list of speeds.",
            f"Its type is {type(given).__name__}.",
            "Write the speed of each rank, in their order: speeds=[3.0, 1.0].",
        )
    if not len(speeds):
        raise PlacementError(
            "there is no rank to split the batch among.",
            f"speeds={short(speeds)}.",
            "Write the speed of each rank: speeds=[3.0, 1.0].",
        )
    bad = tuple(rank for rank, speed in enumerate(speeds) if not _is_speed(speed))
    if bad:
        raise PlacementError(
            f"{short(speeds[bad[0]])} is not the speed of rank {bad[0]}.",
            f"Of {len(speeds)} {plural('speed', len(speeds))}, "
            f"{len(speeds) - len(bad)} can be used.",
            "Write how many samples each rank trains per second, a positive number: "
            "speeds=[3.0, 1.0].",
            bad,
        )
    ratios = [float(speed).as_integer_ratio() for speed in speeds]
    # All denominators are powers of two, so the largest is a multiple of each.
    common = max(denominator for _, denominator in ratios)
    return [numerator * (common // denominator) for numerator, denominator in ratios]


def _is_speed(speed: object) -> bool:
    if isinstance(speed, bool) or not isinstance(speed, Real):
        return False
    try:
        return 0 < float(speed) < inf
    except OverflowError:  # an int that is larger than any float
        return False


def _limits(
    total: int, ranks: int, minimum: int, most: int | Sequence[int | None] | None
) -> list[int]:
    """Check the batch and its bounds; return the most samples of each rank."""
    for name, value, example in (("total", total, 256), ("minimum", minimum, 1)):
        if type(value) is not int or value < 0:
            raise PlacementError(
                f"{name}={short(value)} is not a number of samples.",
                f"Its type is {type(value).__name__}.",
                f"Write a whole number, 0 or more: {name}={example}.",
            )
    if total < minimum * ranks:
        raise PlacementError(
            f"a batch of {total} is too small for {ranks} {plural('rank', ranks)}.",
            f"Each gets {minimum} or more: {minimum * ranks} in all.",
            f"Use a batch of at least {minimum * ranks}, or fewer ranks.",
        )
    given = list(most) if isinstance(most, Sequence) else [most] * ranks
    if len(given) != ranks:
        raise PlacementError(
            f"most has {len(given)} {plural('number', len(given))} for {ranks} "
            f"{plural('rank', ranks)}.",
            f"most={short(most)}.",
            "Write one number for all ranks, or one for each: a number or None.",
        )
    limits = [total if limit is None else limit for limit in given]
    bad = tuple(
        rank
        for rank, limit in enumerate(limits)
        if type(limit) is not int or limit < minimum
    )
    if bad:
        raise PlacementError(
            f"{short(limits[bad[0]])} is not the most samples of rank {bad[0]}.",
            f"Each rank gets {minimum} or more.",
            f"Write a whole number, {minimum} or more, or None for no limit.",
            bad,
        )
    if sum(limits) < total:
        raise PlacementError(
            f"a batch of {total} is more than the ranks can take.",
            f"With most={short(most)}, {ranks} {plural('rank', ranks)} can take "
            f"{sum(limits)}.",
            f"Use a batch of at most {sum(limits)}, or raise most.",
        )
    return limits


def _bounded(
    total: int, weights: Sequence[int], minimum: int, limits: Sequence[int]
) -> dict[int, int]:
    """Return the shares of the ranks that are at their minimum or their limit.

    A rank's share is the level times its weight, within its bounds; the level is the
    one at which the shares add up to the batch. The ranks at a bound are known from the
    first level at or above it where some rank leaves its minimum or meets its limit.
    Each of these is a fraction, bound over weight; they are compared without dividing.
    """
    ranks = range(len(weights))
    levels = [(minimum, weights[rank]) for rank in ranks]
    levels += [(limits[rank], weights[rank]) for rank in ranks]
    levels.sort(key=cmp_to_key(_above))

    def holds_the_batch(level: tuple[int, int]) -> bool:
        bound, weight = level
        return total * weight <= sum(
            min(max(bound * weights[rank], minimum * weight), limits[rank] * weight)
            for rank in ranks
        )

    first = bisect_left(levels, x=True, key=holds_the_batch)
    bound, weight = levels[first]
    at_limit = {r: limits[r] for r in ranks if limits[r] * weight < bound * weights[r]}
    at_minimum = {r: minimum for r in ranks if minimum * weight >= bound * weights[r]}
    return at_limit | at_minimum


def _above(a: tuple[int, int], b: tuple[int, int]) -> int:
    """Return a positive number if the fraction a is above b, 0 if they are equal."""
    return a[0] * b[1] - b[0] * a[1]

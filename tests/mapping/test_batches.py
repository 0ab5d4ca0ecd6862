"""Splitting a batch among ranks of unequal speed."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpumap.errors import PlacementError
from gpumap.mapping.batches import split_batch

floats = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
speeds_of_any_size = st.lists(floats, min_size=1, max_size=12)
few_speeds = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("total", "speeds", "bounds", "shares"),
    [
        (256, (3, 1), {}, (192, 64)),
        (256, (3, 1), {"most": 160}, (160, 96)),
        (256, (3, 1), {"most": [None, 60]}, (196, 60)),
        # Quotas of 6.25, 2.5 and 1.25: the sample left over goes to the half.
        (10, (5, 2, 1), {}, (6, 3, 1)),
        # The slowest keeps 2 of 10; 8 by 5 to 2 are 5.71 and 2.29.
        (10, (5, 2, 1), {"minimum": 2}, (6, 2, 2)),
        # Equal remainders: the sample left over goes to the lower rank.
        (7, (1, 1, 1), {}, (3, 2, 2)),
        (4, (3, 1, 3, 1), {}, (1, 1, 1, 1)),
        # Rank 0 is held at 4, rank 2 at 1 or more; the middle takes what is left.
        (8, (8, 1, 0.01), {"most": [4, None, None]}, (4, 3, 1)),
        # With rank 0 at 5, the rest of 5 is more than rank 1's most by 3 to 1.
        (10, (6, 3, 1), {"most": [5, 3, 9]}, (5, 3, 2)),
        # The quota of rank 0 is its most exactly.
        (10, (5, 3, 3), {"most": [5, 9, 9]}, (4, 3, 3)),
        (13, (5, 4, 4), {"most": [5, 9, 9]}, (5, 4, 4)),
        (5, (0.1, 0.1, 0.3), {}, (1, 1, 3)),
        (3, (1e308, 5e-324), {}, (2, 1)),
        (3, (1e308, 5e-324), {"minimum": 0}, (3, 0)),
        (6, (2, 1), {"most": 3}, (3, 3)),
        (6, (2, 1), {"minimum": 3}, (3, 3)),
        (0, (2, 1), {"minimum": 0}, (0, 0)),
        (5, (0.2,), {}, (5,)),
        (5, (Fraction(1, 3), Fraction(2, 3)), {}, (2, 3)),
    ],
)
def test_shares_follow_speeds_within_the_bounds(
    total: int, speeds: Any, bounds: dict[str, Any], shares: tuple[int, ...]
) -> None:
    """Each row of the table was split by hand."""
    assert split_batch(total, speeds, **bounds) == shares


def test_ten_thousand_ranks_share_a_batch_exactly() -> None:
    """10,000 speeds over the whole range of floats are split without rounding errors.

    The fastest has 2^50 times the speed of the next, and so takes what the minimum of 1
    leaves, up to its most; the next takes the rest.
    """
    speeds = [
        2.0 ** (-50 * (rank % 20)) * (rank < 20) or 5e-324 for rank in range(10**4)
    ]
    assert split_batch(20_000, speeds)[:3] == (10_001, 1, 1)
    limited = split_batch(20_000, speeds, most=10_000)
    assert limited[:3] == (10_000, 2, 1)
    assert sum(limited) == 20_000


@given(
    speeds_of_any_size,
    st.integers(0, 3),
    st.lists(st.integers(0, 50), min_size=12, max_size=12),
    st.data(),
)
def test_shares_add_up_and_keep_their_bounds(
    speeds: list[float], minimum: int, above: list[int], data: st.DataObject
) -> None:
    """The shares add up to the batch, each between its minimum and its most."""
    most = [minimum + more for more in above[: len(speeds)]]
    total = data.draw(st.integers(minimum * len(speeds), sum(most)))
    shares = split_batch(total, speeds, minimum=minimum, most=most)
    assert sum(shares) == total
    assert all(minimum <= n <= m for n, m in zip(shares, most, strict=True))


@given(st.integers(1, 12), floats, st.integers(0, 100))
def test_equal_speeds_give_shares_that_differ_by_at_most_one(
    ranks: int, speed: float, more: int
) -> None:
    """Among ranks of equal speed, the larger shares are those of the lower ranks."""
    shares = split_batch(ranks + more, [speed] * ranks)
    assert max(shares) - min(shares) <= 1
    assert list(shares) == sorted(shares, reverse=True)


@given(speeds_of_any_size, st.integers(0, 2), st.integers(2, 40), st.data())
def test_a_faster_rank_never_gets_less(
    speeds: list[float], minimum: int, most: int, data: st.DataObject
) -> None:
    """Under equal bounds, shares are in the order of the speeds."""
    ranks = len(speeds)
    total = data.draw(st.integers(minimum * ranks, most * ranks))
    shares = split_batch(total, speeds, minimum=minimum, most=most)
    by_speed = [n for _, n in sorted(zip(speeds, shares, strict=True))]
    assert by_speed == sorted(shares)


@given(few_speeds, st.integers(0, 30))
def test_without_bounds_a_share_is_its_quota_rounded_down_or_up(
    speeds: list[int], total: int
) -> None:
    """The share of a rank that no bound holds differs from its quota by less than 1."""
    for share, speed in zip(split_batch(total, speeds, minimum=0), speeds, strict=True):
        assert abs(share - Fraction(total * speed, sum(speeds))) < 1


@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=8), st.integers(0, 99), st.data()
)
def test_shares_move_with_their_ranks(
    speeds: list[int], total: int, data: st.DataObject
) -> None:
    """Ranks in another order get the same shares, if no two remainders are equal."""
    assume(len({total * speed % sum(speeds) for speed in speeds}) == len(speeds))
    order = data.draw(st.permutations(range(len(speeds))))
    shares = split_batch(total, speeds, minimum=0)
    moved = split_batch(total, [speeds[rank] for rank in order], minimum=0)
    assert moved == tuple(shares[rank] for rank in order)


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8),
    st.integers(8, 99),
    st.integers(-40, 40),
)
def test_speeds_in_another_unit_of_a_power_of_two_change_nothing(
    speeds: list[float], total: int, power: int
) -> None:
    """Only the proportion of the speeds matters."""
    scaled = [speed * 2.0**power for speed in speeds]
    assert split_batch(total, scaled) == split_batch(total, speeds)


@given(
    few_speeds, st.integers(0, 2), st.lists(st.integers(0, 4), min_size=4), st.data()
)
def test_shares_are_those_nearest_to_the_level_found_by_trying_all(
    speeds: list[int], minimum: int, above: list[int], data: st.DataObject
) -> None:
    """Of all shares within the bounds, the nearest to the exact quotas are returned.

    The sum of squared distances decides, and then the lower rank's share.
    """
    most = [minimum + more for more in above[: len(speeds)]]
    lowest, highest = minimum * len(speeds), sum(most)
    total = data.draw(st.integers(lowest, highest))
    quotas = exact_quotas(total, speeds, minimum, most)
    nearest = min(
        (shares for shares in within(minimum, most) if sum(shares) == total),
        key=lambda shares: (
            sum((n - q) ** 2 for n, q in zip(shares, quotas, strict=True)),
            [-n for n in shares],
        ),
    )
    assert split_batch(total, speeds, minimum=minimum, most=most) == nearest


def exact_quotas(
    total: int, speeds: Sequence[int], minimum: int, most: Sequence[int]
) -> list[Fraction]:
    """Return level times speed, within the bounds, at the level that gives the batch.

    The level is found by trying all: each at which a rank meets a bound, and for each
    choice of ranks at their bounds the one that divides the rest among the others.
    """
    levels = {Fraction(bound, speed) for bound in (minimum, *most) for speed in speeds}
    for held in product(*((None, minimum, limit) for limit in most)):
        free = sum(speed for speed, n in zip(speeds, held, strict=True) if n is None)
        if free:
            levels.add(Fraction(total - sum(n or 0 for n in held), free))
    for level in levels:
        quotas = [
            min(max(level * speed, Fraction(minimum)), Fraction(limit))
            for speed, limit in zip(speeds, most, strict=True)
        ]
        if sum(quotas) == total:
            return quotas
    raise AssertionError


def within(minimum: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all shares within the bounds, whatever their sum."""
    return product(*(range(minimum, limit + 1) for limit in most))


@pytest.mark.parametrize("speed", [0, -1, 0.0, float("nan"), float("inf"), True, "3"])
def test_what_is_not_a_positive_number_is_not_a_speed(speed: Any) -> None:
    """The error names the first such speed, and carries the ranks of all."""
    with pytest.raises(PlacementError) as caught:
        split_batch(9, [1.0, speed, 2.0, speed])
    assert caught.value.args == (
        f"{speed!r} is not the speed of rank 1.",
        "Of 4 speeds, 2 can be used.",
        "Write how many samples each rank trains per second, a positive number: "
        "speeds=[3.0, 1.0].",
        (1, 3),
    )


@pytest.mark.parametrize("speed", [10**400, None, 1j, Fraction(1, 10**400)])
def test_a_speed_fits_a_float(speed: Any) -> None:
    """A speed beyond a float's range, or of another type, is an error."""
    with pytest.raises(PlacementError, match=r"is not the speed of rank 0\.") as caught:
        split_batch(9, [speed])
    assert caught.value.ranks == (0,)
    assert caught.value.seen == "Of 1 speed, 0 can be used."


@pytest.mark.parametrize("speeds", [{0: 3.0, 1: 1.0}, {3.0, 1.0}, "31"])
def test_what_has_no_number_for_each_rank_is_not_a_list_of_speeds(speeds: Any) -> None:
    """The keys of a mapping are not speeds, and a set has no order."""
    with pytest.raises(PlacementError) as caught:
        split_batch(9, speeds)
    assert caught.value.args == (
        f"speeds={speeds!r} is not a list of speeds.",
        f"Its type is {type(speeds).__name__}.",
        "Write the speed of each rank, in their order: speeds=[3.0, 1.0].",
        (),
    )


REFUSED: list[tuple[Any, dict[str, Any], tuple[object, ...]]] = [
    (
        (9, []),
        {},
        (
            "there is no rank to split the batch among.",
            "speeds=[].",
            "Write the speed of each rank: speeds=[3.0, 1.0].",
            (),
        ),
    ),
    (
        (True, [1]),
        {},
        (
            "total=True is not a number of samples.",
            "Its type is bool.",
            "Write a whole number, 0 or more: total=256.",
            (),
        ),
    ),
    (
        (9, [1]),
        {"minimum": -1},
        (
            "minimum=-1 is not a number of samples.",
            "Its type is int.",
            "Write a whole number, 0 or more: minimum=1.",
            (),
        ),
    ),
    (
        (5, [1, 2, 3]),
        {"minimum": 2},
        (
            "a batch of 5 is too small for 3 ranks.",
            "Each gets 2 or more: 6 in all.",
            "Use a batch of at least 6, or fewer ranks.",
            (),
        ),
    ),
    (
        (0, [1]),
        {},
        (
            "a batch of 0 is too small for 1 rank.",
            "Each gets 1 or more: 1 in all.",
            "Use a batch of at least 1, or fewer ranks.",
            (),
        ),
    ),
    (
        (9, [1, 2]),
        {"most": [4]},
        (
            "most has 1 number for 2 ranks.",
            "most=[4].",
            "Write one number for all ranks, or one for each: a number or None.",
            (),
        ),
    ),
    (
        (9, [1, 2, 3, 4]),
        {"minimum": 2, "most": [None, 1, 9, 2.5]},
        (
            "1 is not the most samples of rank 1.",
            "Each rank gets 2 or more.",
            "Write a whole number, 2 or more, or None for no limit.",
            (1, 3),
        ),
    ),
    (
        (9, [1, 2]),
        {"most": "48"},
        (
            "'4' is not the most samples of rank 0.",
            "Each rank gets 1 or more.",
            "Write a whole number, 1 or more, or None for no limit.",
            (0, 1),
        ),
    ),
    (
        (9, [1, 2]),
        {"most": [3, 5]},
        (
            "a batch of 9 is more than the ranks can take.",
            "With most=[3, 5], 2 ranks can take 8.",
            "Use a batch of at most 8, or raise most.",
            (),
        ),
    ),
    (
        (9, [1]),
        {"most": 8},
        (
            "a batch of 9 is more than the ranks can take.",
            "With most=8, 1 rank can take 8.",
            "Use a batch of at most 8, or raise most.",
            (),
        ),
    ),
]


@pytest.mark.parametrize(("arguments", "bounds", "parts"), REFUSED)
def test_a_batch_that_cannot_be_split_is_refused_in_words(
    arguments: Any, bounds: dict[str, Any], parts: tuple[object, ...]
) -> None:
    """Errors say what is wrong, what was seen, and what to write instead."""
    with pytest.raises(PlacementError) as caught:
        split_batch(*arguments, **bounds)
    assert caught.value.args == parts

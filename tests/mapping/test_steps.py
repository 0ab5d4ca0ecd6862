"""The steps of an epoch."""

from itertools import accumulate

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpumap.errors import SessionError
from gpumap.mapping.steps import Steps

DROPPED = {"drop_last": True}


def starts(
    length: int, batch: int, ranks: int, *, drop_last: bool = False
) -> list[int]:
    """Return where each step starts, and where the last one ends."""
    steps = Steps(length=length, batch=batch, ranks=ranks, drop_last=drop_last)
    return [steps.start(step) for step in range(steps.count + 1)]


@pytest.mark.parametrize(
    ("length", "batch", "ranks", "expected"),
    [
        (16, 8, 3, [0, 8, 16]),
        (19, 8, 3, [0, 8, 16, 19]),
        # One sample is left for three ranks: the step before gives two.
        (17, 8, 3, [0, 8, 14, 17]),
        # It cannot give more than it can spare: the one before that gives the rest.
        (16, 5, 4, [0, 4, 8, 12, 16]),
        (17, 5, 4, [0, 5, 9, 13, 17]),
        (3, 8, 3, [0, 3]),
        (7, 1, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_last_step_that_is_too_small_takes_from_those_before(
    length: int, batch: int, ranks: int, expected: list[int]
) -> None:
    """Each row of the table was cut by hand."""
    assert starts(length, batch, ranks) == expected


def test_a_smaller_last_step_can_be_dropped() -> None:
    """drop_last=True keeps whole batches only."""
    assert starts(17, 8, 3, drop_last=True) == [0, 8, 16]
    assert starts(16, 8, 3, drop_last=True) == [0, 8, 16]
    assert starts(9, 4, 4, drop_last=True) == [0, 4, 8]


@given(
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(1, 6),
    st.sampled_from([{}, DROPPED]),
)
def test_steps_hold_at_most_a_batch_and_at_least_one_sample_for_each_rank(
    length: int, batch: int, ranks: int, options: dict[str, bool]
) -> None:
    """From the last step on, each takes what it lacks from the one before it.

    There are as many steps as batches. A cut is refused only if so many steps would
    need more samples than there are.
    """
    assume(batch >= ranks)
    count = length // batch if options else -(-length // batch)
    if not count or length < count * ranks:
        with pytest.raises(SessionError):
            starts(length, batch, ranks, **options)
        return
    sizes = [min(batch, length - step * batch) for step in range(count)]
    for step in range(count - 1, 0, -1):
        moved = max(ranks - sizes[step], 0)
        sizes[step] += moved
        sizes[step - 1] -= moved
    found = starts(length, batch, ranks, **options)
    assert found == list(accumulate(sizes, initial=0))
    assert all(ranks <= size <= batch for size in sizes)
    assert found[-1] == (count * batch if options else length)


def test_a_data_set_that_is_too_small_is_refused_in_words() -> None:
    """Errors say what is left for whom, and which batch would do."""
    with pytest.raises(SessionError) as caught:
        starts(1, 8, 3)
    assert caught.value.args == (
        "1 sample cannot be shared by 3 ranks.",
        "In each step each rank trains on one sample or more.",
        "Use a data set of at least 3, or fewer ranks.",
        (),
    )
    with pytest.raises(SessionError, match=r"0 samples cannot be shared by 1 rank\."):
        starts(0, 8, 1)
    with pytest.raises(SessionError) as caught:
        starts(7, 8, 3, drop_last=True)
    assert caught.value.args == (
        "drop_last=True leaves none of 7 samples.",
        "A batch is 8.",
        "Use a batch of at most 7, or drop_last=False.",
        (),
    )
    with pytest.raises(SessionError) as caught:
        starts(9, 4, 4)
    assert caught.value.args == (
        "9 samples in 3 steps do not give each of 4 ranks a sample in each step.",
        "A batch is 4, and in the last step 1 is left.",
        "Use a batch of at least 5, fewer ranks, or drop_last=True.",
        (),
    )
    assert starts(9, 5, 4) == [0, 5, 9]
    with pytest.raises(SessionError, match=r"in the last step 2 are left\."):
        starts(10, 4, 4)

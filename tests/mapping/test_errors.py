"""Errors keep their parts, also on their way to another process."""

import pickle

import pytest

from gpumap import errors

EXAMPLES = [
    errors.GpumapError("a", "b", "c"),
    errors.LaunchError("a", "b", "c", ("RANK",)),
    errors.DeviceError("a", "b", "c"),
    errors.PlacementError("a", "b", "c", (1, 3)),
    errors.RollCallError("a", "b", "c", (0,)),
    errors.SessionError("a", "b", "c"),
]


def test_every_kind_has_an_example_here() -> None:
    """A new kind of error is tested below."""
    assert {type(error).__name__ for error in EXAMPLES} == set(errors.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: errors.GpumapError) -> None:
    """Text, parts and notes arrive."""
    error.add_note("on rank 1")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made one line above
    assert type(again) is type(error)
    assert str(again) == str(error) == "a\nb\nc"
    assert vars(again) == vars(error)


def test_a_part_that_is_empty_takes_no_line() -> None:
    """The first line stands alone where there is nothing to add."""
    assert str(errors.GpumapError("a")) == "a"

"""Errors keep their parts, also when they are pickled for another process."""

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
    """EXAMPLES has an error of every class in gpumap.errors."""
    assert {type(error).__name__ for error in EXAMPLES} == set(errors.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: errors.GpumapError) -> None:
    """A pickled error keeps its class, text, parts and notes."""
    error.add_note("on rank 1")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made one line above
    assert type(again) is type(error)
    assert str(again) == str(error) == "a\nb\nc"
    assert vars(again) == vars(error)


def test_a_part_that_is_empty_takes_no_line() -> None:
    """An empty part of an error takes no line of its text."""
    assert str(errors.GpumapError("a")) == "a"

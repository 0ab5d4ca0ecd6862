"""Time limits as a user writes them."""

from datetime import timedelta
from typing import Any

import pytest

from gpumap.errors import SessionError
from gpumap.mapping.seconds import seconds_of, start_seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1, 1.0), (0.5, 0.5), (1e8, 1e8), (timedelta(minutes=2), 120.0)],
)
def test_numbers_and_timedeltas_are_times(value: Any, seconds: float) -> None:
    """A number or a timedelta becomes seconds, as a float."""
    found = seconds_of("timeout", value)
    assert found == seconds
    assert isinstance(found, float)


@pytest.mark.parametrize(
    "value", [0, -1, 1.0001e8, float("nan"), True, "5", None, timedelta(0)]
)
def test_what_is_no_positive_number_of_seconds_is_refused(value: Any) -> None:
    """Any other time than a positive number of seconds up to 10^8 is an error."""
    with pytest.raises(SessionError) as caught:
        seconds_of("end_timeout", value)
    assert caught.value.happened == f"end_timeout={value!r} is not a time."
    assert caught.value.seen == ""
    assert caught.value.hint == (
        "Write a positive number of seconds, 10^8 at most, or a timedelta: "
        "end_timeout=300.0."
    )


def test_the_environment_wins_over_a_script_that_cannot_be_edited() -> None:
    """GPUMAP_START_TIMEOUT, unless empty, overrides start_timeout; errors name it."""
    assert start_seconds("start_timeout", 5, {}) == 5.0
    assert start_seconds("start_timeout", 5, {"GPUMAP_START_TIMEOUT": ""}) == 5.0
    assert start_seconds("start_timeout", 5, {"GPUMAP_START_TIMEOUT": "7.5"}) == 7.5
    for wrong, told in (("soon", "'soon'"), ("0", "0.0"), ("nan", "nan")):
        with pytest.raises(SessionError) as caught:
            start_seconds("start_timeout", 5, {"GPUMAP_START_TIMEOUT": wrong})
        assert caught.value.happened == f"GPUMAP_START_TIMEOUT={told} is not a time."
    with pytest.raises(SessionError, match="start_timeout=-1 is not a time"):
        start_seconds("start_timeout", -1, {})

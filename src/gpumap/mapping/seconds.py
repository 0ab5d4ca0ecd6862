"""Parses the time limits that users give."""

from collections.abc import Mapping
from datetime import timedelta

from gpumap.errors import SessionError

__all__ = ["seconds_of", "start_seconds"]

# Overrides start_timeout, for scripts that cannot be edited.
_START_TIMEOUT = "GPUMAP_START_TIMEOUT"
# Three years; longer time-outs overflow in threading.
_MOST_SECONDS = 1e8


def start_seconds(name: str, value: object, environ: Mapping[str, str]) -> float:
    """Return a time to start in seconds; GPUMAP_START_TIMEOUT overrides the value.

    Raises:
        SessionError: It is no positive number of seconds.
    """
    wanted = environ.get(_START_TIMEOUT)
    if not wanted:
        return seconds_of(name, value)
    try:
        return seconds_of(_START_TIMEOUT, float(wanted))
    except ValueError:
        return seconds_of(_START_TIMEOUT, wanted)


def seconds_of(name: str, value: object) -> float:
    """Return a time in seconds.

    Raises:
        SessionError: It is no positive number of seconds, and no timedelta.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds <= _MOST_SECONDS
    ):
        raise SessionError(
            f"{name}={value!r} is not a time.",
            "",
            f"Write a positive number of seconds, 10^8 at most, or a timedelta: "
            f"{name}=300.0.",
        )
    return float(seconds)

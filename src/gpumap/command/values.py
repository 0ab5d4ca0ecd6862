"""What the words of a command line mean: devices, scores, counts and seconds."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import cast

from gpumap.errors import DeviceError, SessionError
from gpumap.mapping.device_refs import DeviceRef, refs_of
from gpumap.mapping.policy import Scores
from gpumap.mapping.seconds import seconds_of
from gpumap.words import one_line

__all__ = ["brief_strategy", "count", "refs", "scores", "seconds"]

_MOST_PROCESSES = 4096  # more than any node runs


def brief_strategy(text: str) -> str:
    """Return the name of a strategy that needs nothing to last.

    Raises:
        ArgumentTypeError: It is "idle", which holds devices as long as a script runs.
    """
    if text == "idle":
        message = (
            "idle holds devices as long as a script runs: write gpumap run --strategy "
            "idle train.py"
        )
        raise ArgumentTypeError(message)
    return text


def refs(text: str) -> Sequence[DeviceRef]:
    """Return references to devices: "2,3" or "GPU-5c3a,0000:3b:00.0".

    Raises:
        ArgumentTypeError: An entry is empty.
    """
    try:
        return refs_of(text)
    except DeviceError as error:
        raise ArgumentTypeError(one_line(error)) from None


def scores(text: str) -> Scores:
    """Return scores: "memory", "multiprocessors", or by device: "0=100,1=90".

    Raises:
        ArgumentTypeError: It is none of these.
    """
    if text in ("memory", "multiprocessors"):
        return cast("Scores", text)
    pairs = [item.partition("=")[::2] for item in text.split(",")]
    try:
        return {refs(ref)[0]: float(score) for ref, score in pairs}
    except ValueError:
        message = f"{text!r} is not memory, multiprocessors or 0=100,1=90"
        raise ArgumentTypeError(message) from None


def count(text: str) -> int:
    """Return a number of processes or nodes.

    Raises:
        ArgumentTypeError: It is no whole number, or not from 1 to 4096.
    """
    if not text.isdecimal() or not 0 < int(text[:9]) <= _MOST_PROCESSES:
        message = f"{text!r} is not a number of processes"
        raise ArgumentTypeError(message)
    return int(text)


def seconds(text: str) -> float:
    """Return a time in seconds.

    Raises:
        ArgumentTypeError: It is no positive number, or more than 10^8.
    """
    try:
        return seconds_of("start_timeout", float(text))
    except (ValueError, SessionError):
        message = f"{text!r} is not a number of seconds, from above 0 to 10^8"
        raise ArgumentTypeError(message) from None

"""Turns errors into text for other ranks: short, printable, and without failing."""

import signal
import time
import unicodedata
from typing import Any, cast

__all__ = [
    "Reminder",
    "described",
    "first_line",
    "printable",
    "signal_name",
]

_MOST_CHARACTERS = 1000
# The marks that embed, override and isolate a direction. Source: UAX 9, table 4.
_TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def described(error: BaseException) -> str:
    """Return an error as one short text that can be written to a store.

    A user's error may hold file names that are not Unicode, or its __str__ may fail.
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - whatever the user's __str__ raises
        text = "(its text cannot be printed)"
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return named[:_MOST_CHARACTERS].encode(errors="backslashreplace").decode()


def first_line(error: BaseException) -> str:
    """Return the first line of torch's error; the C++ stack follows it."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def printable(value: Any) -> Any:  # noqa: ANN401 - whatever stands in JSON
    """Return a value in whose texts control characters are escaped.

    What other processes write to a store may hold ESC, NUL or marks that change the
    direction of text, which would act on a terminal; line ends and tabs stay.
    """
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(
            c.encode("unicode_escape").decode() if _commands(c) else c for c in value
        )
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {printable(name): printable(item) for name, item in fields.items()}
    if isinstance(value, list):
        return [printable(item) for item in cast("list[object]", value)]
    return value


def _commands(character: str) -> bool:
    if character in "\n\t":
        return False
    turns = unicodedata.bidirectional(character) in _TURNS
    return turns or unicodedata.category(character) in ("Cc", "Cs")


def signal_name(number: int) -> str:
    """Return a signal's name, also of a real-time one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


class Reminder:
    """Tells when it is time to log again what is awaited.

    The first time is after five seconds, and each further one after three times as
    long.
    """

    def __init__(self) -> None:
        """Start the clock."""
        self.began = time.monotonic()
        self._next = 5.0

    def due(self) -> bool:
        """Tell whether to log now."""
        if time.monotonic() - self.began < self._next:
            return False
        self._next *= 3
        return True

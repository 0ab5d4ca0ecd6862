"""Errors in words for others: short, printable, and never an error themselves."""

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
# The marks that set, override and isolate a direction. Source: UAX 9, table 4.
_TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def described(error: BaseException) -> str:
    """Return an error as one short text that can be written to a store.

    A user's error may hold file names that are no Unicode, or fail at being printed.
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - whatever the user's __str__ raises
        text = "(its text cannot be printed)"
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return named[:_MOST_CHARACTERS].encode(errors="backslashreplace").decode()


def first_line(error: BaseException) -> str:
    """Return what torch says first; what follows is the C++ stack."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def printable(value: Any) -> Any:  # noqa: ANN401 - whatever stands in JSON
    """Return a value in whose texts nothing can command a terminal.

    What other processes write to a store may hold ESC, NUL or marks that turn the
    direction of what is read; line ends and tabs stay.
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
    """Return a signal's name, a real-time one's too."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


class Reminder:
    """Tells when it is time to say again that something is awaited.

    After five seconds, and then three times as long after each time.
    """

    def __init__(self) -> None:
        """Begin to wait."""
        self.began = time.monotonic()
        self._next = 5.0

    def due(self) -> bool:
        """Tell whether to say it now."""
        if time.monotonic() - self.began < self._next:
            return False
        self._next *= 3
        return True

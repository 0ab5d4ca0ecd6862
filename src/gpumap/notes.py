"""Notes on exceptions, including those that do not accept any."""

from contextlib import suppress
from typing import Any

__all__ = ["note", "notes_of"]


def note(error: BaseException, text: str) -> None:
    """Add a note to an error, even to a frozen dataclass, which rejects add_note().

    If that fails too, the note is left out: the error itself matters more.
    """
    with suppress(Exception):
        error.add_note(text)
        return
    with suppress(Exception):
        vars(error)["__notes__"] = [*notes_of(error), text]


def notes_of(error: BaseException) -> list[str]:
    """Return an error's notes as a list, even if __notes__ is not a list."""
    with suppress(Exception):
        notes: Any = getattr(error, "__notes__", [])
        return list(map(str, notes if hasattr(notes, "append") else [notes]))
    return []

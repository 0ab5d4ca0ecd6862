"""Notes on errors, also on those that take none."""

from contextlib import suppress
from typing import Any

__all__ = ["note", "notes_of"]


def note(error: BaseException, text: str) -> None:
    """Add a note to an error, also to a frozen dataclass, which takes none.

    Where that fails too, the note is left out: the error itself matters more.
    """
    with suppress(Exception):
        error.add_note(text)
        return
    with suppress(Exception):
        vars(error)["__notes__"] = [*notes_of(error), text]


def notes_of(error: BaseException) -> list[str]:
    """Return an error's notes, whatever its user has made of them."""
    with suppress(Exception):
        notes: Any = getattr(error, "__notes__", [])
        return list(map(str, notes if hasattr(notes, "append") else [notes]))
    return []

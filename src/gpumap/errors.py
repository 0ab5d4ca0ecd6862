"""Everything that gpumap raises on purpose.

GpumapError
├── LaunchError     what started this process: variables missing or at odds
├── DeviceError     which device: a reference that fits none, or several
├── PlacementError  who goes where: two ranks on one device, or a rank without one
├── RollCallError   what the ranks found out together before training started
└── SessionError    the life of a session: opening, using and closing it
"""

from contextlib import suppress
from typing import Any

__all__ = [
    "DeviceError",
    "GpumapError",
    "LaunchError",
    "PlacementError",
    "RollCallError",
    "SessionError",
    "note",
    "notes_of",
]


class GpumapError(Exception):
    """An error that says what happened, what was seen and what to do.

    Attributes:
        happened: What is wrong, with the numbers; stands alone as the first line.
        seen: What was found that shows it.
        hint: What to change.
    """

    def __init__(self, happened: str, seen: str = "", hint: str = "") -> None:
        """Keep the three parts; all of them are positional, so the error pickles."""
        super().__init__(happened, seen, hint)
        self.happened = happened
        self.seen = seen
        self.hint = hint

    def __str__(self) -> str:
        """Return the parts, a line each."""
        return "\n".join(part for part in (self.happened, self.seen, self.hint) if part)


class LaunchError(GpumapError):
    """What started this process cannot be told, or contradicts itself.

    Attributes:
        variables: The environment variables to set or to correct, when known.
    """

    def __init__(
        self,
        happened: str,
        seen: str = "",
        hint: str = "",
        variables: tuple[str, ...] = (),
    ) -> None:
        """Keep the parts and the variables concerned."""
        super().__init__(happened, seen, hint)
        self.args = (happened, seen, hint, variables)
        self.variables = variables


class DeviceError(GpumapError):
    """A reference fits no visible device, or several, or is no reference at all."""


class _RanksError(GpumapError):
    """An error about certain ranks.

    Attributes:
        ranks: The ranks that the error is about, when they are known.
    """

    def __init__(
        self,
        happened: str,
        seen: str = "",
        hint: str = "",
        ranks: tuple[int, ...] = (),
    ) -> None:
        """Keep the parts and the ranks concerned."""
        super().__init__(happened, seen, hint)
        self.args = (happened, seen, hint, ranks)
        self.ranks = ranks


class PlacementError(_RanksError):
    """Two ranks are placed on one device, or a rank has none."""


class RollCallError(_RanksError):
    """The ranks, comparing what each claims, found that they cannot start together."""


class SessionError(_RanksError):
    """A session cannot be opened, used or closed as asked, or another rank failed.

    Attributes:
        ranks: The ranks that failed first, where others did.
    """


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

"""Everything that gpumap raises on purpose.

GpumapError
├── LaunchError     the launcher's variables: missing or contradictory
├── DeviceError     a device reference that matches no device, or several
├── PlacementError  two ranks on one device, or a rank without one
├── RollCallError   what the ranks found when they compared notes before training
└── SessionError    the life of a session: opening, using and closing it
"""

__all__ = [
    "DeviceError",
    "GpumapError",
    "LaunchError",
    "PlacementError",
    "RollCallError",
    "SessionError",
]


class GpumapError(Exception):
    """An error that says what happened, what was seen and what to do.

    Attributes:
        happened: What is wrong, with the numbers; stands alone as the first line.
        seen: The evidence.
        hint: What to change.
    """

    def __init__(self, happened: str, seen: str = "", hint: str = "") -> None:
        """Store the parts; all are positional, so that the error can be pickled."""
        super().__init__(happened, seen, hint)
        self.happened = happened
        self.seen = seen
        self.hint = hint

    def __str__(self) -> str:
        """Return the parts, a line each."""
        return "\n".join(part for part in (self.happened, self.seen, self.hint) if part)


class LaunchError(GpumapError):
    """The launcher's variables are incomplete or contradict each other.

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
        """Store the parts and the variables concerned."""
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
        """Store the parts and the ranks concerned."""
        super().__init__(happened, seen, hint)
        self.args = (happened, seen, hint, ranks)
        self.ranks = ranks


class PlacementError(_RanksError):
    """Two ranks are placed on one device, or a rank has none."""


class RollCallError(_RanksError):
    """The ranks compared their claims before training and cannot start together."""


class SessionError(_RanksError):
    """A session cannot be opened, used or closed as asked, or another rank failed.

    Attributes:
        ranks: The ranks that failed first, if another rank failed.
    """

"""A launcher's variables, parsed strictly, and a record of those that were used."""

import re
from collections.abc import Iterable, Mapping

from gpumap.errors import LaunchError

__all__ = ["Environment"]

_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Environment:
    """A process's environment variables; an empty one counts as not set.

    Attributes:
        used: The variables that were read and are set.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Read from these variables only."""
        self._variables = variables
        self.used: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        """Return a variable's text; None if it is not set or empty."""
        value = self._variables.get(name, "").strip()
        if not value:
            return None
        self.used[name] = value
        return value

    def number(self, name: str) -> int | None:
        """Return a variable's number; None if it is not set, or LOCAL_RANK is -1.

        Raises:
            LaunchError: It is set to anything but a whole number from 0.
        """
        value = self.text(name)
        if value is None or (name == "LOCAL_RANK" and value == "-1"):
            return None
        # Longer than any number of processes, and than what int() accepts.
        if not (value.isascii() and value.isdecimal()) or len(value) > 18:  # noqa: PLR2004
            raise LaunchError(
                f"{name} is {value!r}, where a whole number from 0 belongs.",
                f"{name}={value!r} in the environment.",
                f"Correct {name}, or unset it.",
                (name,),
            )
        return int(value)

    def in_slurm_step(self) -> bool:
        """Tell whether srun started this process as a task of a normal step.

        The shells of batch scripts and interactive jobs have SLURM_PROCID and
        SLURM_NTASKS too, but no normal step id: in slurm.h the ids from
        _FIRST_SPECIAL_STEP up are steps without tasks (batch, interactive, extern, …).
        """
        step = self.text("SLURM_STEP_ID")
        if step is None or not re.fullmatch(r"-?[0-9]{1,18}", step, re.ASCII):
            return False
        return (int(step) & 0xFFFFFFFF) < _FIRST_SPECIAL_STEP

    def first_number(self, names: Iterable[str]) -> int | None:
        """Return the number of the first of these variables that is set."""
        return next((n for n in map(self.number, names) if n is not None), None)

    def present(self, names: Iterable[str]) -> list[str]:
        """Return those of these variables that are set."""
        return [name for name in names if self.text(name) not in (None, "-1")]

    def seen(self, names: Iterable[str] | None = None) -> str:
        """Return "NAME='value', …" for these variables, or for all that were used."""
        chosen = self.used if names is None else self.present(names)
        return ", ".join(f"{name}={self.used[name]!r}" for name in chosen)

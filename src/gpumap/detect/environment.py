"""A launcher's variables, read with care, and which of them were used."""

import re
from collections.abc import Iterable, Mapping

from gpumap.errors import LaunchError

__all__ = ["Environment"]

_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Environment:
    """Variables as a launcher left them; "" counts as not set.

    Attributes:
        used: The variables that were asked for and are set.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Read from these variables and no others."""
        self._variables = variables
        self.used: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        """Return a variable's text; None where it is not set or empty."""
        value = self._variables.get(name, "").strip()
        if not value:
            return None
        self.used[name] = value
        return value

    def number(self, name: str) -> int | None:
        """Return a variable's number; None where it is not set, or LOCAL_RANK is -1.

        Raises:
            LaunchError: It is set to anything but a whole number from 0.
        """
        value = self.text(name)
        if value is None or (name == "LOCAL_RANK" and value == "-1"):
            return None
        # Longer than any number of processes, and than what int() takes.
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

        A batch script's shell and an interactive one have SLURM_PROCID and SLURM_NTASKS
        too; what they lack is a normal step id. Those of slurm.h from this one up are
        no steps of tasks (batch, interactive, extern, …).
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

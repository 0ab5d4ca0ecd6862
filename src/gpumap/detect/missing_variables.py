"""Errors that name the missing variables of a launcher of which only some are set."""

from collections.abc import Mapping

from gpumap.detect.environment import Environment
from gpumap.errors import LaunchError

__all__ = ["incomplete", "refuse_half_a_family"]

Names = tuple[str, ...]

_TORCH_FAMILY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def refuse_half_a_family(ranks: Mapping[str, Names], env: Environment) -> None:
    """Raise an error if only part of a launcher's or of torch's variables is set.

    ranks: for each launcher's rank variable, all variables that must be set with it.
    """
    present = env.present(_TORCH_FAMILY)
    if present and not (present == ["WORLD_SIZE"] and env.number("WORLD_SIZE") == 1):
        needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        raise _half(present, tuple(n for n in needed if env.text(n) is None), env)
    for name, marks in ranks.items():
        if env.text(name) is not None:
            raise incomplete(marks, env)
    if env.text("PMIX_RANK") is not None:
        raise _half(["PMIX_RANK"], ("RANK", "WORLD_SIZE", "LOCAL_RANK"), env)


def incomplete(marks: Names, env: Environment) -> LaunchError:
    """Return an error that names which of a launcher's variables are missing."""
    missing = tuple(mark for mark in marks if env.text(mark) is None)
    return _half(env.present(marks), missing, env)


def _half(present: list[str], missing: Names, env: Environment) -> LaunchError:
    names = ", ".join(missing)
    return LaunchError(
        f"{' and '.join(present) or 'Nothing'} "
        f"{'are' if len(present) > 1 else 'is'} set, and {names} "
        f"{'are' if len(missing) > 1 else 'is'} not.",
        f"{env.seen(present) or 'No variable of the family'}.",
        f"Set {names} too"
        + (
            f"; or, for a single process, unset {', '.join(present)}. "
            if present
            else ". "
        )
        + "torchrun sets RANK, WORLD_SIZE and all that goes with them.",
        missing,
    )

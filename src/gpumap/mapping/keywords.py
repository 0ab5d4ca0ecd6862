"""What to write instead of an argument that is not there, or is another library's."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

__all__ = ["list_instead_of", "nearest", "refuse_unknown"]


def refuse_unknown(
    call: str,
    given: Iterable[str],
    taken: Iterable[str],
    habits: Mapping[str, str],
) -> None:
    """Check the names of a call's arguments.

    Args:
        call: The call, as a user writes it: "session()".
        given: The names that the user has written.
        taken: The names that it takes.
        habits: A sentence for each name of another library, on what to write here.

    Raises:
        TypeError: It takes no argument of one of these names; the error suggests one.
    """
    names = list(taken)
    for name in given:
        if name in names:
            continue
        close = nearest(name, names)
        habit = habits.get(name) or habits.get("" if close else nearest(name, habits))
        instead = habit or (close and f"Did you mean {close}=…?")
        message = f"{call} takes no argument {name!r}. " + (
            instead or f"It takes {', '.join(names)}."
        )
        raise TypeError(message)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the name that is spelt most like this one; "" if none is.

    >>> nearest("start_timout", ["timeout", "start_timeout"])
    'start_timeout'
    """
    return next(iter(get_close_matches(name, list(names), n=1, cutoff=0.7)), "")


def list_instead_of(gpus: object) -> str | None:
    """Return what to write instead of a text or a number of gpus; None for all else.

    >>> list_instead_of("0,1")
    'Write a list: gpus=[0, 1].'
    """
    everything = "To use all visible devices, leave gpus out."
    if isinstance(gpus, str):
        parts = [part.strip() for part in gpus.split(",") if part.strip()]
        if not parts or parts in (["-1"], ["all"], ["auto"]):
            return everything
        refs = [int(part) if part.isdecimal() else part for part in parts]
        return f"Write a list: gpus={refs}."
    if isinstance(gpus, bool) or not isinstance(gpus, int):
        return None
    if gpus < 0:
        return everything
    if gpus == 0:
        return "Write a list: gpus=[0]."
    many = "1 device" if gpus == 1 else f"{gpus} devices"
    return (
        f"For the device {gpus} write gpus=[{gpus}]; to train on {many}, start as many "
        f"processes: torchrun --nproc-per-node {gpus}, or spawn(…, nprocs={gpus})."
    )

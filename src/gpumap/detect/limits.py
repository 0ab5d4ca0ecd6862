"""Checks the limit of open files before it is reached.

Connections are files; beyond the limit, libraries fail with errors that name other
causes.
"""

import resource
from pathlib import Path

from gpumap.errors import SessionError

__all__ = ["files_of_session", "files_of_spawn", "refuse_few_files"]

_FILES = Path("/proc/self/fd")


def files_of_session(world_size: int, *, hosts: bool, again: bool = False) -> int:
    """Return how many files a session on gloo opens, counted after its first steps.

    Counted in sessions of 2, 4 and 8 ranks with torch 2.13: gloo opens two connections
    per rank, and the store's host has three more; two of all are short-lived. again: an
    earlier session has opened the store already.
    """
    if again:
        return 7 + 2 * world_size
    return 18 + 5 * world_size if hosts else 9 + 2 * world_size


def files_of_spawn(count: int) -> int:
    """Return how many files spawn() opens for `count` processes, counted likewise."""
    return 12 + 6 * count


def refuse_few_files(who: str, needed: int) -> None:
    """Raise an error if `needed` more files would exceed the limit.

    Raises:
        SessionError: ulimit -n is too small.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or not _FILES.exists():
        return
    there = len(list(_FILES.iterdir())) - 1
    if there + needed > soft:
        most = "" if hard == resource.RLIM_INFINITY else f", {hard} at most"
        enough = max(4096, 2 * needed)
        raise SessionError(
            f"{who} needs {needed} more open files, and {max(soft - there, 0)} are "
            "left.",
            f"ulimit -n is {soft}{most}; {there} are open.",
            "See whether so many processes are meant: the limit ends before."
            if hard != resource.RLIM_INFINITY and there + needed > hard
            else f"Raise it before the script starts: ulimit -n {enough}.",
        )

"""The state of another rank's process, from /proc."""

import os
from functools import cache
from pathlib import Path

__all__ = [
    "boot_id",
    "end_of",
    "file_space",
    "is_gone",
    "is_halted",
    "pid_space",
    "state_of",
]

_GONE = "its process is gone"
_STATES = {
    "": _GONE,
    "Z": _GONE,
    "X": _GONE,
    "T": "its process is stopped",
    "t": "its process is stopped by a debugger",
}


@cache
def boot_id() -> str | None:
    """Return what all processes under this kernel share, and no others.

    It is drawn anew at every boot, so clones of a virtual machine differ; containers
    share their host's. None where there is no /proc.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def pid_space() -> str | None:
    """Return what two processes share that see each other's process ids."""
    return _space("pid")


def file_space() -> str | None:
    """Return what two processes share that see the same files, devices included."""
    return _space("mnt")


@cache
def _space(name: str) -> str | None:
    """Return the kernel and a namespace in it."""
    try:
        return f"{boot_id()}/{Path(f'/proc/self/ns/{name}').stat().st_ino}"
    except OSError:
        return None


def state_of(pid: int, space: str | None) -> str:
    """Say what has become of a process, as far as can be seen from here."""
    if space is None or space != pid_space():
        return "nothing can be seen of its process from here"
    return _STATES.get(_letter(pid), "its process is there, and hangs or is busy")


def is_gone(pid: int, space: str | None) -> bool:
    """Tell whether a process has certainly ended."""
    return state_of(pid, space) == _GONE


def is_halted(pid: int, space: str | None) -> bool:
    """Tell whether a process has ended, or is stopped and will not answer."""
    return state_of(pid, space) in _STATES.values()


def end_of(pid: int, space: str | None) -> int | None:
    """Return a file descriptor that can be read once a process has ended.

    None where it cannot be seen from here; it may have ended already.
    """
    if space is None or space != pid_space() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _letter(pid: int) -> str:
    """Return the kernel's letter for a process's state; "" where there is none.

    Source: proc_pid_stat(5); the name before it may hold blanks and brackets.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]

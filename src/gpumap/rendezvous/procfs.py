"""The state of another rank's process, from /proc."""

import os
import socket
from functools import cache
from pathlib import Path

__all__ = [
    "boot_id",
    "end_of",
    "file_space",
    "host_name",
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
    """Return an identifier of the running kernel, shared by all its processes.

    It is new at every boot, so clones of a virtual machine differ; containers share
    their host's. None without /proc.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def host_name() -> str:
    """Return a name of this host that no other host of a job has.

    Clones may have the same name, and containers share their host's kernel.
    """
    return f"{socket.gethostname()} {boot_id()}"


def pid_space() -> str | None:
    """Return an identifier of this PID namespace.

    It is the boot id and the namespace's inode. Processes with the same one can look up
    each other's process ids.
    """
    return _space("pid")


def file_space() -> str | None:
    """Return an identifier of this mount namespace.

    Processes with the same one see the same files, devices included.
    """
    return _space("mnt")


@cache
def _space(name: str) -> str | None:
    """Return the kernel's boot id and the inode of a namespace of this process."""
    try:
        return f"{boot_id()}/{Path(f'/proc/self/ns/{name}').stat().st_ino}"
    except OSError:
        return None


def state_of(pid: int, space: str | None) -> str:
    """Describe the state of a process, as far as it is visible from here."""
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
    """Return a file descriptor that becomes readable once a process has ended.

    None if the process is not visible from here; it may have ended already.
    """
    if space is None or space != pid_space() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _letter(pid: int) -> str:
    """Return the kernel's letter for a process's state; "" if there is no such process.

    Source: proc_pid_stat(5); the name before the letter may hold blanks and brackets.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]

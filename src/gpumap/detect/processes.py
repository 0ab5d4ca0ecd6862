"""Other processes of this machine, as /proc shows them."""

import os
import pwd
import time
from pathlib import Path

from gpumap.mapping.devices import Tenant

__all__ = ["local_time", "tenant_of", "user_name"]

_LONGEST = 60


def tenant_of(pid: int) -> Tenant:
    """Return a process with its user, command and start, as far as /proc shows it."""
    folder = Path(f"/proc/{pid}")
    try:
        return Tenant(
            pid=pid,
            user=_user((folder / "status").read_text(errors="replace")),
            command=_command((folder / "cmdline").read_bytes()),
            since=_since((folder / "stat").read_text(errors="replace")),
        )
    except OSError:
        return Tenant(pid=pid)


def user_name(uid: int) -> str:
    """Return a user's name, or "uid 1000" for one without."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a user of another container, or of a directory service
        return f"uid {uid}"


def local_time(seconds: float) -> str | None:
    """Return a time since the epoch as text; None if it is none."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a file's owner may set any time
        return None


def _user(status: str) -> str | None:
    """Return the effective user of a process. Source: proc_pid_status(5)."""
    rows = [line.split() for line in status.splitlines() if line.startswith("Uid:")]
    return user_name(int(rows[0][2])) if rows else None


def _command(cmdline: bytes) -> str | None:
    """Return a command line, shortened, without what would disturb a terminal.

    Of a program's absolute path only the name is kept: python train.py.
    """
    program, *words = cmdline.decode(errors="replace").rstrip("\0").split("\0")
    name = program.rpartition("/")[2] if program.startswith("/") else program
    text = "".join(c if c.isprintable() else "?" for c in " ".join((name, *words)))
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…") or None


def _since(stat: str) -> str | None:
    """Return the start of a process, from its ticks since the boot.

    Source: proc_pid_stat(5), field 22; the name before may hold blanks and brackets.
    """
    ticks = int(stat.rpartition(")")[2].split()[19])
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return local_time(boot + ticks / os.sysconf("SC_CLK_TCK"))

"""A fingerprint of how a process was started, to tell two jobs on one port apart."""

import hashlib
import multiprocessing
import os
import re
import socket
import sys
from pathlib import Path

from gpumap.mapping.base import FrozenModel
from gpumap.mapping.launch import Launch
from gpumap.rendezvous.procfs import pid_space

__all__ = ["Fingerprint", "fingerprint_of", "mismatch"]

# Variables set by launchers or shells for each process, settings for logs and
# libraries, and secrets.
_NOT_COMPARED = re.compile(
    r"RANK|VISIBLE_DEVICES|AFFINITY|MASK|^(_|PWD|OLDPWD|SHLVL|TMP|TEMP|TMPDIR)$"
    r"|DEBUG|LOG|TRACE|^(NCCL|GLOO|TORCH|CUDA|PYTHON|OMP|KMP|MKL|COVERAGE)"
    r"|KEY|TOKEN|SECRET|PASS|CREDENTIAL"
    # The roll call compares this one, with an error of its own.
    r"|^GPUMAP_REHEARSAL$"
)
# Limits, so that a fingerprint fits into one short value on the store.
_MOST_VARIABLES, _LONGEST_NAME = 300, 48


class Fingerprint(FrozenModel):
    """How and where a process was started.

    Attributes:
        rank: Its rank.
        hostname: Its host's own name.
        pid: Its process id.
        pid_space: The PID namespace, as in procfs; None if the system does not tell.
        job_id: The launcher's name for the job, if it has one.
        spawner: The process id of the Python that started it by multiprocessing.
        parent: Its parent's process id.
        script: The script's file name.
        arguments: A digest of its command line, without numbers.
        environment: A short digest of each variable of its initial environment, without
            numbers; empty if the system does not tell.
    """

    rank: int
    hostname: str
    pid: int
    pid_space: str | None
    job_id: str | None
    spawner: int | None
    parent: int
    script: str
    arguments: str
    environment: dict[str, str]

    def __str__(self) -> str:
        """Return rank, process and host."""
        return f"rank {self.rank} (pid {self.pid} on {self.hostname}, {self.script})"


def fingerprint_of(launch: Launch) -> Fingerprint:
    """Return this process's fingerprint."""
    parent = multiprocessing.parent_process()
    environ = _first_environment()
    names = sorted(
        name
        for name in environ
        if len(name) <= _LONGEST_NAME and not _NOT_COMPARED.search(name)
    )
    return Fingerprint(
        rank=launch.rank,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        pid_space=pid_space(),
        job_id=launch.job_id,
        spawner=None if parent is None else parent.pid,
        parent=os.getppid(),
        script=Path(sys.argv[0]).name.encode(errors="replace").decode()[:200]
        if sys.argv
        else "",
        arguments=_digest(" ".join(sys.argv)),
        environment={n: _digest(environ[n])[:4] for n in names[:_MOST_VARIABLES]},
    )


def mismatch(a: Fingerprint, b: Fingerprint) -> str | None:
    """Return what shows that two processes belong to two jobs; None if nothing does.

    If there is a job id, it decides. Without one, the evidence is what the ranks of a
    job share: the script; on one host, the Python that spawned them, or else the
    arguments; for one parent, the environment. Numbers are ignored, since ranks are
    numbers.
    """
    if a.job_id is not None or b.job_id is not None:
        return _unlike("job", a.job_id, b.job_id)
    # Two hosts may have the same name, and containers have their own process ids.
    apart = a.hostname != b.hostname or a.pid_space != b.pid_space
    if apart or a.script != b.script:
        return _unlike("script", a.script, b.script)
    if a.spawner is not None or b.spawner is not None:
        if a.spawner in (b.spawner, b.pid) or b.spawner == a.pid:
            return None
        return _unlike("spawning process", a.spawner, b.spawner)
    if a.arguments != b.arguments:
        return "other arguments"
    names = [
        name
        for name in sorted({*a.environment, *b.environment})
        if a.parent == b.parent and a.environment.get(name) != b.environment.get(name)
    ]
    return f"another environment: {', '.join(names[:5])}" if names else None


def _first_environment() -> dict[str, str]:
    """Return the environment that this process was started with, before any changes."""
    try:
        lines = Path("/proc/self/environ").read_text(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _unlike(what: str, a: object, b: object) -> str | None:
    return None if a == b else f"another {what}: {a} and {b}"


def _digest(text: str) -> str:
    return hashlib.sha256(
        re.sub(r"\d+", "#", text).encode(errors="replace")
    ).hexdigest()[:16]

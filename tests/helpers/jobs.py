"""Starts the ranks of a job as real processes and returns their outcomes."""

import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from helpers.environments import clean_environment, rank_environment
from helpers.programs import start_python
from helpers.warm import Script

Process: TypeAlias = Script | subprocess.Popen[str]

WORKER = Path(__file__).with_name("worker.py")
LIMIT = 60.0


@dataclass(frozen=True)
class Ended:
    """One process that has ended: its exit code, its output, its seconds."""

    code: int
    out: str
    seconds: float


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def connection_to(port: int) -> socket.socket:
    """Connect as soon as something listens on a local port."""
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except OSError:
            time.sleep(0.05)
    pytest.fail("rank 0 never listened")


def start(
    case: str,
    environ: Mapping[str, str],
    *,
    delay: float = 0.0,
    cold: bool = False,
    script: Path = WORKER,
) -> Process:
    """Start one process that runs a script with the words of case as its arguments.

    cold: start a new Python, not a fork of the warm server, so that its parent and its
    first environment are its own.
    """
    command = [str(script), *case.split()]
    environ = {"DELAY": str(delay), **environ}
    if cold:
        return start_python(*command, environ=environ)
    return Script(command, {**clean_environment(), **environ})


def finish(processes: Sequence[Process], limit: float = LIMIT) -> list[Ended]:
    """Wait for processes; one that outlasts the limit is killed and fails the test."""
    began = time.monotonic()
    ended = []
    try:
        for process in processes:
            left = max(limit - (time.monotonic() - began), 0.1)
            out, _ = process.communicate(timeout=left)
            code = process.wait(LIMIT)
            ended.append(Ended(code, out, time.monotonic() - began))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                out, _ = process.communicate(timeout=LIMIT)
                print("killed after the limit:", out)
    return ended


def run(
    case: str,
    world_size: int = 2,
    *,
    port: int | None = None,
    every: Mapping[str, str] | None = None,
    each: Mapping[int, Mapping[str, str]] | None = None,
    ranks: Sequence[int] | None = None,
    delays: Mapping[int, float] | None = None,
    limit: float = LIMIT,
    cold: bool = False,
    script: Path = WORKER,
) -> list[Ended]:
    """Run a case in every rank of a job: `every` is set for all, `each` by rank."""
    port = port or free_port()
    processes = [
        start(
            case,
            {
                **rank_environment(rank, world_size, port),
                **(every or {}),
                **((each or {}).get(rank, {})),
            },
            delay=(delays or {}).get(rank, 0.0),
            cold=cold,
            script=script,
        )
        for rank in (range(world_size) if ranks is None else ranks)
    ]
    return finish(processes, limit)


ENDINGS = Path(__file__).with_name("endings.py")


def endings(case: str, world_size: int = 2, **options: Any) -> list[Ended]:
    """Run a case of endings.py in every rank of a job."""
    return run(case, world_size, script=ENDINGS, **options)

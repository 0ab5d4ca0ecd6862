"""Starts the ranks of a job as real processes and returns what became of each."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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


def clean_environment() -> dict[str, str]:
    """Return this environment without anything a launcher or gpumap reads."""
    families = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "GPUMAP")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*families, "TORCHELASTIC", "CUDA", "SLURM", "OMPI"))
    } | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return what torchrun would set, less what only its own agent can."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(
    case: str, environ: Mapping[str, str], *, delay: float = 0.0
) -> subprocess.Popen[str]:
    """Start one process that runs a case of worker.py."""
    return subprocess.Popen(
        [sys.executable, str(WORKER), case],
        env={**clean_environment(), "DELAY": str(delay), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(
    processes: Sequence[subprocess.Popen[str]], limit: float = LIMIT
) -> list[Ended]:
    """Wait for processes; one that outlasts the limit is killed and fails the test."""
    began = time.monotonic()
    ended = []
    try:
        for process in processes:
            left = max(limit - (time.monotonic() - began), 0.1)
            out, _ = process.communicate(timeout=left)
            ended.append(Ended(process.returncode, out, time.monotonic() - began))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                out, _ = process.communicate()
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
        )
        for rank in (range(world_size) if ranks is None else ranks)
    ]
    return finish(processes, limit)

"""Processes of `gpumap run`, started as a launcher would, and what their script saw."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.environments import rank_environment
from helpers.jobs import free_port
from helpers.programs import start_python

__all__ = ["VIEW", "Ended", "ended", "run_ranks", "script", "start_rank"]

# A script that prints its arguments and the variables that matter, as one line of JSON,
# whose end is not written apart, since other ranks may write to the same pipe.
VIEW = """\
import json, os, sys
families = ("RANK WORLD LOCAL_ GROUP_ NODE_ MASTER_ TORCHELASTIC CUDA GPUMAP").split()
found = {n: x for n, x in os.environ.items() if n.startswith(tuple(families))}
sys.stdout.write(json.dumps([sys.argv[1:], found]) + "\\n")
"""


class Ended:
    """A process that has ended.

    Attributes:
        pid: Its process id.
        code: Its exit code; negative for a signal.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
    """

    def __init__(self, process: "subprocess.Popen[str]", out: str, err: str) -> None:
        """Keep what is left of a process."""
        self.pid, self.code, self.out, self.err = (
            process.pid,
            process.returncode,
            out,
            err,
        )

    @property
    def view(self) -> dict[str, str]:
        """The variables that the script VIEW printed."""
        found: dict[str, str] = json.loads(self.out)[1]
        return found

    @property
    def words(self) -> list[str]:
        """The arguments that the script VIEW printed."""
        found: list[str] = json.loads(self.out)[0]
        return found


def start_rank(
    words: Sequence[str],
    environ: Mapping[str, str],
    python: Sequence[str] = (),
    **options: Any,
) -> "subprocess.Popen[str]":
    """Start `gpumap run` with these words, in rehearsal of a DGX A100."""
    return start_python(
        *python,
        "-m",
        "gpumap",
        "run",
        *words,
        environ={"GPUMAP_REHEARSAL": "dgx-a100", **environ},
        stderr=subprocess.PIPE,
        **options,
    )


def ended(process: "subprocess.Popen[str]", seconds: float = 60) -> Ended:
    """Wait for a process; kill it if it does not end."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        sys.stderr.write(err)
        raise
    return Ended(process, out, err)


def run_ranks(
    words: Sequence[str],
    world_size: int = 2,
    environ: Mapping[str, str] | None = None,
    *,
    ranks: Sequence[int] | None = None,
) -> list[Ended]:
    """Run ranks of a job to their end, as torchrun would start them without a store."""
    port = free_port()
    started = [
        start_rank(
            words, {**rank_environment(rank, world_size, port), **(environ or {})}
        )
        for rank in (range(world_size) if ranks is None else ranks)
    ]
    return [ended(process) for process in started]


def script(folder: Path, text: str = VIEW) -> str:
    """Write a script; return its path."""
    path = folder / "train.py"
    path.write_text(text)
    return str(path)

"""Runs programs in an environment without launchers' and gpumap's variables."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from helpers.environments import clean_environment

__all__ = ["run_program", "run_python", "start_program", "start_python"]


def run_program(
    command: Sequence[str], environ: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, 100 s at most; options are subprocess.run's."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 100}
    return subprocess.run(
        command,
        env={**clean_environment(), **(environ or {})},
        text=True,
        check=False,
        **{**usual, **options},
    )


def run_python(
    *arguments: str, environ: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run this Python to its end."""
    return run_program([sys.executable, *arguments], environ, **options)


def start_program(
    command: Sequence[str], environ: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start a command; stdout and stderr are one text."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(
        command,
        env={**clean_environment(), **(environ or {})},
        text=True,
        **{**usual, **options},
    )


def start_python(
    *arguments: str, environ: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start this Python."""
    return start_program([sys.executable, *arguments], environ, **options)

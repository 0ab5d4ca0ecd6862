"""The program that takes this process's place."""

import os
import shutil
import signal
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from gpumap.errors import SessionError

__all__ = ["NoProgramError", "become", "program_of"]

# What Python ignores from its start on, and a program that it becomes would ignore too.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ", "SIGXFZ")


class NoProgramError(SessionError):
    """What is to be run is not there, or cannot be run."""


def program_of(asked: Namespace) -> list[str]:
    """Return the words that start what was asked for.

    A script and a module get this Python, with the options that it was started with.

    Raises:
        NoProgramError: There is no such file or program.
    """
    name, rest = str(asked.script), list(asked.arguments)
    if asked.no_python:
        path = shutil.which(name)
        if path is None:
            raise NoProgramError(f"there is no program {name!r}.", "", "")
        return [path, *rest]
    python = [sys.executable, *_options_of_python(sys.orig_argv)]
    if asked.module:
        return [*python, "-m", name, *rest]
    if name != "-" and not Path(name).exists():
        raise NoProgramError(f"there is no script {name!r} in {Path.cwd()}.", "", "")
    return [*python, name, *rest]


def become(program: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process's program by another, with these variables.

    Open files that are to be closed are marked so by Python itself (PEP 446).

    Raises:
        NoProgramError: The system refuses.
    """
    for name in _IGNORED_BY_PYTHON:
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # closed, or none
            stream.flush()
    try:
        os.execve(program[0], list(program), dict(environ))  # noqa: S606 - it is the task
    except OSError as error:
        raise NoProgramError(
            f"{program[0]} cannot be run: {error.strerror}.", "", ""
        ) from None


def _options_of_python(words: Sequence[str]) -> list[str]:
    """Return the options of Python itself in the words that it was started with."""
    options: list[str] = []
    for word in words[1:]:
        value = options[-1:] in (["-X"], ["-W"])
        if not value and (not word.startswith("-") or word == "-m"):
            break
        options.append(word)
    return options

"""The program that takes this process's place."""

import os
import shutil
import signal
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from gpumap.errors import SessionError

__all__ = ["NoProgramError", "become", "program_of"]

# What Python ignores from its start on, and a program that it becomes would ignore too.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ", "SIGXFZ")
# Options of Python whose value is the next word.
_WITH_A_VALUE = ("-X", "-W", "--check-hash-based-pycs")


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
            there = "cannot be executed" if Path(name).exists() else "is not there"
            raise NoProgramError(f"the program {name!r} {there}.", "", "")
        return [path, *rest]
    python = [sys.executable, *_options_of_python(sys.orig_argv)]
    if asked.module:
        return [*python, "-m", name, *rest]
    if name != "-" and not Path(name).exists():
        where = "" if Path(name).is_absolute() else f" in {_here()}"
        raise NoProgramError(f"there is no script {name!r}{where}.", "", "")
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


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "a folder that was removed"


def _options_of_python(words: Sequence[str]) -> list[str]:
    """Return the options of Python itself in the words that it was started with.

    They end before the script's name, or with -m or -c, alone or in a bundle: -um.
    """
    options: list[str] = []
    for word in words[1:]:
        if options and options[-1] in _WITH_A_VALUE:
            options.append(word)
            continue
        letters = "" if word.startswith("--") else word[1:]
        plain = "".join(takewhile(lambda letter: letter not in "mcXW", letters))
        valued = letters[len(plain) :]
        if not word.startswith("-") or word == "-":
            break
        if valued[:1] in ("m", "c"):
            return [*options, f"-{plain}"] if plain else options
        options.append(word)
    return options

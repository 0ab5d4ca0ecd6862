"""`gpumap completion`: what makes a shell complete gpumap's words."""

import argparse
import sys
from importlib.resources import files

from gpumap.command.arguments import parsers
from gpumap.command.printing import printed

__all__ = ["completion"]

_WITHOUT_SHTAB = (
    "gpumap completion: shtab is not installed, which makes it: "
    "pip install 'gpumap-torch[completion]'\n"
)
_BASH = """\
_gpumap_machine_or_file() {{
  compgen -W "{names}" -- $1
  compgen -f -- $1
}}"""
_ZSH = """\
_gpumap_machine_or_file() {{
  _alternative "machines:machine:({names})" "files:file:_files"
}}"""


def completion(asked: argparse.Namespace) -> int:
    """Print a script for the shell that is asked for; return 2 if there is none."""
    try:
        import shtab  # noqa: PLC0415 - an extra
    except ImportError:
        if sys.stderr is not None:
            sys.stderr.write(_WITHOUT_SHTAB)
        return 2
    whole, _ = parsers()
    described = (files("gpumap") / "machines").iterdir()
    names = " ".join(sorted(file.name.removesuffix(".json") for file in described))
    functions = {"bash": _BASH.format(names=names), "zsh": _ZSH.format(names=names)}
    script = shtab.complete(whole, asked.shell, preamble=functions.get(asked.shell, ""))
    return 0 if printed(script) else 2

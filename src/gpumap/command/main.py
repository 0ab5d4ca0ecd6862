"""Which of gpumap's commands is asked for, and what there is."""

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Sequence

from gpumap.command.arguments import parsers
from gpumap.command.printing import printed, say

__all__ = ["main"]

_OVERVIEW = """\
gpumap: which GPU does this process train on?

  gpumap show        what this process would train on, and why; changes nothing
                     torchrun --nproc-per-node 2 -m gpumap show
  gpumap run         runs a script as the rank that a launcher started
                     srun --ntasks-per-node 4 gpumap run train.py --epochs 3
  gpumap env         prints what run would set for the script, for a shell
                     eval "$(gpumap env)"
  gpumap completion  prints the completion of these words, for a shell
                     eval "$(gpumap completion bash)"

Each has its options in --help. `python -m gpumap` is the same as `gpumap`.
Ends with 0, or with 2 if the arguments are wrong."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; return its exit code.

    Without arguments print what there is. 2 if no command could be run as asked.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        return 0 if printed(_OVERVIEW) else 2
    name, *rest = words
    if name not in _COMMANDS:
        say(f"gpumap: {_what_to_write(words)}")
        return 2
    try:
        return _ended(name, rest)
    except KeyboardInterrupt:
        # Whoever started this is to see what a program without a handler shows.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise


def _ended(name: str, words: Sequence[str]) -> int:
    """Run a command; where a shell evaluates env, print its failure as a command.

    The exit code of `eval "$(gpumap env)"` is that of the last command in it.
    """
    for_people = {"--json", "--table", "-h", "--help"} & set(words)
    code = 1
    try:
        code = _COMMANDS[name](_asked(name, words))
    finally:
        if code and name == "env" and not for_people:
            printed("false")
    return code


def _asked(name: str, words: Sequence[str]) -> argparse.Namespace:
    """Return what a command's words ask for; end with 2 if they are wrong."""
    _, each = parsers()
    parser = each[name]
    asked, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(
            f"{unknown[0]!r} is not understood: {parser.prog} --help tells all"
        )
    if name == "run" and not asked.script:
        parser.error("which script? Write gpumap run [options] train.py [arguments]")
    return asked


def _show(asked: argparse.Namespace) -> int:
    from gpumap.command.show import show  # noqa: PLC0415 - who asks pays

    return show(asked)


def _run(asked: argparse.Namespace) -> int:
    from gpumap.command.run import run  # noqa: PLC0415 - who asks pays

    return run(asked)


def _env(asked: argparse.Namespace) -> int:
    from gpumap.command.env import env  # noqa: PLC0415 - who asks pays

    return env(asked)


def _completion(asked: argparse.Namespace) -> int:
    from gpumap.command.completion import completion  # noqa: PLC0415 - who asks pays

    return completion(asked)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "show": _show,
    "run": _run,
    "env": _env,
    "completion": _completion,
}


def _what_to_write(words: Sequence[str]) -> str:
    """Return one sentence about words that do not begin with a command."""
    first = words[0]
    named = [word for word in words if word in _COMMANDS]
    script = any(word.endswith(".py") for word in words)
    if named:
        words = [word for word in words if word != named[0]]
    elif not script and not first.startswith("-"):
        return f"there is no command {first!r}: write {_listed(list(_COMMANDS))}."
    command = named[0] if named else "run" if script else "show"
    return f"a command comes first: write gpumap {command} {shlex.join(words)}"


def _listed(names: Sequence[str]) -> str:
    gpumaps = [f"gpumap {name}" for name in names]
    return f"{', '.join(gpumaps[:-1])} or {gpumaps[-1]}"

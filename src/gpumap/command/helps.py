"""What --help says of each command, but for its options."""

from typing import NamedTuple

__all__ = ["HELPS", "SHELLS", "Help"]

SHELLS = ("bash", "zsh", "tcsh")


class Help(NamedTuple):
    """The texts of a command's help.

    Attributes:
        usage: What follows the command's name.
        summary: A few words, for completion.
        first: What it does, and what the other commands are for.
        last: Examples, and what its exit codes mean.
    """

    usage: str
    summary: str
    first: str
    last: str


_SHOW = Help(
    "[options]",
    "show which GPU this process would train on",
    """\
Show which GPU this process would train on, and why; change nothing.
`gpumap run` runs a script there, `gpumap env` prints its variables for a shell.""",
    """\
gpumap show --machine dgx1-v100 --nproc 4 --strategy linked
gpumap show --save here.json            then GPUMAP_REHEARSAL=here.json
Ends with 0; 1: no session could start; 2: bad arguments, or it cannot print.""",
)
_RUN = Help(
    "[options] train.py [arguments]",
    "run a script as the rank that the launcher started",
    """\
Run a script as the rank that a launcher started; cuda:LOCAL_RANK is its GPU.
`gpumap show` shows that and runs nothing, `gpumap env` prints it for a shell.""",
    "Ends as the script does; before it with 1: a check failed; 2: bad arguments.",
)
_ENV = Help(
    "[options]",
    "print what run would set, for a shell",
    """\
Print what `gpumap run` sets for a script: eval "$(gpumap env)", or containers.
`gpumap run` runs the script and holds its device, `gpumap show` explains it.""",
    "Ends with 0; 1: a check failed; 2: bad arguments, or it cannot print.",
)
_COMPLETION = Help(
    "|".join(SHELLS),
    "print a shell's completion of these words",
    """\
Print what makes a shell complete the options, strategies and machines of
`gpumap show`, `gpumap run` and `gpumap env`. For bash, in ~/.bashrc:
    eval "$(gpumap completion bash)"    with the extra gpumap-torch[completion]""",
    "Ends with 0; 2: bad arguments, shtab is not installed, or it cannot print.",
)

HELPS = {"show": _SHOW, "run": _RUN, "env": _ENV, "completion": _COMPLETION}
"""By the command's name."""

"""A parser whose errors are one sentence, and what its options do besides storing."""

import argparse
from collections.abc import Mapping
from typing import ClassVar, NoReturn, cast

__all__ = ["File", "Machine", "Parser", "Refused", "Script"]


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one sentence, and no usage before it."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and end with 2."""
        self.exit(2, f"{self.prog}: {message}\n")


class File(argparse.Action):
    """Stores a file's name.

    Attributes:
        complete: How each shell completes it, in shtab's words.
    """

    complete: ClassVar[Mapping[str, str]] = {
        "bash": "_shtab_compgen_files",
        "zsh": "_files",
        "tcsh": "f",
    }

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse's own signature
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Store it."""
        setattr(namespace, self.dest, values)


class Machine(File):
    """Stores a machine's name or a file's; completion.py defines the functions."""

    complete: ClassVar[Mapping[str, str]] = {
        "bash": "_gpumap_machine_or_file",
        "zsh": "_gpumap_machine_or_file",
        "tcsh": "f",
    }


class Script(File):
    """Stores the first word as script, and all that follow as its arguments."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Store both."""
        words = [str(word) for word in cast("list[object]", values)]
        if words[:1] == ["--"]:  # Python 3.13 leaves it out itself
            del words[0]
        namespace.script = words[0] if words else None
        namespace.arguments = words[1:]


class Refused(argparse.Action):
    """An option that another command has; const says what to write instead."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002
        values: object,  # noqa: ARG002
        option_string: str | None = None,
    ) -> None:
        """End with 2."""
        parser.error(f"{option_string}: {self.const}")

"""README's recording is what its commands print."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.programs import run_program

README = Path(__file__).parent.parent / "README.md"
END = "-- the next command --"


def block(language: str) -> str:
    """Return README's first block of a language."""
    found = re.search(rf"(?ms)^```{language}\n(.*?)^```$", README.read_text())
    assert found
    return found[1]


def recorded() -> list[tuple[str, str]]:
    """Return each command of the recording, with what it printed."""
    _, *parts = re.split(r"(?m)^\$ ", block("console"))
    lines = [part.partition("\n") for part in parts]
    return [(command, printed) for command, _, printed in lines]


def apart_from_numbers(text: str) -> list[str]:
    """Return lines in an order that no race decides, without what a loss comes to.

    torchrun's ranks write a line and its end apart: another line may come between.
    """
    lines = re.sub(r"loss \d+\.\d{4}", "loss\n", text).splitlines()
    return sorted(line for line in lines if line)


@pytest.mark.timeout(300)
def test_the_recording_is_what_its_commands_print(tmp_path: Path) -> None:
    """The commands run one after another in one shell, beside README's train.py."""
    folder = Path(sys.executable).parent
    for program in ("bash", "torchrun", "gpumap"):
        if shutil.which(program, path=f"{folder}:{os.environ['PATH']}") is None:
            pytest.skip(f"{program} is not installed")
    (tmp_path / "train.py").write_text(block("python"))
    commands = [command for command, _ in recorded()]
    script = "".join(f"{command}\necho '{END}'\n" for command in commands)
    done = run_program(
        ["bash", "--norc", "-c", script],
        {"PATH": f"{folder}:{os.environ['PATH']}"},
        cwd=tmp_path,
        stderr=subprocess.STDOUT,
        timeout=280,
    )
    outputs = done.stdout.split(f"{END}\n")[:-1]
    assert len(outputs) == len(commands), done.stdout
    for (command, printed), output in zip(recorded(), outputs, strict=True):
        assert apart_from_numbers(output) == apart_from_numbers(printed), command
    assert (tmp_path / "model.pt").is_file()


def test_each_link_leads_to_a_file_of_the_repository() -> None:
    """Pages, scripts and the picture are where README says."""
    links = re.findall(r'\]\(([^)#]+)|src="(.*?)"', README.read_text())
    assert len(links) > 20
    assert not [
        link for link in map("".join, links) if not (README.parent / link).exists()
    ]

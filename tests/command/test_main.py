"""`gpumap`: what there is, and what is said of words that are none of it."""

import sys

import pytest

from gpumap.command.main import main
from helpers.programs import run_python

Shown = pytest.CaptureFixture[str]
COMMANDS = ["show", "run", "env", "completion"]


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_alone_it_says_what_there_is(words: list[str], capsys: Shown) -> None:
    """Each of the four commands stands there with an example; the exit code is 0."""
    assert main(words) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert out.count(f"gpumap {command}") >= 2
    assert len(out.splitlines()) <= 23
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_a_help_fits_on_a_screen_and_names_the_others(
    command: str, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 lines of 80 columns one is left for the prompt; exit codes are told."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    first = "\n".join(lines[2:5])
    assert all(f"`gpumap {other}`" in first for other in {*COMMANDS[:3]} - {command})
    assert "2: bad arguments" in lines[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--gpus 2,3", "a command comes first: write gpumap show --gpus 2,3"),
        ("--json", "a command comes first: write gpumap show --json"),
        ("train.py", "a command comes first: write gpumap run train.py"),
        (
            "--own train.py -x",
            "a command comes first: write gpumap run --own train.py -x",
        ),
        ("--json env", "a command comes first: write gpumap env --json"),
        (
            "start",
            "there is no command 'start': write gpumap show, gpumap run, gpumap env or "
            "gpumap completion.",
        ),
    ],
)
def test_words_without_a_command_are_told_with_what_to_write(
    words: str, told: str, capsys: Shown
) -> None:
    """One sentence on stderr has the line to write; the exit code is 2."""
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.err == f"gpumap: {told}\n"
    assert not captured.out


@pytest.mark.parametrize("command", ["show", "run", "env"])
def test_an_unknown_option_is_told_in_one_sentence(command: str, capsys: Shown) -> None:
    """The sentence begins with the command's name; the exit code is 2."""
    with pytest.raises(SystemExit) as caught:
        main([command, "--fast"])
    assert caught.value.code == 2
    told = f"gpumap {command}: '--fast' is not understood: gpumap {command} --help"
    assert capsys.readouterr().err.startswith(told)


def test_an_option_is_not_guessed_from_its_beginning(capsys: Shown) -> None:
    """An option that is added later so changes no command line."""
    with pytest.raises(SystemExit):
        main(["show", "--over"])
    assert "'--over' is not understood" in capsys.readouterr().err


def test_the_help_of_run_imports_neither_torch_nor_show() -> None:
    """Torch takes seconds to import, and the script that follows imports it again."""
    done = run_python("-X", "importtime", "-m", "gpumap", "run", "--help")
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "gpumap.command.arguments" in imported
    unwanted = {"torch", "numpy", "pynvml", "shtab", "gpumap.command.show"}
    unwanted |= {"gpumap.runtime", "gpumap.detect"}
    assert not imported & unwanted


def test_without_a_standard_output_the_list_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    """The exit code is 2, and stderr says why."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "gpumap: nothing could be printed: standard output is closed\n"
    )

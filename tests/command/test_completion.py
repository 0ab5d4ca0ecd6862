"""`gpumap completion`: what a shell completes."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from gpumap.command.main import main
from helpers.programs import run_program

Shown = pytest.CaptureFixture[str]
STRATEGIES = {"local_rank", "explicit", "modulo", "scored", "linked", "idle", "closest"}


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script for bash, and two files to complete."""
    pytest.importorskip("shtab", reason="shtab is not installed")
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    folder = tmp_path_factory.mktemp("completion")
    made = run_program([sys.executable, "-m", "gpumap", "completion", "bash"])
    assert made.returncode == 0, made.stderr
    (folder / "gpumap.bash").write_text(made.stdout)
    (folder / "train.py").touch()
    (folder / "here.json").touch()
    return folder


def completed(bash: Path, line: str) -> set[str]:
    """Return what bash offers for the last word of a line, by its own registration."""
    words = line.split(" ")
    script = f"""
        source ./gpumap.bash
        function=$(complete -p gpumap | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
        COMP_WORDS=({shlex.join(words)})
        COMP_CWORD={len(words) - 1}
        "$function" gpumap {shlex.quote(words[-1])} {shlex.quote(words[-2])}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = run_program(["bash", "--norc", "-c", script], cwd=bash)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gpumap ", {"show", "run", "env", "completion"}),
        ("gpumap r", {"run"}),
        ("gpumap show --ma", {"--machine"}),
        ("gpumap run --no", {"--no-python", "--no-roll-call"}),
        ("gpumap run --np", set[str]()),
        ("gpumap run --strategy ", STRATEGIES),
        ("gpumap env --strategy ", STRATEGIES - {"idle"}),
        ("gpumap show --machine dgx1-", {"dgx1-p100", "dgx1-v100"}),
        ("gpumap show --machine her", {"here.json"}),
        ("gpumap run tr", {"train.py"}),
        ("gpumap run --own --gpus 2 tr", {"train.py"}),
        ("gpumap completion ", {"bash", "zsh", "tcsh"}),
    ],
)
def test_bash_completes(bash: Path, line: str, offered: set[str]) -> None:
    """Options that are refused are not offered."""
    assert completed(bash, line) == offered


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_the_other_shells_have_a_script(shell: str, capsys: Shown) -> None:
    """It names all commands; where the shell is there, it reads the script."""
    pytest.importorskip("shtab", reason="shtab is not installed")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("gpumap", "show", "run", "env", "roll-call", "exclusive"):
        assert word in script
    if shutil.which(shell) is not None:
        read = run_program([shell, "-n"], stdin=None, input=script)
        assert read.returncode == 0, read.stderr


def test_without_shtab_it_says_what_to_install(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence names the extra; the exit code is 2."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err == (
        "gpumap completion: shtab is not installed, which makes it: "
        "pip install 'gpumap-torch[completion]'\n"
    )


def test_a_shell_that_is_not_known_is_told(capsys: Shown) -> None:
    """One sentence lists those that are; the exit code is 2."""
    with pytest.raises(SystemExit) as caught:
        main(["completion", "csh"])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("gpumap completion: argument shell: invalid choice: 'csh'")
    assert err.count("\n") == 1

"""What the words after `gpumap run` and `gpumap env` ask for."""

import argparse
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.command import main as module
from gpumap.command.main import main

Shown = pytest.CaptureFixture[str]


def asked_for(command: str, words: Sequence[str]) -> argparse.Namespace:
    """Return what a command would be called with; 7 is its exit code."""
    seen: list[argparse.Namespace] = []

    def record(asked: argparse.Namespace) -> int:
        seen.append(asked)
        return 7

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(module)["_COMMANDS"], command, record)
        assert main([command, *words]) == 7
    [asked] = seen
    return asked


def refused(words: list[str], capsys: Shown) -> str:
    """Return what is said on stderr of words that end with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out in ("", "false\n")  # what a shell evaluates fails, too
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_script_alone_is_run_as_a_session_would_by_default() -> None:
    """All options have the defaults of a session."""
    assert vars(asked_for("run", ["train.py"])) == {
        "script": "train.py",
        "arguments": [],
        "module": False,
        "no_python": False,
        "strategy": None,
        "gpus": None,
        "scores": None,
        "bind": None,
        "claim": None,
        "start_timeout": 300.0,
        "oversubscribe": False,
        "own": False,
        "roll_call": True,
    }


def test_all_options_stand_before_the_script() -> None:
    """Each is read as the session's argument of the same name."""
    words = (
        "--strategy scored --gpus 2,GPU-5c --scores 2=9,GPU-5c=1 --bind numa --claim"
    )
    words += " --start-timeout 12.5 --oversubscribe --own --no-roll-call -m a.b 1"
    assert vars(asked_for("run", words.split())) == {
        "script": "a.b",
        "arguments": ["1"],
        "module": True,
        "no_python": False,
        "strategy": "scored",
        "gpus": [2, "GPU-5c"],
        "scores": {2: 9.0, "GPU-5c": 1.0},
        "bind": "numa",
        "claim": True,
        "start_timeout": 12.5,
        "oversubscribe": True,
        "own": True,
        "roll_call": False,
    }


def test_from_the_script_on_all_words_are_its_own() -> None:
    """That holds for words that look like gpumap's options, too."""
    words = "--gpus 2 train.py --gpus 7 -m x -- y --nproc 4 --help -- --s -n"
    asked = asked_for("run", words.split())
    assert asked.gpus == [2]
    assert asked.script == "train.py"
    assert asked.arguments == words.split()[3:]
    assert not asked.module


WORD = st.one_of(
    st.text(),
    st.sampled_from(["--", "-", "-m", "-n", "-np", "--help", "--gpus", "--gpus=1"]),
    st.sampled_from(
        ["--s", "--own", "-h", "--no", "@file", "-1", "run", "-no", "-x=1"]
    ),
)


@given(
    own=st.lists(st.sampled_from(["--own", "--gpus=1", "--claim", "-m"]), unique=True),
    words=st.lists(WORD),
)
def test_no_word_of_a_script_is_lost_or_read(own: list[str], words: list[str]) -> None:
    """Whatever the words are, they reach the script as they were written."""
    asked = asked_for("run", [*own, "train.py", *words])
    assert (asked.script, asked.arguments) == ("train.py", words)
    assert asked.module == ("-m" in own)
    assert asked.own == ("--own" in own)


def test_two_dashes_end_the_options_of_gpumap() -> None:
    """A script may have a name that looks like an option."""
    asked = asked_for("run", ["--own", "--", "-train.py", "--", "x"])
    assert (asked.script, asked.arguments) == ("-train.py", ["--", "x"])


@pytest.mark.parametrize("words", [[], ["--own"], ["-m"], ["--gpus", "2"], ["--", ""]])
def test_a_missing_script_is_asked_for(words: list[str], capsys: Shown) -> None:
    """The sentence has what to write."""
    assert refused(["run", *words], capsys) == (
        "gpumap run: which script? Write gpumap run [options] train.py [arguments]\n"
    )


def test_a_module_is_no_program(capsys: Shown) -> None:
    """-m and --no-python exclude each other, as torchrun's do."""
    told = refused(["run", "-m", "--no-python", "x"], capsys)
    assert told == "gpumap run: argument --no-python: not allowed with argument -m\n"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        *(("--nproc 4", "--nproc"), ("--nproc=4", "--nproc"), ("--nproc", "--nproc")),
        *(("-n 4", "-n"), ("-n4", "-n"), ("-np 4", "-np"), ("--nprocs=4", "--nprocs")),
        ("--nproc-per-node=4", "--nproc-per-node"),
        ("--nproc_per_node 4", "--nproc_per_node"),
    ],
)
def test_a_number_of_processes_is_told_who_starts_them(
    words: str, option: str, capsys: Shown
) -> None:
    """`gpumap run` starts no processes, and says what does."""
    assert refused(["run", *words.split(), "train.py"], capsys) == (
        f"gpumap run: {option}: run starts no processes: write torchrun "
        "--nproc-per-node N -m gpumap run train.py, or start them from Python with "
        "gpumap.spawn(…, nprocs=N)\n"
    )


@pytest.mark.parametrize("command", ["run", "env"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(
            ("--start-timeout", text)
            for text in ("0", "-1", "nan", "inf", "soon", "1e9")
        ),
        *(("--gpus", "2,,3"), ("--scores", "speed"), ("--strategy", "fastest")),
    ],
)
def test_a_value_that_cannot_be_read_is_told_with_its_option(
    command: str, option: str, value: str, capsys: Shown
) -> None:
    """One sentence begins with the command and the option; the exit code is 2."""
    told = refused([command, f"{option}={value}", "train.py"], capsys)
    assert told.startswith(f"gpumap {command}: argument {option}: ")


def test_an_environment_has_what_run_has_to_be_read_alike() -> None:
    """Nothing is bound or claimed for a command that ends at once."""
    assert vars(asked_for("env", ["--gpus", "1", "--own", "--json"])) == {
        "strategy": None,
        "gpus": [1],
        "scores": None,
        "bind": None,
        "claim": None,
        "start_timeout": 300.0,
        "oversubscribe": False,
        "own": True,
        "roll_call": True,
        "json": True,
        "table": False,
    }


def test_idle_devices_are_held_by_run_and_not_by_env(capsys: Shown) -> None:
    """A lock would end with `gpumap env`, before the script starts."""
    assert asked_for("run", ["--strategy", "idle", "train.py"]).strategy == "idle"
    assert refused(["env", "--strategy", "idle"], capsys) == (
        "gpumap env: argument --strategy: idle holds devices as long as a script runs: "
        "write gpumap run --strategy idle train.py\n"
    )


def test_json_is_no_table(capsys: Shown) -> None:
    """--json and --table exclude each other."""
    told = refused(["env", "--json", "--table"], capsys)
    assert told == "gpumap env: argument --table: not allowed with argument --json\n"


def test_the_help_of_run_tells_the_price_of_own(capsys: Shown) -> None:
    """Its source are answers of NCCL's maintainers: NVIDIA/nccl issues 129 and 1066."""
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "The price: NCCL may not find NVLink, nor CUDA IPC reach a device" in words

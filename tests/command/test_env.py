"""`gpumap env`: what it prints, and what a shell makes of it."""

import json
import signal
import sys
from pathlib import Path

import pytest

from helpers.environments import rank_environment
from helpers.jobs import free_port
from helpers.programs import run_program, run_python, start_python
from helpers.ranks_of_run import ended

DGX = {"GPUMAP_REHEARSAL": "dgx-a100"}
LAUNCHED = rank_environment(1, 2, 29500) | DGX
ALONE = ["-m", "gpumap", "env", "--no-roll-call"]
EVALUATED = f'eval "$({sys.executable} -m gpumap env "$@")" && '


def test_a_shell_that_evaluates_it_has_the_variables() -> None:
    """Rank 1 of 2 on devices 5 and 2, and GPUMAP_GPUS is used up."""
    asks = 'echo "$RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES ${GPUMAP_GPUS-unset}"'
    command = ["sh", "-c", EVALUATED + asks, "sh", "--no-roll-call"]

    done = run_program(command, LAUNCHED | {"GPUMAP_GPUS": "5,2"})

    assert done.stdout == "1 1 5,2 unset\n"


def test_a_failure_fails_the_shell_that_evaluates_it() -> None:
    """What comes after eval "$(gpumap env …)" && is not started."""
    command = ["sh", "-c", EVALUATED + "echo started", "sh", "--gpus", "9"]

    done = run_program(command, DGX)

    assert (done.returncode, done.stdout) == (1, "")
    assert "DeviceError: there is no device 9 on dgx-a100." in done.stderr


@pytest.mark.parametrize(
    "words", ["--bad", "--strategy idle", "--gpus 1,,2", "--start-timeout -1"]
)
def test_words_that_are_wrong_fail_the_shell_too(words: str) -> None:
    """The exit code of eval is not 0, whatever ended `gpumap env`."""
    command = ["sh", "-c", EVALUATED + "echo started", "sh", *words.split()]

    done = run_program(command, DGX)

    assert (done.returncode, done.stdout) == (1, "")


def test_a_signal_while_it_waits_fails_the_shell_too() -> None:
    """SIGTERM and SIGINT end it as a command that has failed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        environ = rank_environment(0, 2, free_port()) | DGX
        waits = start_python("-m", "gpumap", "env", environ=environ, stderr=-1)
        signal.signal(signal.SIGINT, before)
        assert waits.stderr is not None
        for line in waits.stderr:
            if "rank 1" in line:
                break
        waits.send_signal(number)
        done = ended(waits)

        assert done.out == "false\n"
        assert done.code in (128 + number, -number)


def test_json_is_one_object_of_texts() -> None:
    """Nothing else is printed on stdout."""
    done = run_python(*ALONE, "--json", "--gpus", "5,2", environ=LAUNCHED)

    assert json.loads(done.stdout) == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "NODE_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "CUDA_VISIBLE_DEVICES": "5,2",
        "GPUMAP_RUN": "1/2 torch variables",
    }


def test_a_table_says_which_device_and_why() -> None:
    """It begins with the rank and its device, as they are numbered now."""
    done = run_python(*ALONE, "--table", "--gpus", "5,2", environ=LAUNCHED)

    first, second = done.stdout.splitlines()[:2]
    assert first == "rank 1 of 2 on cuda:2 (GPU-a1000002…): explicit: gpus[local_rank]"
    assert second == "  RANK                  1"


def test_a_failed_check_is_no_json() -> None:
    """The exit code is 1, and stdout is empty."""
    done = run_python(*ALONE, "--json", "--gpus", "9", environ=DGX)

    assert (done.returncode, done.stdout) == (1, "")


def test_the_ranks_meet_unless_told_not_to(tmp_path: Path) -> None:
    """Two that take themselves for rank 0 are told so; alone, each is believed."""
    port = free_port()
    environ = rank_environment(0, 2, port) | DGX | {"TMPDIR": str(tmp_path)}
    words = ["-m", "gpumap", "env", "--start-timeout", "20"]

    ranks = [start_python(*words, environ=environ, stderr=-1) for _ in range(2)]
    done = [ended(process) for process in ranks]

    assert [(x.code, x.out) for x in done] == [(1, "false\n")] * 2
    assert all("rank 0" in x.err for x in done)

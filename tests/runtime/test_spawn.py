"""One process for each device, what they return, and how they fail."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import spawnjobs
import torch
from environments import clean_environment
from nbclient import NotebookClient

import gpumap

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start from an environment in which nothing was launched."""
    for name in ("RANK", "WORLD_SIZE", "GPUMAP_GPUS", "GPUMAP_REHEARSAL"):
        monkeypatch.delenv(name, raising=False)


def test_results_come_in_the_order_of_the_ranks() -> None:
    """Each process is a rank of its own; arguments reach all of them."""
    first, second, third = gpumap.spawn(spawnjobs.who, "a", nprocs=3, how="b")
    assert [r["rank"] for r in (first, second, third)] == [0, 1, 2]
    assert second["size"] == 3
    assert second["launcher"] == "gpumap.spawn"
    assert second["words"] == (("a",), {"how": "b"})
    assert len({first["pid"], second["pid"], third["pid"], os.getpid()}) == 4


def test_ranks_train_together() -> None:
    """Inputs 0 and 3 over four rows: the mean gradient is 6."""
    assert gpumap.spawn(spawnjobs.train, 3.0, nprocs=2) == [[[6.0, 6.0]]] * 2


def test_gpus_are_the_pool_of_the_sessions_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the order of the ranks; as many processes as devices."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "dgx-a100")
    found = gpumap.spawn(spawnjobs.who, gpus=[5, "GPU-a1000002"])
    assert [rank["device"] for rank in found] == ["cuda:5", "cuda:2"]


def test_without_gpus_there_is_a_process_for_each_visible_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under the mask."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "dgx-a100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,4")
    found = gpumap.spawn(spawnjobs.who)
    assert [rank["device"] for rank in found] == ["cuda:0", "cuda:1"]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")
def test_on_the_cpu_it_is_one_process_unless_told() -> None:
    """Naming gpus where there is none is an error, as in a session."""
    [alone] = gpumap.spawn(spawnjobs.who)
    assert (alone["size"], alone["device"]) == (1, "cpu:0")
    with pytest.raises(gpumap.DeviceError, match="there is no device 2, 3"):
        gpumap.spawn(spawnjobs.who, gpus=[2, 3])


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user has said how many."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    found = gpumap.spawn(spawnjobs.who, nprocs=2)
    assert [rank["threads"] for rank in found] == [share, share]


def test_a_users_error_is_raised_with_its_type_rank_and_traceback() -> None:
    """As if the function had been called here."""
    with pytest.raises(KeyError) as caught:
        gpumap.spawn(spawnjobs.fails, "raise", nprocs=2)
    assert caught.value.args == ("no such sample",)
    notes = "\n".join(caught.value.__notes__)
    assert "gpumap: rank 1 (pid " in notes
    assert "on cpu, raised it; exit code 1. There:" in notes
    assert 'raise KeyError("no such sample")' in notes


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("stubborn", "ended with Stubborn: 1 and 2."),
        ("exit", "ended with SystemExit: 3."),
        ("interrupt", "ended with KeyboardInterrupt."),
        ("_exit", "ended with exit code 7 and returned nothing."),
        ("kill", "was killed by SIGKILL."),
        ("alone", "was killed by SIGKILL."),
    ],
)
def test_what_is_no_ordinary_error_is_told_with_rank_and_device(
    how: str, said: str
) -> None:
    """Also while the others notice nothing, who are ended then."""
    with pytest.raises(gpumap.SessionError) as caught:
        gpumap.spawn(spawnjobs.fails, how, nprocs=2)
    assert caught.value.happened.startswith("rank 1 (pid ")
    assert caught.value.happened.endswith(f", on cpu, {said}")


def test_outside_of_a_session_too_a_failing_rank_ends_the_others() -> None:
    """They sleep for a minute, and would not notice."""
    began = time.monotonic()
    with pytest.raises(OSError, match="disc full"):
        gpumap.spawn(spawnjobs.without_a_session, 0, nprocs=2)
    assert time.monotonic() - began < 30


def test_a_rank_that_exits_with_0_returned_nothing() -> None:
    """That is no error."""
    assert gpumap.spawn(spawnjobs.ends_early, nprocs=2) == [None, "returned"]


def test_a_result_that_cannot_be_sent_is_told() -> None:
    """With what it was."""
    with pytest.raises(
        gpumap.SessionError, match="cannot be sent to the parent: a lock"
    ):
        gpumap.spawn(spawnjobs.returns_a_lock, nprocs=1)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"nprocs": 0}, "nprocs=0 is not a number of processes."),
        ({"nprocs": True}, "nprocs=True is not a number of processes."),
        ({"gpus": []}, "nprocs=0 is not a number of processes."),
        ({"gpus": 2}, "gpus=2 is not a list of devices."),
        ({"gpus": "2,3"}, "gpus='2,3' is not a list of devices."),
        ({"nprocs": 1, "start_timeout": 0}, "start_timeout=0 is not a time."),
    ],
)
def test_wrong_arguments_are_told_before_anything_starts(
    how: dict[str, object], said: str
) -> None:
    """In the words of a session."""
    with pytest.raises(gpumap.GpumapError) as caught:
        gpumap.spawn(spawnjobs.who, **how)  # type: ignore[arg-type]
    assert caught.value.happened == said


def test_a_lambda_travels_by_cloudpickle_or_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The extra is not needed for functions of a module."""
    factor = 3
    assert gpumap.spawn(lambda x: x * factor, 2, nprocs=2) == [6, 6]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert len(gpumap.spawn(spawnjobs.who, nprocs=1)) == 1
    with pytest.raises(gpumap.SessionError) as caught:
        gpumap.spawn(lambda x: x * factor, 2, nprocs=2)
    assert "pip install gpumap-torch[notebook]" in caught.value.hint


def run_script(
    tmp_path: Path, text: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of a user's."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, str(path)],
        env={**clean_environment(), **environ},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_script_without_the_main_guard_is_told_what_to_add(tmp_path: Path) -> None:
    """And starts no more processes than it asked for."""
    done = run_script(
        tmp_path,
        """
        import gpumap

        def train():
            return 1

        print("importing", flush=True)
        gpumap.spawn(train, nprocs=2)
        """,
    )
    assert done.returncode == 1
    assert 2 <= done.stdout.count("importing") <= 3
    *_, last = done.stderr.split("gpumap.errors.")
    assert last.startswith("SessionError: rank ")
    assert 'under `if __name__ == "__main__":`' in last


def test_functions_of_a_script_are_found_by_its_processes(tmp_path: Path) -> None:
    """With the guard; classes too."""
    done = run_script(
        tmp_path,
        """
        import gpumap

        class Result:
            def __init__(self, value):
                self.value = value

        def train(x):
            return Result(x + 1)

        if __name__ == "__main__":
            print([r.value for r in gpumap.spawn(train, 1, nprocs=2)])
        """,
    )
    assert done.stdout == "[2, 2]\n", done.stderr


def test_a_script_that_imports_for_too_long_is_told(tmp_path: Path) -> None:
    """With the ranks that did not start."""
    done = run_script(
        tmp_path,
        """
        import time
        import gpumap

        def train():
            return 1

        if __name__ == "__main__":
            gpumap.spawn(train, nprocs=2, start_timeout=10)
        else:
            time.sleep(60)
        """,
    )
    assert "SessionError: ranks 0, 1 did not start within 10 s." in done.stderr


WAITS = """
import sys
sys.path.insert(0, {here!r})
import gpumap, spawnjobs

if __name__ == "__main__":
    gpumap.spawn(spawnjobs.sleeps, {folder!r}, nprocs=2)
"""


def pids_of(folder: Path) -> list[int]:
    """Return the ranks' process ids as soon as both are there."""
    for _ in range(600):
        if all((folder / n).exists() and (folder / n).read_text() for n in "01"):
            return [int((folder / n).read_text()) for n in "01"]
        time.sleep(0.1)
    pytest.fail("the ranks did not start")


def lives(pid: int) -> bool:
    """Tell whether a process runs, a zombie not counting."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False


def ctrl_c(process: subprocess.Popen[str]) -> None:
    """Interrupt the whole group, as a terminal does."""
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("end", [ctrl_c, subprocess.Popen.kill])
def test_the_end_of_the_parent_is_the_end_of_all(
    tmp_path: Path, end: Callable[[subprocess.Popen[str]], None]
) -> None:
    """Ctrl-C at once, and a killed parent too leaves no orphan."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS.format(here=str(HERE), folder=str(tmp_path)))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell may have left it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    pids = pids_of(tmp_path)
    began = time.monotonic()
    end(process)
    process.communicate(timeout=60)
    while any(map(lives, pids)) and time.monotonic() - began < 30:
        time.sleep(0.05)
    assert not any(map(lives, pids))
    assert process.returncode in (-signal.SIGINT, -signal.SIGKILL)


def test_a_function_of_a_notebook_is_spawned_from_a_real_kernel() -> None:
    """By cloudpickle; its result comes back, and its error with its own type."""
    cells = [
        "import torch, gpumap\n"
        "class Bad(Exception):\n    pass\n"
        "def train(x):\n"
        "    with gpumap.ddp_session(torch.nn.Linear(2, 1)) as m:\n"
        "        m(torch.ones(1, 2)).sum().backward()\n"
        "        return gpumap.current().rank + x\n"
        "def fails():\n    raise Bad('batch')\n",
        "gpumap.spawn(train, 10, nprocs=2)",
        "try:\n    gpumap.spawn(fails, nprocs=2)\n"
        "except Bad as error:\n    print('caught', error)",
    ]
    read: Any = nbformat.reads  # untyped
    book = read(
        json.dumps(
            {
                "cells": [
                    {
                        "id": f"cell{number}",
                        "cell_type": "code",
                        "source": cell,
                        "outputs": [],
                        "metadata": {},
                        "execution_count": None,
                    }
                    for number, cell in enumerate(cells)
                ],
                "metadata": {},
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        ),
        as_version=4,
    )
    NotebookClient(book, timeout=100, kernel_name="python3").execute()
    assert book.cells[1].outputs[0].data["text/plain"] == "[10, 11]"
    assert "caught batch" in book.cells[2].outputs[-1].text

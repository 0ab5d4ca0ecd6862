"""One process for each device, what they return, and how they fail."""

import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

import gpumap
from gpumap.mapping.device_refs import DeviceRef
from helpers import spawnjobs
from helpers.programs import run_python, start_python

HERE = Path(__file__).parent.parent / "helpers"


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


@pytest.mark.parametrize(
    "gpus",
    [
        ["cuda:5", "cuda:2"],
        [torch.device("cuda", 5), torch.device("cuda:2")],
        [np.int64(5), np.uint8(2)],
    ],
    ids=["text", "torch.device", "numpy"],
)
def test_gpus_may_be_named_as_other_libraries_name_them(
    monkeypatch: pytest.MonkeyPatch, gpus: list[DeviceRef]
) -> None:
    """In gpus, in scores, and, as texts, in GPUMAP_GPUS."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "dgx-a100")
    found = gpumap.spawn(spawnjobs.who, gpus=gpus, nprocs=np.int64(2))  # type: ignore[arg-type]
    assert [rank["device"] for rank in found] == ["cuda:5", "cuda:2"]
    node = gpumap.machine("dgx-a100")
    launch = gpumap.detect_launch({})
    scored = gpumap.place(
        launch, node, gpus=gpus, scores=dict(zip(gpus, (1, 2), strict=True))
    )
    assert scored.device.index == 2


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"args": (2,)}, "train cannot be called with what spawn() was given: missing"),
        ({"factor": 3.0}, "train cannot be called with what spawn() was given: "),
    ],
)
def test_arguments_that_do_not_fit_are_told_before_anything_starts(
    how: dict[str, Any], said: str
) -> None:
    """As torch.multiprocessing.spawn takes them, for instance; no rank is passed."""
    with pytest.raises(gpumap.SessionError) as caught:
        gpumap.spawn(spawnjobs.train, nprocs=2, **how)
    assert caught.value.happened.startswith(said)
    assert "It is train(" in caught.value.seen
    assert "gpumap.current().rank" in caught.value.hint


def test_what_a_decorator_takes_are_the_arguments() -> None:
    """What functools.wraps points to takes others."""
    assert gpumap.spawn(spawnjobs.reads, nprocs=1) == ["a configuration"]


def test_one_of_the_ranks_says_who_is_awaited(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The parent hosts the store, and waits for nobody."""
    assert gpumap.spawn(spawnjobs.comes_late, 7.0, nprocs=2) == [0, 1]
    assert capfd.readouterr().err.count("rank 1 of 2 not here yet; waiting for ") == 1


def test_ranks_of_a_launcher_do_not_start_jobs_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two jobs would be on the same devices; the error has both ways out."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(gpumap.SessionError) as caught:
        gpumap.spawn(spawnjobs.who, nprocs=1)
    assert caught.value.happened == (
        "spawn() was called in rank 1 of 2, which torch variables started."
    )
    assert "without spawn()" in caught.value.hint
    assert "GPUMAP_LAUNCHER=none" in caught.value.hint
    monkeypatch.setenv("GPUMAP_LAUNCHER", "none")
    assert gpumap.spawn(spawnjobs.who, nprocs=1)[0]["size"] == 1


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
        ("real-time", "was killed by SIGRTMIN+3."),
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
        ({"gpus": []}, "gpus=[] is not a list of devices."),
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
    return run_python(str(path), environ=environ)


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


def test_each_process_draws_numbers_of_its_own() -> None:
    """As fresh processes do, though all are forked from one, in whichever spawn."""
    drawn = gpumap.spawn(spawnjobs.draws, nprocs=2) + gpumap.spawn(
        spawnjobs.draws, nprocs=2
    )
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 4


def test_a_seed_of_the_script_keeps_its_meaning(tmp_path: Path) -> None:
    """torch.manual_seed(0) at its top level: torch's first number is then 0.4963."""
    done = run_script(
        tmp_path,
        """
        import torch, gpumap
        torch.manual_seed(0)

        def train():
            return round(torch.rand(1).item(), 4)

        if __name__ == "__main__":
            print(gpumap.spawn(train, nprocs=2), gpumap.spawn(train, nprocs=1))
        """,
    )
    assert done.stdout == "[0.4963, 0.4963] [0.4963]\n", done.stderr


def test_the_script_reads_the_environment_of_now(tmp_path: Path) -> None:
    """At its top level as well, in a second spawn from the same server."""
    done = run_script(
        tmp_path,
        """
        import os, gpumap
        RATE = os.environ.get("RATE")

        def train():
            return RATE

        if __name__ == "__main__":
            for rate in ("0.1", "0.2"):
                os.environ["RATE"] = rate
                print(gpumap.spawn(train, nprocs=2))
        """,
    )
    assert done.stdout == "['0.1', '0.1']\n['0.2', '0.2']\n", done.stderr


def test_a_process_takes_over_what_its_parent_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever the server that it is forked from was started with."""
    gpumap.spawn(spawnjobs.draws, nprocs=1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("GPUMAP_TEST", "now")
    monkeypatch.chdir(tmp_path)
    cpus = os.sched_getaffinity(0)
    umask = os.umask(0o077)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        [found] = gpumap.spawn(spawnjobs.surroundings, "GPUMAP_TEST", nprocs=1)
    finally:
        os.umask(umask)
        os.sched_setaffinity(0, cpus)
    assert found == {
        "variable": "now",
        "threads": 3,
        "folder": str(tmp_path),
        "temporary": str(tmp_path),
        "umask": 0o077,
        "cpus": {min(cpus)},
        "method": multiprocessing.get_start_method(),
    }
    assert capfd.readouterr().out == "written to the standard output\n"


@pytest.mark.parametrize("method", [None, "fork"])
def test_data_loaders_work_as_under_torchrun(method: str | None) -> None:
    """By the start method of any process: 600 tensors and a lambda need no pickling."""
    sums = [sum(range(n, n + 100)) for n in range(0, 600, 100)]
    assert gpumap.spawn(spawnjobs.loads, method, nprocs=2) == [sums, sums]


def test_a_rank_ends_as_a_python_process_ends(tmp_path: Path) -> None:
    """Threads, atexit and multiprocessing finish what the function left to them."""
    left = gpumap.spawn(spawnjobs.leaves_work, str(tmp_path), nprocs=2)
    assert left == ["returned", "returned"]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{w}{r}" for w in ("thread", "atexit", "final") for r in "01"}


@pytest.mark.parametrize(
    ("how", "said"), [("_exit", "exit code 7"), ("kill", "SIGKILL")]
)
def test_an_exit_code_after_the_function_returned_is_told(how: str, said: str) -> None:
    """It would be the script's."""
    with pytest.raises(gpumap.SessionError) as caught:
        gpumap.spawn(spawnjobs.exits_after, how, nprocs=2)
    assert caught.value.happened.startswith("rank 1 (pid ")
    assert caught.value.happened.endswith(f"returned, and then ended with {said}.")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("only there", "ended with OnlyThere: x."),
        ("deadly", "ended with Deadly: x."),
        ("frozen", "ended with Frozen: 3."),
    ],
)
def test_an_error_that_cannot_be_loaded_arrives_in_words(kind: str, text: str) -> None:
    """With its rank, its device and where it was raised."""
    with pytest.raises(gpumap.SessionError) as caught:
        gpumap.spawn(spawnjobs.raises, kind, nprocs=2)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert caught.value.happened.startswith("rank 1 (pid ")
    assert text in caught.value.happened
    assert "on cpu" in caught.value.happened
    assert "raise kinds[kind]" in told


def test_an_error_without_a_text_arrives_itself() -> None:
    """Its type is kept."""
    with pytest.raises(spawnjobs.NoText) as caught:
        gpumap.spawn(spawnjobs.raises, "no text", nprocs=2)
    assert "rank 1 (pid" in caught.value.__notes__[-2]


@pytest.mark.parametrize("in_session", [True, False])
def test_who_failed_first_is_not_read_from_a_text(*, in_session: bool) -> None:
    """Rank 0's error speaks of something else that failed first; it is raised."""
    with pytest.raises(ValueError, match="the sanity check failed first"):
        gpumap.spawn(spawnjobs.one_after_the_other, in_session, nprocs=2)


def test_a_result_that_cannot_be_loaded_is_told() -> None:
    """With the rank that returned it."""
    with pytest.raises(gpumap.SessionError, match="what rank 0 returned cannot be"):
        gpumap.spawn(spawnjobs.returns_what_cannot_be_loaded, nprocs=1)


def test_an_argument_that_cannot_be_sent_is_told() -> None:
    """Before anything starts."""
    with pytest.raises(gpumap.SessionError, match="cannot be sent to another process"):
        gpumap.spawn(print, threading.Lock(), nprocs=1)


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
    process = start_python(
        str(script),
        stdout=None,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A shell may have left it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
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


def test_the_pool_of_the_environment_is_spawns_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPUMAP_GPUS names it for a script that names none; as many ranks as devices."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "t4x4")
    monkeypatch.setenv("GPUMAP_GPUS", "2,3")
    assert gpumap.spawn(spawnjobs.placed) == ["cuda:2", "cuda:3"]


@pytest.mark.parametrize("gpus", [[], [""], ["2,3"], [[1, 2]], "2"])
def test_what_is_no_list_of_devices_starts_no_process(gpus: Any) -> None:
    """Each entry is one device."""
    with pytest.raises(gpumap.DeviceError):
        gpumap.spawn(spawnjobs.placed, gpus=gpus)

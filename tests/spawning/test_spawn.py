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
    """Results come in the order of the ranks, and all ranks get the arguments."""
    first, second, third = gpumap.spawn(spawnjobs.who, "a", nprocs=3, how="b")
    assert [r["rank"] for r in (first, second, third)] == [0, 1, 2]
    assert second["size"] == 3
    assert second["launcher"] == "gpumap.spawn"
    assert second["words"] == (("a",), {"how": "b"})
    assert len({first["pid"], second["pid"], third["pid"], os.getpid()}) == 4


def test_ranks_train_together() -> None:
    """Two ranks average their gradients: inputs 0 and 3 over four rows give 6."""
    assert gpumap.spawn(spawnjobs.train, 3.0, nprocs=2) == [[[6.0, 6.0]]] * 2


def test_gpus_are_the_pool_of_the_sessions_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is a process for each device of gpus, and ranks are placed in its order."""
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
    """Devices in gpus and scores may be "cuda:5", torch.device or NumPy's integers."""
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
    """Arguments that the function does not take are an error before anything starts."""
    with pytest.raises(gpumap.SessionError) as caught:
        gpumap.spawn(spawnjobs.train, nprocs=2, **how)
    assert caught.value.happened.startswith(said)
    assert "It is train(" in caught.value.seen
    assert "gpumap.current().rank" in caught.value.hint


def test_what_a_decorator_takes_are_the_arguments() -> None:
    """Arguments are checked against a decorator's wrapper, not the wrapped function."""
    assert gpumap.spawn(spawnjobs.reads, nprocs=1) == ["a configuration"]


def test_one_of_the_ranks_says_who_is_awaited(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One rank prints who is missing, though the parent hosts the store."""
    assert gpumap.spawn(spawnjobs.comes_late, 7.0, nprocs=2) == [0, 1]
    assert capfd.readouterr().err.count("rank 1 of 2 not here yet; waiting for ") == 1


def test_ranks_of_a_launcher_do_not_start_jobs_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spawn() in a launcher's rank is an error, unless GPUMAP_LAUNCHER=none is set."""
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
    """Without gpus there is a process for each device of the mask."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "dgx-a100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,4")
    found = gpumap.spawn(spawnjobs.who)
    assert [rank["device"] for rank in found] == ["cuda:0", "cuda:1"]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")
def test_on_the_cpu_it_is_one_process_unless_told() -> None:
    """Without an accelerator there is one process, and gpus is an error."""
    [alone] = gpumap.spawn(spawnjobs.who)
    assert (alone["size"], alone["device"]) == (1, "cpu:0")
    with pytest.raises(gpumap.DeviceError, match="there is no device 2, 3"):
        gpumap.spawn(spawnjobs.who, gpus=[2, 3])


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OMP_NUM_THREADS each rank has an equal share of the cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    found = gpumap.spawn(spawnjobs.who, nprocs=2)
    assert [rank["threads"] for rank in found] == [share, share]


def test_a_users_error_is_raised_with_its_type_rank_and_traceback() -> None:
    """A rank's exception is raised with its type, and its traceback in the notes."""
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
    """Exits, signals and errors that cannot be pickled name the rank and its device."""
    with pytest.raises(gpumap.SessionError) as caught:
        gpumap.spawn(spawnjobs.fails, how, nprocs=2)
    assert caught.value.happened.startswith("rank 1 (pid ")
    assert caught.value.happened.endswith(f", on cpu, {said}")


def test_outside_of_a_session_too_a_failing_rank_ends_the_others() -> None:
    """A failing rank ends the others even if they sleep outside of any session."""
    began = time.monotonic()
    with pytest.raises(OSError, match="disc full"):
        gpumap.spawn(spawnjobs.without_a_session, 0, nprocs=2)
    assert time.monotonic() - began < 30


def test_a_rank_that_exits_with_0_returned_nothing() -> None:
    """A rank that calls sys.exit(0) returns None, and that is no error."""
    assert gpumap.spawn(spawnjobs.ends_early, nprocs=2) == [None, "returned"]


def test_a_result_that_cannot_be_sent_is_told() -> None:
    """A result that cannot be pickled is an error that says what it was."""
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
    """Wrong arguments of spawn() are errors that quote them."""
    with pytest.raises(gpumap.GpumapError) as caught:
        gpumap.spawn(spawnjobs.who, **how)  # type: ignore[arg-type]
    assert caught.value.happened == said


def test_a_lambda_travels_by_cloudpickle_or_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lambda needs cloudpickle; without it the error says what to install."""
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
    """Write a user's script and run it."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return run_python(str(path), environ=environ)


def test_a_script_without_the_main_guard_is_told_what_to_add(tmp_path: Path) -> None:
    """Without a main guard the error asks for one, and no further processes start."""
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
    """Functions and classes of a script with a main guard can be spawned."""
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
    """Ranks draw different random numbers, though all are forked from one server."""
    drawn = gpumap.spawn(spawnjobs.draws, nprocs=2) + gpumap.spawn(
        spawnjobs.draws, nprocs=2
    )
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 4


def test_a_seed_of_the_script_keeps_its_meaning(tmp_path: Path) -> None:
    """After torch.manual_seed(0) at the script's top level all ranks draw 0.4963."""
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
    """The script's top level sees the environment at each call of spawn()."""
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
    """A rank inherits its parent's state at the call, not the fork server's."""
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
    """DataLoader's workers are forked: 600 tensors and a lambda need no pickling."""
    sums = [sum(range(n, n + 100)) for n in range(0, 600, 100)]
    assert gpumap.spawn(spawnjobs.loads, method, nprocs=2) == [sums, sums]


def test_a_rank_ends_as_a_python_process_ends(tmp_path: Path) -> None:
    """A rank's threads, atexit and multiprocessing finalizers finish their work."""
    left = gpumap.spawn(spawnjobs.leaves_work, str(tmp_path), nprocs=2)
    assert left == ["returned", "returned"]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{w}{r}" for w in ("thread", "atexit", "final") for r in "01"}


@pytest.mark.parametrize(
    ("how", "said"), [("_exit", "exit code 7"), ("kill", "SIGKILL")]
)
def test_an_exit_code_after_the_function_returned_is_told(how: str, said: str) -> None:
    """A rank that dies after its function has returned is an error."""
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
    """An exception that cannot be unpickled becomes text, with rank and traceback."""
    with pytest.raises(gpumap.SessionError) as caught:
        gpumap.spawn(spawnjobs.raises, kind, nprocs=2)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert caught.value.happened.startswith("rank 1 (pid ")
    assert text in caught.value.happened
    assert "on cpu" in caught.value.happened
    assert "raise kinds[kind]" in told


def test_an_error_without_a_text_arrives_itself() -> None:
    """An exception whose __str__ fails keeps its type."""
    with pytest.raises(spawnjobs.NoText) as caught:
        gpumap.spawn(spawnjobs.raises, "no text", nprocs=2)
    assert "rank 1 (pid" in caught.value.__notes__[-2]


@pytest.mark.parametrize("in_session", [True, False])
def test_who_failed_first_is_not_read_from_a_text(*, in_session: bool) -> None:
    """A user's error with the words "failed first" is still the one that is raised."""
    with pytest.raises(ValueError, match="the sanity check failed first"):
        gpumap.spawn(spawnjobs.one_after_the_other, in_session, nprocs=2)


def test_a_result_that_cannot_be_loaded_is_told() -> None:
    """A result that cannot be unpickled is an error that names its rank."""
    with pytest.raises(gpumap.SessionError, match="what rank 0 returned cannot be"):
        gpumap.spawn(spawnjobs.returns_what_cannot_be_loaded, nprocs=1)


def test_an_argument_that_cannot_be_sent_is_told() -> None:
    """An argument that cannot be pickled is an error."""
    with pytest.raises(gpumap.SessionError, match="cannot be sent to another process"):
        gpumap.spawn(print, threading.Lock(), nprocs=1)


def test_a_script_that_imports_for_too_long_is_told(tmp_path: Path) -> None:
    """If importing the script exceeds start_timeout, the error names the ranks."""
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
    """Tell whether a process runs; a zombie does not count."""
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
    """Ctrl-C and the death of the parent end all ranks."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS.format(here=str(HERE), folder=str(tmp_path)))
    process = start_python(
        str(script),
        stdout=None,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A shell may have left SIGINT ignored.
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
    """A notebook's function can be spawned: its result and its exception come back."""
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
    """Without gpus there is a rank for each device of GPUMAP_GPUS."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "t4x4")
    monkeypatch.setenv("GPUMAP_GPUS", "2,3")
    assert gpumap.spawn(spawnjobs.placed) == ["cuda:2", "cuda:3"]


@pytest.mark.parametrize("gpus", [[], [""], ["2,3"], [[1, 2]], "2"])
def test_what_is_no_list_of_devices_starts_no_process(gpus: Any) -> None:
    """An argument gpus that is not a list of single devices is an error."""
    with pytest.raises(gpumap.DeviceError):
        gpumap.spawn(spawnjobs.placed, gpus=gpus)

"""Unusual surroundings: standard input, few open files, a full disk."""

import os
import re
import resource
import subprocess
from pathlib import Path

import pytest

from helpers.environments import rank_environment
from helpers.jobs import free_port
from helpers.programs import run_python, start_python

SPAWN = """
import time
import gpumap

if __name__ != "__main__":
    time.sleep({pause})


def rank_of(of):
    with gpumap.session(device="cpu"):
        return gpumap.current().rank, of


if __name__ == "__main__":
    began = time.monotonic()
    try:
        print(gpumap.spawn(rank_of, "two", nprocs=2, start_timeout={start}))
    finally:
        print("after", time.monotonic() - began)
"""
QUICK = SPAWN.format(pause=0, start=100)


def run(
    *command: str, files: int | None = None, stdin: str | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python command; files is its limit of open files."""

    def limit() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    return run_python(*command, input=stdin, environ=more, preexec_fn=limit)


def test_a_script_that_comes_from_standard_input_can_spawn() -> None:
    """spawn() works in `python - < train.py`, which leaves no file to import."""
    pytest.importorskip("cloudpickle", reason="the extra notebook is not installed")
    done = run("-", stdin=QUICK)
    assert done.stdout.startswith("[(0, 'two'), (1, 'two')]"), done.stderr


def test_a_temporary_folder_with_too_long_a_name_is_told(tmp_path: Path) -> None:
    """A TMPDIR too long for a socket's 107 bytes is an error. Source: unix(7)."""
    script = tmp_path / "train.py"
    script.write_text(QUICK)
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    done = run(str(script), TMPDIR=str(folder))
    assert done.returncode == 1
    assert "SessionError: gpumap rank 0 could not be started." in done.stderr
    assert f"begins with TMPDIR, '{folder}': set TMPDIR to a shorter" in done.stderr


def test_too_few_open_files_are_told_before_a_process_starts(tmp_path: Path) -> None:
    """spawn() and session() check the limit of open files before they start."""
    script = tmp_path / "train.py"
    script.write_text(QUICK)
    done = run(str(script), files=24)
    assert done.returncode == 1
    assert "SessionError: spawn() needs 24 more open files, and" in done.stderr
    assert "ulimit -n is 24, 24 at most;" in done.stderr
    code = "import gpumap\nwith gpumap.session(device='cpu', start_timeout=1): pass"
    done = run("-c", code, files=24, **rank_environment(0, 2, free_port()))
    assert done.returncode == 1
    assert "SessionError: rank 0 of 2 needs 28 more open files, and" in done.stderr


@pytest.mark.parametrize(("rank", "needed"), [("0", 30), ("1", 15)])
def test_a_session_of_two_needs_as_many_files_as_it_opens(
    rank: str, needed: int
) -> None:
    """Two sessions in a row need 30 more open files on rank 0, and 15 on rank 1."""
    port = free_port()
    code = (
        "import os, resource, gpumap\n"
        "there = len(os.listdir('/proc/self/fd')) - 1\n"
        f"if os.environ['RANK'] == '{rank}':\n"
        f"    most = (there + {needed},) * 2\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, most)\n"
        "for number in range(2):\n"
        "    with gpumap.session(device='cpu', start_timeout=50) as s:\n"
        "        print('in', s.rank, number)\n"
    )
    started = [
        start_python("-c", code, environ=rank_environment(n, 2, port)) for n in range(2)
    ]
    outs = [process.communicate(timeout=100)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outs


def test_a_script_whose_import_is_slow_is_refused_in_time(tmp_path: Path) -> None:
    """start_timeout counts from the call of spawn(), its server's start included."""
    script = tmp_path / "train.py"
    script.write_text(SPAWN.format(pause=60, start=8))
    done = run(str(script))
    assert "ranks 0, 1 did not start within 8 s." in done.stderr
    assert float(re.findall(r"after (\S+)", done.stdout)[0]) < 8 + 5 + 15


@pytest.mark.parametrize("where", ["full", "closed", "read enough"])
def test_the_command_says_where_it_cannot_print(where: str) -> None:
    """If the command cannot print, it exits with 2; a closed pipe is no error."""
    command = ("-m", "gpumap", "show", "--machine", "t4x4")
    if where == "full":
        with Path("/dev/full").open("w") as full:
            done = run_python(*command, stdout=full)
        said = "gpumap: nothing could be printed: [Errno 28] No space left on device\n"
    elif where == "closed":
        done = run_python(*command, stdout=None, preexec_fn=lambda: os.close(1))
        said = "gpumap: nothing could be printed: standard output is closed\n"
    else:
        reader, writer = os.pipe()
        os.close(reader)
        done = run_python(*command, stdout=writer)
        os.close(writer)
        said = ""
    assert done.stderr == said
    assert done.returncode == (2 if said else 0)

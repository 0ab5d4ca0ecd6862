"""The all-reduce benchmark, run by real ranks."""

import json
import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.environments import rank_environment
from helpers.jobs import Ended, finish, free_port
from helpers.programs import run_python, start_python

SCRIPT = str(Path(__file__).parent.parent.parent / "benchmarks/allreduce.py")
SHORT = ("-b", "4K", "-e", "64K", "-f", "4", "-n", "2", "-w", "1", "--rounds", "2")
# Each rank adds its number to its first element: rank 1 adds one too much.
PLANTED = f"""
import sys
sys.path.insert(0, {str(Path(SCRIPT).parent)!r})
from parts import reduction

right = reduction.filled

def planted(rank, *arguments):
    tensor = right(rank, *arguments)
    tensor[0] += rank
    return tensor

reduction.filled = planted
import allreduce
sys.exit(allreduce.main(sys.argv[1:]))
"""


def bench(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark."""
    return run_python(*arguments, environ=environ)


def ranks(*commands: Sequence[str]) -> list[Ended]:
    """Run one command for each rank of a job."""
    port = free_port()
    return finish(
        [
            start_python(
                *command,
                environ={
                    **rank_environment(rank, len(commands), port),
                    # Their arguments differ, and they are one job.
                    "GPUMAP_JOB_ID": "bench",
                },
            )
            for rank, command in enumerate(commands)
        ]
    )


def rows(out: str) -> list[list[str]]:
    """Return the cells of the lines with figures."""
    lines = [line.split() for line in out.splitlines()]
    return [cells for cells in lines if cells and cells[0].isdecimal()]


def test_it_starts_its_own_ranks_and_prints_what_nccl_tests_does(
    tmp_path: Path,
) -> None:
    """The tables have nccl-tests' columns, and agree with the figures in the file."""
    file = tmp_path / "found.json"
    done = bench(SCRIPT, *SHORT, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "━" not in done.stderr  # no progress bar without a terminal
    found = rows(done.stdout)
    assert [cells[:4] for cells in found] == 2 * [
        ["4096", "1024", "float", "sum"],
        ["16384", "4096", "float", "sum"],
        ["65536", "16384", "float", "sum"],
    ]
    assert {(cells[7], cells[11]) for cells in found} == {("0", "0")}
    assert done.stdout.count("Out of bounds values : 0 OK") == 2
    written = json.loads(file.read_text())
    seconds = written["ways"][0]["rows"][2]["in_place"]["seconds"]
    assert len(seconds) == 2
    # The bus factor of two ranks is 1.
    assert float(found[2][10]) == pytest.approx(
        65536 / (sum(seconds) / 2) / 1e9, abs=0.01
    )
    busbw = [
        row["size"] / (sum(row[place]["seconds"]) / 2) / 1e9
        for row in written["ways"][1]["rows"]
        for place in ("out_of_place", "in_place")
    ]
    average = float(done.stdout.split("Avg bus bandwidth    : ")[2].split()[0])
    assert average == pytest.approx(sum(busbw) / 6, rel=0.01)
    assert "GB/s at most, in one direction: memory copy " in done.stdout
    assert "# by hand  " in done.stdout


def test_a_wrong_sum_is_counted_and_is_exit_code_1() -> None:
    """A wrong element is counted by both ranks, and rank 0's exit code is 1."""
    command = ["-c", PLANTED, *SHORT]
    first, second = ranks(command, command)
    # Rank 0 speaks for all: a launcher ends with its code.
    assert (first.code, second.code) == (1, 0), first.out + second.out
    assert [(cells[7], cells[11]) for cells in rows(first.out)] == 6 * [("2", "2")]
    assert first.out.count("Out of bounds values : 12 FAILED") == 2
    assert "busbw" not in second.out  # rank 0 prints for all


def test_the_sizes_are_rank_0s() -> None:
    """All ranks use rank 0's sizes, since ranks with different ones would abort."""
    first, second = ranks([SCRIPT, *SHORT], [SCRIPT, *SHORT, "-e", "1M"])
    assert (first.code, second.code) == (0, 0), first.out + second.out
    assert {cells[0] for cells in rows(first.out)} == {"4096", "16384", "65536"}


def test_torchrun_starts_its_ranks() -> None:
    """Two ranks of torchrun print one output."""
    done = bench(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(SCRIPT, *SHORT),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# all-reduce of 2 ranks by gloo on cpu") == 1


def test_a_rehearsal_shows_each_strategys_devices_and_links() -> None:
    """A rehearsal prints each strategy's devices and links, and measures once."""
    done = bench(
        *(SCRIPT, *SHORT, "--nproc", "2", "--strategies", "local_rank,modulo,linked"),
        GPUMAP_REHEARSAL="dgx1-v100",
    )
    assert done.returncode == 0, done.stderr
    assert "# rehearsal of dgx1-v100: devices and links are pretended" in done.stdout
    first, second = done.stdout.split("# local_rank, modulo:")[1].split("# linked:")
    assert "cuda:0 (GPU-07000000…)" in first
    assert "cuda:1 (GPU-07000001…)" in first
    assert "links on dgx1-v100: 1 NV1; the best ring's slowest: NV1" in first
    assert "cuda:3 (GPU-07000003…)" in second
    assert "links on dgx1-v100: 1 NV2; the best ring's slowest: NV2" in second
    assert "# local_rank, modulo, linked: the same devices, measured once" in second
    assert len(rows(done.stdout)) == 6


def test_a_strategy_that_fits_nothing_is_left_out_and_the_rest_measured() -> None:
    """A strategy that cannot place the ranks is left out, with the reason."""
    done = bench(
        *(SCRIPT, *SHORT, "--nproc", "2", "--strategies", "local_rank,scored"),
        GPUMAP_REHEARSAL="",
    )
    assert done.returncode == 0, done.stderr
    assert '# scored is left out: strategy "scored" has no device' in done.stdout


def test_nothing_to_measure_is_an_error() -> None:
    """If no strategy can be measured, the exit code is 2 and stderr says why."""
    done = bench(SCRIPT, *SHORT, "--nproc", "2", "--strategies", "scored,guess")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no strategy gives every rank a device of its own" in done.stderr
    assert "guess: strategy 'guess' is unknown" in done.stderr
    assert "--strategies" in done.stderr


def test_a_terminal_shows_progress() -> None:
    """Progress is shown on stderr, so that the tables can be piped."""
    master, slave = pty.openpty()
    with start_python(
        SCRIPT, *SHORT, environ={"TERM": "xterm"}, stderr=slave
    ) as process:
        os.close(slave)
        shown = b""
        while part := _read(master):
            shown += part
        out, _ = process.communicate(timeout=100)
    os.close(master)
    assert process.returncode == 0, out
    assert "by hand" in shown.decode()
    assert "━" in shown.decode()
    assert len(rows(out)) == 6


def _read(terminal: int) -> bytes:
    """Return what the terminal was sent; nothing once its other side is closed."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    """--plot writes a PNG of 1080 by 660 pixels."""
    file = tmp_path / "busbw.png"
    done = bench(SCRIPT, *SHORT, "--plot", str(file))
    assert done.returncode == 0, done.stderr
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert [int.from_bytes(head[i : i + 4]) for i in (16, 20)] == [1080, 660]


def test_a_picture_without_matplotlib_is_refused_before_the_run() -> None:
    """Without matplotlib --plot is an error that says how to install it."""
    code = f"""
import runpy, sys
sys.modules["matplotlib"] = None
sys.argv = [{SCRIPT!r}, "--plot", "x.png"]
sys.path.insert(0, {str(Path(SCRIPT).parent)!r})
runpy.run_path({SCRIPT!r}, run_name="__main__")
"""
    done = bench("-c", code)
    assert done.returncode == 2
    assert "pip install gpumap-torch[bench]" in done.stderr

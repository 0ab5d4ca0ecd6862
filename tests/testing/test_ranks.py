"""Ranks within a time: their results, their errors, and where they stood."""

import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import gpumap
from gpumap.testing import assert_plan, rehearse, run_ranks

# A busy machine starts ranks slowly: only what is meant to be late has less.
PLENTY = 110


@pytest.fixture(autouse=True, scope="module")
def started() -> None:
    """Start the server that the ranks are forked from, which imports torch."""
    with rehearse("dgx-a100"):
        run_ranks(placed, nprocs=1, timeout=PLENTY)


def placed() -> gpumap.Placement:
    """Return this rank's placement."""
    with gpumap.session() as opened:
        return opened.placement


def fails(message: str) -> None:
    """Fail in rank 1, while rank 0 waits for it."""
    with gpumap.session() as opened:
        if opened.rank == 1:
            raise KeyError(message)
        dist.all_reduce(torch.ones(1))


def sleeps_in_rank_0() -> None:
    """Let rank 1 wait for rank 0 in a collective."""
    with gpumap.session() as opened:
        if opened.rank == 0:
            oversleep()
        dist.all_reduce(torch.ones(1))


def oversleep() -> None:
    """Sleep longer than the test lasts."""
    time.sleep(1000)


def leaves_a_thread() -> str:
    """Return, with a thread that Python waits for."""
    threading.Thread(target=oversleep).start()
    return "returned"


def does_not_return() -> None:
    """Call itself for some time, deeper than faulthandler looks, and sleep there."""
    deeper(200)


def deeper(times: int) -> None:
    """Sleep that many calls deeper."""
    if times:
        deeper(times - 1)
    else:
        oversleep()


@rehearse("dgx-a100")
def test_ranks_return_by_rank() -> None:
    """Functions of a test's module run on ranks, whichever way pytest imported it.

    These tests are imported with --import-mode=importlib, which names the module
    tests.testing.test_ranks and adds no folder to sys.path.
    """
    path = list(sys.path)
    assert_plan(run_ranks(placed, gpus=[6, 2], timeout=PLENTY), [6, 2])
    assert sys.path == path


@rehearse("dgx-a100")
def test_what_a_rank_raises_is_raised() -> None:
    """An error of a rank has its own type, and a note with the rank's traceback.

    The traceback here has the test's line alone, and none of gpumap's.
    """
    with pytest.raises(KeyError, match="no such sample") as caught:
        run_ranks(fails, "no such sample", nprocs=2, timeout=PLENTY)
    assert "rank 1" in caught.value.__notes__[0]
    assert "in fails" in "".join(caught.value.__notes__)
    assert [entry.path for entry in caught.traceback] == [Path(__file__)]


@rehearse("dgx-a100")
def test_ranks_that_do_not_end_are_told_with_where_they_stood() -> None:
    """At the time-out all ranks end, and the error has each one's innermost calls."""
    with pytest.raises(gpumap.SessionError) as caught:
        run_ranks(sleeps_in_rank_0, nprocs=2, timeout=15)
    error = caught.value
    assert error.happened == "ranks 0, 1 did not end within 15 s."
    assert error.ranks == (0, 1)
    first, second = error.seen.split("rank 1, innermost call first:")
    assert first.startswith("rank 0, innermost call first:\n  File ")
    assert first.index("in oversleep") < first.index("in sleeps_in_rank_0")
    assert second.index("in all_reduce") < second.index("in sleeps_in_rank_0")
    assert "gpumap/testing" not in error.seen
    assert "timeout=…" in error.hint


@pytest.mark.parametrize("function", [leaves_a_thread, does_not_return])
def test_all_that_a_rank_does_is_bounded(function: Callable[[], object]) -> None:
    """A thread that outlives the function is bounded too; it is named, as deep calls.

    faulthandler writes the 100 innermost calls of each thread.
    """
    with rehearse("dgx-a100"), pytest.raises(gpumap.SessionError) as caught:
        run_ranks(function, nprocs=1, timeout=15)
    assert caught.value.happened == "rank 0 did not end within 15 s."
    assert "in oversleep" in caught.value.seen


def test_functions_of_other_modules_run_on_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own functions run on ranks, and those of a package off sys.path."""
    assert len({os.getpid(), *run_ranks(os.getpid, nprocs=2, timeout=PLENTY)}) == 3
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("def name():\n    return __name__\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        module = import_module(package.name)
    assert run_ranks(module.name, nprocs=1, timeout=PLENTY) == [package.name]
    del sys.modules[package.name]


def test_arguments_are_checked_before_a_process_starts() -> None:
    """Arguments that the function does not take are an error that names it."""
    with pytest.raises(gpumap.SessionError, match=r"^fails cannot be called with"):
        run_ranks(fails, nprocs=2)
    with pytest.raises(gpumap.SessionError, match="timeout=0 is not a time"):
        run_ranks(placed, nprocs=2, timeout=0)

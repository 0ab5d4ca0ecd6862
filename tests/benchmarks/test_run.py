"""What a command adds to a script's start, from the seconds of each round."""

from pathlib import Path

import pytest
import run
from run import ALONE, WAYS, Job, Spent, added, run_job, table


def test_what_is_added_is_compared_within_a_round() -> None:
    """The differences are 1, 1, 4, 1 and 2 s, the ratios 2, 1.5, 3, 1.25 and 2."""
    found = added(seconds=[2, 3, 6, 5, 4], alone=[1, 2, 2, 4, 2])
    assert found.seconds[1] == 4
    assert found.more == (1, 1, 3)
    assert found.ratio == (1.375, 2, 2.5)


def test_each_way_stands_below_the_job_by_itself() -> None:
    """The row by itself has seconds alone; those below it say what they add."""
    job = Job("nothing", 2)
    seconds = dict(zip(WAYS, (0.02, 0.22, 2.02), strict=True))
    found = {(job, way): [Spent(s, 2 * s)] for way, s in seconds.items()}
    lines = [line.split() for line in table(found, "clock")]
    assert lines[1] == ["nothing", "2", *ALONE.split(), "0.020", "(0.020-0.020)"]
    assert lines[2] == [
        *("nothing", "2", "gpumap", "run,", "rehearsed", "0.220", "(0.220-0.220)"),
        *("0.200", "(0.200-0.200)", "11.00", "(11.00-11.00)"),
    ]
    assert lines[3][-6:-4] == ["2.020", "(2.020-2.020)"]
    assert [*table(found, "cpu")][3].split()[-6::2] == ["4.040", "4.000", "101.00"]


def test_the_cpu_of_a_job_is_the_mean_of_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks that have used 3 s together have used 1.5 s each."""
    monkeypatch.setattr(run, "_cpu_of_ended", iter([1.0, 4.0]).__next__)
    (tmp_path / "nothing.py").write_text("")
    assert run_job(Job("nothing", 2), ALONE, tmp_path).cpu == 1.5


@pytest.mark.parametrize("size", [1, 2])
def test_a_script_that_fails_is_no_measurement(size: int, tmp_path: Path) -> None:
    """The error has the exit code and what the script wrote."""
    (tmp_path / "fails.py").write_text("raise SystemExit('not today')\n")
    with pytest.raises(RuntimeError, match=r"fails, \d ranks.*code 1: not today"):
        run_job(Job("fails", size), ALONE, tmp_path)


def test_a_script_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks are killed, and waited for."""
    monkeypatch.setattr(run, "_PATIENCE", 1.0)
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(RuntimeError, match="no end within 1 s"):
        run_job(Job("sleeps", 2), ALONE, tmp_path)


def test_ranks_get_the_variables_of_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of one node differ in RANK and LOCAL_RANK; what others left is gone."""
    monkeypatch.setenv("LOCAL_RANK", "7")
    monkeypatch.setenv("GPUMAP_GPUS", "3")
    told = "('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GPUMAP_GPUS')"
    (tmp_path / "tells.py").write_text(
        f"import os, sys\nsys.exit(repr([os.environ.get(x) for x in {told}]))\n"
    )
    with pytest.raises(RuntimeError) as caught:
        run_job(Job("tells", 2), ALONE, tmp_path)
    assert "['0', '0', '2', '2', None]" in str(caught.value)
    assert "['1', '1', '2', '2', None]" in str(caught.value)

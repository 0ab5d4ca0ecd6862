"""A short form of benchmarks/soak.py: many sessions do not fail and leak nothing."""

from pathlib import Path

import pytest

from helpers.programs import run_python

SOAK = Path(__file__).parent.parent.parent / "benchmarks/soak.py"


@pytest.mark.alone
def test_nothing_is_left_behind_by_sessions_and_spawns() -> None:
    """Sessions and spawns, with workers, forks and errors, leave nothing behind."""
    done = run_python(str(SOAK), "20", "12", "15", timeout=110)
    told = done.stdout + done.stderr
    assert done.stdout.count("more at the end: nothing") == 5, told
    assert done.stdout.count("not as it should be: nothing") == 5, told
    assert done.returncode == 0

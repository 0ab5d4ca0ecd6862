"""A short form of benchmarks/soak.py: nothing goes wrong, or grows, in many runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.environments import clean_environment

SOAK = Path(__file__).parent.parent.parent / "benchmarks/soak.py"


@pytest.mark.alone
def test_nothing_is_left_behind_by_sessions_and_spawns() -> None:
    """Alone, and among workers, forks, pools, programs, handlers and errors."""
    done = subprocess.run(
        [sys.executable, str(SOAK), "20", "12", "15"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.stdout.count("more at the end: nothing") == 5, told
    assert done.stdout.count("not as it should be: nothing") == 5, told
    assert done.returncode == 0

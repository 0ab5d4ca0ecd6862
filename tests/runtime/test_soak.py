"""A short form of benchmarks/soak.py: nothing grows from session to session."""

import subprocess
import sys
from pathlib import Path

from environments import clean_environment

SOAK = Path(__file__).parent.parent.parent / "benchmarks/soak.py"


def test_nothing_is_left_behind_by_sessions_and_spawns() -> None:
    """Files, threads, memory, excepthook and variables are as after the first ten."""
    done = subprocess.run(
        [sys.executable, str(SOAK), "40", "20"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stdout.count("more at the end: nothing") == 2, done.stdout + done.stderr
    assert done.returncode == 0

"""One rank fails, in every way and at every moment; the others say which, and in time.

The table is of one machine; what hosts say of each other is in tests/launchers.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import clean_environment, free_port, rank_environment

FAULTS = Path(__file__).with_name("faults.py")
LIMIT = 3.0
MEMBER = r"rank {} \(pid \d+ on [^)]+\), on cpu,"
GONE = "its process is gone"
HANGS = "was not heard of: its process is there, and hangs or is busy"
# What the machine may add to a time-out when it is busy, seconds.
SLACK = 6.0


class Job:
    """Two or three ranks, one of which fails."""

    def __init__(self, when: str, how: str, victim: int, size: int) -> None:
        """Run it, end what is left of the victim, and read what the others said."""
        port = free_port()
        limits = {"LIMIT": str(LIMIT), "START": str(LIMIT)}
        ranks = [
            subprocess.Popen(
                [sys.executable, str(FAULTS), when, how, str(victim)],
                env={
                    **clean_environment(),
                    **rank_environment(r, size, port),
                    **limits,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for r in range(size)
        ]
        survivors = [r for r in range(size) if r != victim]
        try:
            out = {r: ranks[r].communicate(timeout=60)[0] for r in survivors}
        finally:
            for rank in ranks:
                if how in ("SIGSTOP", "hang") or rank.poll() is None:
                    rank.kill()
        out[victim] = ranks[victim].communicate(timeout=60)[0]
        self.code = ranks[victim].returncode
        self.codes = {ranks[r].returncode for r in survivors}
        fault = float(re.findall(r"FAULT (\S+)", out[victim])[0])
        said: dict[int, dict[str, Any]] = {
            r: json.loads(re.findall("SAID (.*)", out[r])[0]) for r in survivors
        }
        self.errors = {r: s["error"] for r, s in said.items()}
        self.texts = {r: s.get("text", "") for r, s in said.items()}
        self.seconds = max(s["at"] for s in said.values()) - fault


TABLE = [
    # when, how, victim, ranks, what every survivor says, its error, seconds at most
    ("before", "SIGKILL", 1, 3, "rank 1 of 3 did not come", "RollCallError", LIMIT),
    ("before", "exit", 1, 2, "rank 1 of 2 did not come", "RollCallError", LIMIT),
    ("before", "SIGKILL", 0, 2, "rank 0 did not open its", "RollCallError", LIMIT),
    ("roll call", "SIGKILL", 1, 3, f"{MEMBER} failed first", "RollCallError", LIMIT),
    (
        *("roll call", "SIGSTOP", 1, 2),
        f"{MEMBER} failed first: its process is stopped",
        *("RollCallError", LIMIT),
    ),
    ("after", "SIGKILL", 1, 2, f"{MEMBER} failed first: {GONE}", "SessionError", LIMIT),
    ("after", "SIGKILL", 0, 2, r"rank 0 \(pid \d+ on ", None, LIMIT),
    ("after", "raise", 1, 2, f"{MEMBER} failed first: Value", "SessionError", LIMIT),
    ("body", "raise", 1, 3, f"{MEMBER} failed first: ValueError: bad", None, 1.0),
    ("body", "exit", 1, 2, f"{MEMBER} failed first: SystemExit: 3", None, 1.0),
    ("body", "SIGKILL", 1, 3, f"{MEMBER} failed first: {GONE}", None, 1.0),
    ("body", "SIGTERM", 1, 2, f"{MEMBER} failed first: Terminated", None, 1.0),
    (
        *("body", "SIGSTOP", 1, 2),
        f"{MEMBER} was not heard of: its process is stopped",
        *(None, 2 * LIMIT),
    ),
    ("body", "hang", 1, 3, f"{MEMBER} {HANGS}", None, 3 * LIMIT),
    (
        *("body", "SIGKILL", 0, 3),
        f"{MEMBER} hosts the store and failed first: {GONE}",
        *(None, 1.0),
    ),
    (
        *("body", "SIGSTOP", 0, 2),
        f"{MEMBER} hosts the store and failed first: its process is stopped",
        *(None, 3 * LIMIT),
    ),
    ("leaving", "SIGKILL", 1, 3, f"{MEMBER} failed first: {GONE}", "SessionError", 2.0),
    ("leaving", "hang", 1, 2, f"{MEMBER} {HANGS}", "SessionError", 2 * LIMIT),
    (
        *("leaving", "SIGKILL", 0, 2),
        f"{MEMBER} hosts the store and failed first: {GONE}",
        *("SessionError", 1.0),
    ),
]
CODES = {
    "SIGKILL": -9,
    "SIGSTOP": -9,
    "hang": -9,
    "SIGTERM": 143,
    "exit": 3,
    "raise": 1,
}


@pytest.mark.parametrize(
    ("when", "how", "victim", "size", "text", "error", "seconds"),
    TABLE,
    ids=[f"{when} {how} {victim} of {size}" for when, how, victim, size, *_ in TABLE],
)
def test_survivors_name_who_failed_first(
    when: str,
    how: str,
    victim: int,
    size: int,
    text: str,
    error: str | None,
    seconds: float,
) -> None:
    """In their errors or its notes, within the time-out; the victim's code tells."""
    job = Job(when, how, victim, size)
    for rank, said in job.texts.items():
        assert re.search(text.format(victim), said), f"rank {rank}: {said}"
    if error is not None:
        assert set(job.errors.values()) == {error}
    assert None not in job.errors.values()
    assert job.codes == {1}
    assert job.seconds < seconds + SLACK
    assert job.code == CODES[how]

"""How a rank can fail, at every moment, and what every other rank must report.

The table is for one host; failures on several hosts are in tests/launchers.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

from helpers.environments import clean_environment, rank_environment
from helpers.jobs import free_port
from helpers.warm import Script

__all__ = ["FAULTS", "LIMIT", "NAMES", "SLACK", "TABLE", "Fault", "Job", "check"]

FAULTS = Path(__file__).with_name("faults.py")
# A rank starts within START seconds even on a busy machine.
LIMIT, START = 3.0, 5.0
MEMBER = r"rank {} \(pid \d+ on [^)]+\), on (cpu|\w+:\d \([^)]+\)),"
GONE = "its process is gone"
HANGS = r"is in fail, faults\.py line \d+"
# What the machine may add to a time-out when it is busy, seconds.
SLACK = 6.0


class Job:
    """Two or three ranks, one of which fails."""

    def __init__(
        self, when: str, how: str, victim: int, size: int, **environ: str
    ) -> None:
        """Run the ranks, kill a victim that goes on, and read the others' output."""
        port = free_port()
        environ |= {"LIMIT": str(LIMIT), "START": str(START)}
        ranks = [
            Script(
                [str(FAULTS), when, how, str(victim)],
                {**clean_environment(), **rank_environment(r, size, port), **environ},
            )
            for r in range(size)
        ]
        survivors = [r for r in range(size) if r != victim]
        try:
            out, ended = {}, {}
            for r in survivors:
                out[r] = ranks[r].communicate(60)[0]
                ended[r] = time.monotonic()
            if how in ("SIGSTOP", "hang"):
                ranks[victim].kill()
            out[victim] = ranks[victim].communicate(60)[0]
        finally:
            for rank in ranks:
                rank.kill()
        self.code = ranks[victim].returncode
        self.codes = {ranks[r].returncode for r in survivors}
        fault = float(re.findall(r"FAULT (\S+)", out[victim])[0])
        said: dict[int, dict[str, Any]] = {
            # A process that is ended in torch's init prints a message only.
            r: json.loads(lines[0])
            if (lines := re.findall("SAID (.*)", out[r]))
            else {"error": "", "text": out[r], "at": ended[r]}
            for r in survivors
        }
        self.errors = {r: s["error"] for r, s in said.items()}
        self.texts = {r: s.get("text", "") for r, s in said.items()}
        self.seconds = max(s["at"] for s in said.values()) - fault


Fault = tuple[str, str, int, int, str, str | None, float]

TABLE: list[Fault] = [
    # when, how, victim, ranks, what every survivor says, its error, seconds at most
    ("before", "SIGKILL", 1, 3, "rank 1 of 3 did not come", "RollCallError", LIMIT),
    ("before", "exit", 1, 2, "rank 1 of 2 did not come", "RollCallError", LIMIT),
    ("before", "SIGKILL", 0, 2, "rank 0 did not open its", "RollCallError", LIMIT),
    (
        *("roll call", "SIGKILL", 1, 3),
        f"{MEMBER} did not stay for the roll call: {GONE}",
        *("RollCallError", 1.0),
    ),
    (
        *("roll call", "SIGSTOP", 1, 2),
        f"{MEMBER} did not stay for the roll call: its process is stopped",
        *("RollCallError", LIMIT),
    ),
    ("after", "SIGKILL", 1, 2, f"{MEMBER} failed first: {GONE}", "SessionError", LIMIT),
    ("after", "SIGKILL", 0, 2, r"rank 0 \(pid \d+ on ", None, LIMIT),
    ("after", "raise", 1, 2, f"{MEMBER} failed first: Value", "SessionError", LIMIT),
    (
        *("after", "SIGSTOP", 1, 2),
        f"{MEMBER} was not heard of: its process is stopped",
        *("SessionError", 3 * LIMIT),
    ),
    ("body", "raise", 1, 3, f"{MEMBER} failed first: ValueError: bad", None, 1.0),
    ("body", "exit", 1, 2, rf"{MEMBER} left its block by sys.exit\(3\)", None, 1.0),
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
        f"{MEMBER} hosts the store, and {GONE}",
        *(None, 1.0),
    ),
    (
        *("body", "SIGSTOP", 0, 2),
        f"{MEMBER} hosts the store, and does not answer: its process is stopped",
        *(None, 3 * LIMIT),
    ),
    ("leaving", "SIGKILL", 1, 3, f"{MEMBER} failed first: {GONE}", "SessionError", 2.0),
    ("leaving", "hang", 1, 2, f"{MEMBER} {HANGS}", "SessionError", 2 * LIMIT),
    (
        *("leaving", "SIGKILL", 0, 2),
        f"{MEMBER} hosts the store, and {GONE}",
        *("SessionError", 1.0),
    ),
]
CODES = {
    "SIGKILL": -9,
    "SIGSTOP": -9,
    "SIGTERM": 143,
    "exit": 3,
    "raise": 1,
}

NAMES = [f"{when} {how} {victim} of {size}" for when, how, victim, size, *_ in TABLE]


def check(fault: Fault, *, longer: float, notices: bool, **environ: str) -> None:
    """Run a job with a fault; check what its ranks report, and when.

    longer is how many seconds more survivors may take; notices, whether a rank that
    forms its group notices that another one has failed.
    """
    when, how, victim, size, text, error, seconds = fault
    job = Job(when, how, victim, size, **environ)
    for rank, said in job.texts.items():
        assert re.search(text.format(victim), said), f"rank {rank}: {said}"
    if error is not None:
        # A process that is ended in torch's init, or in its last collective, prints a
        # message, and has no error.
        held = {""} if when in ("after", "leaving") and not notices else set()
        assert set(job.errors.values()) <= {error} | held
    for rank, raised in job.errors.items():
        if raised == "":
            assert "ends, since another rank failed and" in job.texts[rank]
    assert None not in job.errors.values()
    assert job.codes == {1}
    assert job.seconds < seconds + longer + SLACK
    # A process that hangs is killed by this test, unless it has ended by itself.
    assert job.code in ((-9, 1) if how == "hang" else (CODES[how],))

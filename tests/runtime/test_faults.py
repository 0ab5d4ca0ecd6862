"""One rank fails, in every way and at every moment; the others say which, and in time.

The table is of one machine; what hosts say of each other is in tests/launchers.
"""

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from helpers.environments import clean_environment, rank_environment
from helpers.jobs import free_port, run
from helpers.warm import Script

FAULTS = Path(__file__).parent.parent / "helpers/faults.py"
LIMIT = 3.0
MEMBER = r"rank {} \(pid \d+ on [^)]+\), on cpu,"
GONE = "its process is gone"
HANGS = r"is in fail, faults\.py line \d+"
# What the machine may add to a time-out when it is busy, seconds.
SLACK = 6.0


class Job:
    """Two or three ranks, one of which fails."""

    def __init__(self, when: str, how: str, victim: int, size: int) -> None:
        """Run it, end what is left of the victim, and read what the others said."""
        port = free_port()
        limits = {"LIMIT": str(LIMIT), "START": str(LIMIT)}
        ranks = [
            Script(
                [str(FAULTS), when, how, str(victim)],
                {**clean_environment(), **rank_environment(r, size, port), **limits},
            )
            for r in range(size)
        ]
        survivors = [r for r in range(size) if r != victim]
        try:
            out = {r: ranks[r].communicate(60)[0] for r in survivors}
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


def start(
    rank: int, port: int, when: str = "never", how: str = "hang", **limits: str
) -> Script:
    """Start one rank of two; rank 1 is the victim."""
    return Script(
        [str(FAULTS), when, how, "1"],
        {**clean_environment(), **rank_environment(rank, 2, port), **limits},
    )


@pytest.fixture
def two() -> Iterator[list[Script]]:
    """Return a list for processes, all of which are ended afterwards."""
    started: list[Script] = []
    yield started
    for process in started:
        process.kill()
        process.communicate(60)


def test_sigterm_ends_a_rank_that_a_library_holds(
    two: list[Script],
) -> None:
    """Rank 0 stands in an all-reduce for a minute, where no Python runs."""
    port = free_port()
    two += [start(r, port, "body", LIMIT="60", START="30") for r in range(2)]
    while "FAULT" not in two[1].said():
        time.sleep(0.05)
    time.sleep(1)  # rank 0 comes to the all-reduce that rank 1 does not join
    two[0].send_signal(signal.SIGTERM)
    out, _ = two[0].communicate(timeout=30)
    assert two[0].returncode == 143
    assert "its session did not leave within 5 s, because a library did not" in out


def connection_to(port: int) -> socket.socket:
    """Connect as soon as something listens."""
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except OSError:
            time.sleep(0.05)
    pytest.fail("rank 0 never listened")


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.0\r\n\r\n", b"\0" * 1000])
def test_a_stranger_that_connects_changes_nothing(
    said: bytes, two: list[Script]
) -> None:
    """It may be silent, or say what is no store's language."""
    port = free_port()
    two.append(start(0, port, LIMIT="30", START="30"))
    with connection_to(port) as stranger:
        stranger.sendall(said)
        two.append(start(1, port, LIMIT="30", START="30"))
        ended = [process.communicate(timeout=60)[0] for process in two]
    assert [process.returncode for process in two] == [0, 0], ended


@pytest.mark.parametrize("key", ["verdict", "rank/1", "terms"])
def test_what_a_stranger_writes_is_never_taken_for_a_ranks(
    key: str, two: list[Script]
) -> None:
    """All ranks end, with what was found there."""
    port = free_port()
    two.append(start(0, port, LIMIT="5", START="5"))
    connection_to(port).close()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    store.set(f"gpumap/0/1/{key}", "cos\nsystem\n(S'true'\ntR.")
    two.append(start(1, port, LIMIT="5", START="5"))
    ended = [process.communicate(timeout=60)[0] for process in two]
    assert [process.returncode for process in two] == [1, 1], ended
    assert any(f"something under {key} that gpumap did not" in out for out in ended)
    assert all("RollCallError" in out for out in ended)


def test_a_clock_that_jumps_neither_shortens_nor_lengthens_a_wait() -> None:
    """By three hours at every look: rank 1 comes late, or never, in its own time."""
    every = {"START_TIMEOUT": "30"}
    together = run("jumping", every=every, delays={1: 3.0})
    assert [rank.code for rank in together] == [0, 0], together
    [alone] = run("jumping", every={"START_TIMEOUT": "3"}, ranks=[0])
    assert "rank 1 of 2 did not come within 3 s." in alone.out
    assert 2.5 < float(re.findall(r"after (\S+) s", alone.out)[0]) < 3 + SLACK

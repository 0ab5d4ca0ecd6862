"""One rank fails, in any way and at any moment; the others name it, and in time.

The table is in helpers/fault_table.py.
"""

import re
import signal
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from helpers.accelerator import accelerator
from helpers.environments import clean_environment, rank_environment
from helpers.fault_table import FAULTS, NAMES, SLACK, TABLE, Fault, check
from helpers.jobs import connection_to, free_port, run
from helpers.warm import Script


@pytest.mark.parametrize("fault", TABLE, ids=NAMES)
def test_survivors_name_who_failed_first(fault: Fault) -> None:
    """Every survivor names the rank that failed first, within its time-out."""
    check(fault, longer=0.0, notices=True)


@pytest.mark.timeout(600)  # the first may have to build the accelerator
@pytest.mark.parametrize("fault", TABLE, ids=NAMES)
def test_survivors_name_who_failed_first_where_nothing_breaks(fault: Fault) -> None:
    """Survivors name the rank that failed first even if no connection breaks.

    As with NCCL, whose abort waits for dead peers for a few seconds. The watchdog is
    not to end any rank.
    """
    environ = {**accelerator(), "PRETEND_WATCHDOG": "1"}
    check(fault, longer=4.0, notices=False, **environ)


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
    """A rank whose main thread is in an all-reduce still ends on SIGTERM, with 143."""
    port = free_port()
    two += [start(r, port, "body", LIMIT="60", START="30") for r in range(2)]
    while "FAULT" not in two[1].said():
        time.sleep(0.05)
    time.sleep(1)  # rank 0 comes to the all-reduce that rank 1 does not join
    two[0].send_signal(signal.SIGTERM)
    out, _ = two[0].communicate(timeout=30)
    assert two[0].returncode == 143
    assert "its session did not leave within 5 s, because a library did not" in out


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.0\r\n\r\n", b"\0" * 1000])
def test_a_stranger_that_connects_changes_nothing(
    said: bytes, two: list[Script]
) -> None:
    """A foreign connection to the store, silent or not, does not disturb a session."""
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
    """A foreign value under one of gpumap's keys ends all ranks, with an error."""
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
    """A system clock that jumps by three hours changes no time limit of the start."""
    every = {"START_TIMEOUT": "30"}
    together = run("jumping", every=every, delays={1: 3.0})
    assert [rank.code for rank in together] == [0, 0], together
    [alone] = run("jumping", every={"START_TIMEOUT": "3"}, ranks=[0])
    assert "rank 1 of 2 did not come within 3 s." in alone.out
    assert 2.5 < float(re.findall(r"after (\S+) s", alone.out)[0]) < 3 + SLACK

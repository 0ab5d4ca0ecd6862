"""The addresses on which a job of one machine listens, as ss lists them."""

import contextlib
import os
import re
import subprocess
from collections.abc import Sequence

import pytest

from helpers.environments import rank_environment
from helpers.jobs import free_port
from helpers.launchers import HERE, need
from helpers.programs import start_python

SPAWNS = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
sys.argv[1:] = ["3000"]
import gpumap, hold

if __name__ == "__main__":
    gpumap.spawn(hold.main, nprocs=2)
"""


def listening(started: Sequence[subprocess.Popen[str]]) -> set[str]:
    """Return ADDRESS:PORT of every socket on which these or their children listen."""
    done = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True)
    sessions = {process.pid for process in started}
    found = set()
    for line in done.stdout.splitlines():
        for pid in re.findall(r"pid=(\d+)", line):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(pid)) in sessions:
                    found.add(line.split()[3])
    return found


def start(environ: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start a Python in a process session of its own, which its children share."""
    return start_python(
        *arguments, environ=environ, stderr=None, start_new_session=True
    )


@pytest.mark.parametrize("way", ["variables", "spawn"])
def test_nothing_listens_beyond_loopback(way: str) -> None:
    """The store and each rank's gloo socket listen on loopback only."""
    need("ss", root=True)
    if way == "spawn":
        started = [start({}, "-c", SPAWNS)]
    else:
        port, hold = free_port(), str(HERE / "hold.py")
        started = [start(rank_environment(r, 2, port), hold, "3000") for r in range(2)]
    try:
        for process in started:
            assert process.stdout
            while not (line := process.stdout.readline()).startswith("TRAINING"):
                assert line
        found = listening(started)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert len(found) >= 3
    assert {address.rpartition(":")[0] for address in found} == {"127.0.0.1"}

"""Whether anything is left behind after many sessions and many spawns.

`python benchmarks/soak.py [SESSIONS [SPAWNS]]`: 500 sessions in a row in two processes,
and 200 calls of spawn with two processes each. Prints what a process holds after the
first ten and at the end, and returns 1 where something grew.
"""

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

import gpumap

FIRST = 10
# Python and torch keep a little of what they did for the first time.
MOST_MEMORY = 8.0

Held = dict[str, object]


def held() -> Held:
    """Return what this process holds: files, threads, MiB of memory, its excepthook."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
    return {
        "open files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "Python threads": threading.active_count(),
        "memory MiB": round(resident, 1),
        "excepthook": sys.excepthook is sys.__excepthook__,
        "variables": "GLOO_SOCKET_IFNAME" in os.environ,
    }


def grew(first: Held, last: Held) -> list[str]:
    """Return the names of what is more at the end than after the first ten."""
    return [
        name
        for name, value in first.items()
        if (
            float(str(last[name])) > float(str(value)) + MOST_MEMORY
            if name == "memory MiB"
            else last[name] != value
        )
    ]


def repeated(once: Callable[[], object], times: int) -> tuple[Held, Held]:
    """Do something many times; return what is held after ten times and at the end."""
    first: Held = {}
    for number in range(times):
        once()
        if number == FIRST - 1:
            time.sleep(0.5)  # threads that were told to end take a moment
            first = held()
    time.sleep(0.5)
    return first, held()


def one_session() -> None:
    """Train one step in a session of its own."""
    model = torch.nn.Linear(2, 1)
    with gpumap.ddp_session(model, device="cpu", start_timeout=60, timeout=60) as m:
        m(torch.ones(1, 2)).sum().backward()


def sessions(times: int) -> tuple[Held, Held]:
    """Open and close sessions in this rank."""
    return repeated(one_session, times)


def one_spawn() -> None:
    """Start two processes that open a session each."""
    gpumap.spawn(one_session, nprocs=2)


def main(session_count: int, spawn_count: int) -> int:
    """Print both tables."""
    code = 0
    rows = {
        f"{session_count} sessions": gpumap.spawn(sessions, session_count, nprocs=2)[0],
        f"{spawn_count} spawns": repeated(one_spawn, spawn_count),
    }
    for what, (first, last) in rows.items():
        print(f"{what:20}" + "".join(f"{name:>16}" for name in first))
        for when, values in ((f"after {FIRST}", first), ("at the end", last)):
            print(f"{when:20}" + "".join(f"{value!s:>16}" for value in values.values()))
        more = grew(first, last)
        print(f"more at the end: {', '.join(more) or 'nothing'}\n")
        code = code or int(bool(more))
    return code


if __name__ == "__main__":
    counts = [int(text) for text in sys.argv[1:3]]
    sys.exit(main(*(counts + [500, 200][len(counts) :])))

"""Whether anything goes wrong, or is left behind, in many sessions and many spawns.

`python benchmarks/soak.py [SESSIONS [SPAWNS [COMPANY]]]`: 500 sessions in a row in two
processes; 200 calls of spawn with two processes each; and 200 sessions among DataLoader
workers, forks, pools, subprocesses, handlers and errors, in one process, in two of
spawn and in two of torchrun. Prints what a process holds after the first and at the
end, and returns 1 where something grew, or did not end as it should.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from parts import company
from parts.company import Held, held, sessions_in_company

import gpumap

FIRST = 10
# Python and torch keep a little of what they did for the first time.
MOST_MEMORY = 8.0


def grew(first: Held, last: Held) -> list[str]:
    """Return the names of what is more at the end than after the first, or another.

    A thread that was told to end may still be there after the first.
    """
    return [name for name, value in first.items() if _grew(name, value, last[name])]


def _grew(name: str, first: object, last: object) -> bool:
    if isinstance(first, bool):
        return last != first
    spare = MOST_MEMORY if name == "memory MiB" else 0
    return float(str(last)) > float(str(first)) + spare


def repeated(once: Callable[[], object], times: int) -> tuple[Held, Held, list[str]]:
    """Do something many times; return what is held after ten times and at the end."""
    first: Held = {}
    for number in range(times):
        once()
        if number == FIRST - 1:
            time.sleep(0.5)  # threads that were told to end take a moment
            first = held()
    time.sleep(0.5)
    return first, held(), []


def one_session() -> None:
    """Train one step in a session of its own."""
    model = torch.nn.Linear(2, 1)
    with gpumap.ddp_session(model, device="cpu", start_timeout=60, timeout=60) as m:
        m(torch.ones(1, 2)).sum().backward()


def sessions(times: int) -> tuple[Held, Held, list[str]]:
    """Open and close sessions in this rank."""
    return repeated(one_session, times)


def one_spawn() -> None:
    """Start two processes that open a session each."""
    gpumap.spawn(one_session, nprocs=2)


def by_torchrun(count: int, *launcher: str) -> tuple[Held, Held, list[str]]:
    """Return what the first rank of a job tells, and what was odd in any."""
    command = [*launcher, str(Path(company.__file__)), str(count)]
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "["]
    odd = [text for *_, texts in told for text in texts]
    if done.returncode or not told:
        odd.append(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    first, last = told[0][:2] if told else ({}, {})
    return first, last, odd


def main(session_count: int, spawn_count: int, company_count: int) -> int:
    """Print all tables."""
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    rows: dict[str, Callable[[], tuple[Held, Held, list[str]]]] = {
        f"{session_count} sessions": lambda: gpumap.spawn(
            sessions, session_count, nprocs=2
        )[0],
        f"{spawn_count} spawns": lambda: repeated(one_spawn, spawn_count),
        f"{company_count} in one process": lambda: by_torchrun(company_count),
        f"{company_count} under spawn": lambda: gpumap.spawn(
            sessions_in_company, company_count, nprocs=2
        )[0],
        f"{company_count} under torchrun": lambda: by_torchrun(
            company_count, *torchrun
        ),
    }
    code = 0
    for what, run in rows.items():
        first, last, odd = run()
        print(f"{what:22}" + "".join(f"{name:>16}" for name in first))
        for when, values in (("at first", first), ("at the end", last)):
            print(f"{when:22}" + "".join(f"{value!s:>16}" for value in values.values()))
        more = grew(first, last)
        print(f"more at the end: {', '.join(more) or 'nothing'}")
        print(f"not as it should be: {'; '.join(odd) or 'nothing'}\n", flush=True)
        code = code or int(bool(more or odd))
    return code


if __name__ == "__main__":
    counts = [int(text) for text in sys.argv[1:4]]
    sys.exit(main(*(counts + [500, 200, 200][len(counts) :])))

"""The effect of binding on a process's threads and children, as the kernel shows it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from helpers.programs import run_python

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs Linux and two CPUs")

SCRIPT = str(Path(__file__).parents[1] / "helpers/bound.py")
FIRST, LAST = (str(CPUS[0]), str(CPUS[-1])) if CPUS else ("", "")
BOTH = f"{FIRST}-{LAST}" if CPUS[-1:] == [CPUS[0] + 1] else f"{FIRST},{LAST}"


def run(case: str, *omp: str) -> list[dict[str, Any]]:
    """Run a case in a process of its own; return what it shows."""
    done = run_python(SCRIPT, case, FIRST, LAST, *omp)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_block_binds_threads_and_children_and_lets_go_of_them() -> None:
    """Inside a block all threads and children have its CPUs; after it, their own."""
    before, inside, after = run("whole")
    assert before == {
        "every": sorted({BOTH, LAST}),
        "openmp": [None, 2],
        "free": BOTH,
        "own": LAST,
    }
    assert inside == {
        "every": [FIRST],
        "openmp": ["1", 1],
        "inside": FIRST,
        "pool": FIRST,
        "worker": FIRST,
        "child": FIRST,
    }
    assert after == {
        "openmp": [None, 2],
        "main": BOTH,
        "free": BOTH,
        "own": LAST,
        "inside": BOTH,
        "stays": LAST,
        "new": BOTH,
    }


def test_an_exception_in_the_block_undoes_it_too() -> None:
    """A block that raises is undone, and the exception goes on."""
    assert run("raising") == [
        {
            "raised": "from the block",
            "inside": [LAST],
            "every": [BOTH],
            "openmp": [None, 2],
        }
    ]


@pytest.mark.parametrize(
    ("omp", "inside", "after"),
    [
        (["8"], ["8", 2], ["8", 2]),
        ([], ["1", 1], [None, 2]),
        ([""], ["1", 1], ["", 2]),
    ],
    ids=["set", "unset", "empty"],
)
def test_omp_num_threads_counts_if_it_is_set(
    omp: list[str], inside: list[object], after: list[object]
) -> None:
    """A number of threads that the user or the launcher has set stays as it is."""
    assert run("told", *omp) == [{"inside": inside, "after": after}]


def test_cpus_that_the_kernel_does_not_give_are_an_error() -> None:
    """CPUs that the kernel leaves out, in part or all, are named; nothing changes."""
    part, none = run("refused")
    hint = "Ask the launcher for these CPUs, or leave bind out."
    assert part == {
        "args": [
            f"this process cannot be bound to CPUs {FIRST},8000.",
            f"The kernel gives it CPUs {FIRST} of these.",
            hint,
        ],
        "every": [BOTH],
    }
    assert none == {
        "args": [
            "this process cannot be bound to CPUs 8000.",
            "The kernel says: Invalid argument.",
            hint,
        ],
        "every": [BOTH],
    }


def test_threads_that_start_and_end_meanwhile_are_bound_and_let_go() -> None:
    """Blocks that open and close among short-lived threads leave none of them bound."""
    assert run("busy") == [{"inside": [FIRST], "after": [BOTH]}]

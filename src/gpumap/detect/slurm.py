"""Slurm's variables: compressed task counts, node lists, and processes without a task.

Sources: srun's and scontrol's manual pages; Slurm's src/common/hostlist.c and
slurm_step_layout.c; slurm.h for the special step ids; environments captured under Slurm
22.05.
"""

import logging
import re
from collections.abc import Mapping
from itertools import product

from gpumap.detect.draft import Draft
from gpumap.detect.environment import Environment
from gpumap.detect.ports import port_of_step
from gpumap.errors import LaunchError

__all__ = [
    "at_a_terminal",
    "complete",
    "expand_counts",
    "expand_hosts",
    "say_no_step",
]

log = logging.getLogger(__name__)

_MOST_HOSTS = 100_000


def say_no_step(env: Environment) -> None:
    """Log why a process in an allocation is treated as a single process."""
    job = env.text("SLURM_JOB_ID")
    if job is None or env.in_slurm_step():
        return
    several = env.text("SLURM_NTASKS") not in (None, "1")
    log.log(
        logging.WARNING if several else logging.INFO,
        "this shell of Slurm job %s is no task of a step: one process, waiting for "
        "nobody. srun starts ranks",
        job,
    )


def at_a_terminal(environ: Mapping[str, str]) -> str:
    """Return a hint if this may be the shell of `srun --pty`, else "".

    Only the first of such a step's tasks has the terminal; shells in the others end at
    once. Task 0 itself and a process started from its shell have the same variables.

    Source: srun(1), --pty; SLURM_PTY_PORT is set in every task of such a step.
    """
    if not environ.get("SLURM_PTY_PORT"):
        return ""
    return (
        "This step was started by `srun --pty`: if its tasks are shells, only this one "
        "is left. GPUMAP_LAUNCHER=none makes this a single process; torchrun in this "
        "shell, or srun outside of it, starts ranks."
    )


def complete(draft: Draft) -> None:
    """Fill in what follows for this task from its step's variables.

    Raises:
        LaunchError: The step's counts do not fit its tasks.
    """
    env = draft.env
    job, step = env.text("SLURM_JOB_ID"), env.number("SLURM_STEP_ID")
    if job is not None:
        draft.fill(job_id=f"{job}.{step}")
    counts = _counts(env)
    if counts is not None and draft.node_rank is not None:
        if draft.node_rank >= len(counts):
            raise LaunchError(
                f"SLURM_NODEID is {draft.node_rank}, and the step has {len(counts)} "
                "nodes.",
                f"{env.seen(['SLURM_NODEID', 'SLURM_STEP_TASKS_PER_NODE'])}.",
                "Unset what an outer job left behind, or start with srun.",
                ("SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE"),
            )
        draft.local_world_size = counts[draft.node_rank]
    draft.node_ranks = _node_ranks(draft)
    if draft.master_addr is None:
        draft.master_addr = _first_host(draft)
    if job is not None and _is_number(job):
        draft.fill(master_port=port_of_step(int(job), step or 0))


def expand_counts(text: str) -> list[int]:
    """Return the tasks of each node: "2(x3),1" is 2, 2, 2, 1.

    Raises:
        LaunchError: The text is not such a list.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(
            r"\s*([0-9]{1,9})(?:\(x([0-9]{1,9})\))?\s*", item, re.ASCII
        )
        times = int(match[2] or 1) if match else 0
        if match is None or not 0 < times <= _MOST_HOSTS - len(counts):
            raise LaunchError(
                f"{text!r} is no list of tasks per node.",
                f"{item!r} was read where 4 or 4(x2) belongs.",
                "It comes from SLURM_STEP_TASKS_PER_NODE; unset what changed it.",
                ("SLURM_STEP_TASKS_PER_NODE",),
            )
        counts += [int(match[1])] * times
    return counts


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a node list, in its order: "n[08-10],x" is n08, n09, n10, x.

    Raises:
        LaunchError: The text is not such a list.
    """
    hosts: list[str] = []
    for item in _outside_brackets(text):
        parts = re.split(r"\[([^][]*)\]", item)
        choices = [
            _numbers(part, text) if place % 2 else [part]
            for place, part in enumerate(parts)
        ]
        if not item or any("[" in c or "]" in c for part in choices for c in part):
            raise _no_list(text)
        for number, host in enumerate(product(*choices)):
            if number + len(hosts) > _MOST_HOSTS:
                raise _no_list(text)
            hosts.append("".join(host))
    return hosts


def _counts(env: Environment) -> list[int] | None:
    text = env.text("SLURM_STEP_TASKS_PER_NODE")
    return None if text is None else expand_counts(text)


def _node_ranks(draft: Draft) -> tuple[int, ...] | None:
    """Return the global ranks of this node's tasks, by local rank."""
    text = draft.env.text("SLURM_GTIDS") or ""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text, re.ASCII):
        return None
    ranks = tuple(int(rank) for rank in text.split(","))
    return ranks if len(ranks) == draft.local_world_size else None


def _first_host(draft: Draft) -> str | None:
    """Return the host of rank 0; None if it cannot be known.

    Block, cyclic and plane distributions begin on the first node. An arbitrary one
    follows its own list, and a layout by topology is noticed in rank 0 itself only.
    """
    env = draft.env
    arbitrary = env.text("SLURM_DISTRIBUTION") == "arbitrary" or env.present(
        ["SLURM_HOSTFILE", "SLURM_ARBITRARY_NODELIST"]
    )
    elsewhere = draft.rank == 0 and draft.node_rank != 0
    text = env.text("SLURM_STEP_NODELIST")
    if text is None or (draft.num_nodes != 1 and (arbitrary or elsewhere)):
        return None
    return expand_hosts(text)[0]


def _outside_brackets(text: str) -> list[str]:
    return re.split(r",(?![^\[]*\])", text.strip())


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) is not None


def _numbers(ranges: str, text: str) -> list[str]:
    found: list[str] = []
    for item in ranges.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", item, re.ASCII)
        if match is None:
            raise _no_list(text)
        low, high = int(match[1]), int(match[2] or match[1])
        if not 0 <= high - low < _MOST_HOSTS - len(found):
            raise _no_list(text)
        found += [str(n).zfill(len(match[1])) for n in range(low, high + 1)]
    return found


def _no_list(text: str) -> LaunchError:
    return LaunchError(
        f"{text!r} is no list of nodes.",
        "A list looks like n[1-3],x7 or rack[0-1]n[01-16].",
        "It comes from SLURM_STEP_NODELIST; unset what changed it, or set MASTER_ADDR.",
        ("SLURM_STEP_NODELIST",),
    )

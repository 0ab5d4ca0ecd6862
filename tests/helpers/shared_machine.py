"""Sessions on a machine that others use too: `python shared_machine.py CASE`."""

import fcntl
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

import gpumap
from gpumap.mapping.cpus import cpu_list

RANK = int(os.environ.get("RANK", "0"))
START = float(os.environ.get("START_TIMEOUT", "30"))


def say(*words: object) -> None:
    """Print a line at once, so that lines of several ranks do not mix."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def session(**options: Any) -> Any:
    """Return a session that waits for START_TIMEOUT seconds at most."""
    return gpumap.session(start_timeout=START, **options)


def idle() -> None:
    """Take idle devices, and say which; wait for a line on stdin if told to."""
    with session(strategy="idle") as s:
        say("rank", RANK, "on", s.placement.device.index)
        if flag := os.environ.get("UNTIL"):
            while not Path(flag).exists():
                time.sleep(0.05)


def asked() -> None:
    """Open a session with the options of OPTIONS, and say what this rank got."""
    logging.basicConfig(level=logging.INFO)
    options = json.loads(os.environ["OPTIONS"])
    with session(**options) as s:
        found = s.placement
        cpus = None if found.cpus is None else cpu_list(found.cpus)
        say("rank", RANK, "on", found.device.index, "cpus", cpus)


def leaves_after_its_facts() -> None:
    """Rank 1 gets SIGTERM while local rank 0 decides for both."""

    def slow(_: gpumap.Launch, __: gpumap.Node) -> int:
        time.sleep(3)
        return 0

    def leave() -> None:
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGTERM)

    if RANK == 1:
        threading.Thread(target=leave, daemon=True).start()
    with session(strategy=slow):
        say("unreachable")


def race() -> None:
    """Take any idle device, and see by another kind of lock that nobody else has it.

    A job that finds none tries again. Every third job is killed while it holds one.
    """
    number = int(os.environ["NUMBER"])
    time.sleep(random.Random(number).random() / 4)  # noqa: S311 - not for secrets
    held = False
    while not held:
        try:
            with session(strategy="idle") as s:
                hold(str(s.placement.device.uuid), killed=number % 3 == 0)
                held = True
        except gpumap.PlacementError as error:
            if "claimed by" not in error.seen:
                raise
            time.sleep(0.05)


def hold(uuid: str, *, killed: bool) -> None:
    """Hold a device for a while; another kind of lock shows that nobody else does."""
    with (Path(os.environ["WITNESSES"]) / uuid).open("w") as witness:
        try:
            fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("TWO JOBS ON", uuid)
            raise
        say("held", uuid)
        time.sleep(0.3)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)


def racing_scores() -> None:
    """Each rank would score its own device best; the scores of one rank count."""
    with session(gpus=[0, 1], scores=lambda d: 9 if d.index == RANK else 1) as s:
        say("rank", RANK, "on", s.placement.device.index)


def own_strategy() -> None:
    """A strategy that gives another answer in each process, and says where it ran."""

    def mine(launch: gpumap.Launch, _: gpumap.Node) -> int:
        say("asked in", RANK, "for", launch.rank)
        return (os.getpid() + (launch.local_rank or 0)) % 8

    with session(strategy=mine) as s:
        say("rank", RANK, "on", s.placement.device.index)


def failing_strategy() -> None:
    """A strategy that fails, in the one rank that is asked."""

    def mine(_: gpumap.Launch, __: gpumap.Node) -> int:
        raise KeyError(f"raised in rank {RANK}")

    with session(strategy=mine):
        say("unreachable")


def decider_is_killed() -> None:
    """The second node's local rank 0 ends while it decides."""

    def mine(launch: gpumap.Launch, _: gpumap.Node) -> int:
        if launch.node_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with session(strategy=mine):
        say("unreachable")


def closest() -> None:
    """Be bound as a launcher would, then take the device beside these CPUs."""
    cpus = [int(cpu) for cpu in os.environ["CPUS"].split(",")]
    os.sched_setaffinity(0, cpus)
    with session(strategy="closest") as s:
        say("rank", RANK, "on", s.placement.device.index)


def replayed() -> None:
    """Decide, and decide again by what was printed of the facts."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("gpumap").addHandler(Lines())
    logging.getLogger("gpumap").setLevel(logging.DEBUG)
    with session(strategy="idle") as s:
        facts = next(line for line in lines if "launch=" in line).splitlines()
        launch = gpumap.Launch.model_validate_json(facts[1].removeprefix("launch="))
        node = gpumap.Node.model_validate_json(facts[2].removeprefix("node="))
        again = gpumap.place(launch, node, strategy="idle")
        say("replayed", again.device.index, "of", s.placement.device.index)


class Where(IterableDataset[str]):
    """The CPUs that a DataLoader's worker may run on, and its threads."""

    def __iter__(self) -> Iterator[str]:
        """Yield one text."""
        yield cpu_list(os.sched_getaffinity(0))


def bound() -> None:
    """Run on CPUs beside the device, workers too, and as before afterwards."""
    before = os.sched_getaffinity(0), torch.get_num_threads()
    with session(device="cpu", bind=os.environ["BIND"]):
        own = cpu_list(os.sched_getaffinity(0))
        [worker] = DataLoader(Where(), batch_size=None, num_workers=1)
        say(
            "rank",
            RANK,
            "on",
            own,
            "worker",
            worker,
            "threads",
            torch.get_num_threads(),
        )
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before
    say("as before")


def rehearsed_binding() -> None:
    """A rehearsal says which CPUs it would run on, and stays where it is."""
    logging.basicConfig(level=logging.INFO)
    before = os.sched_getaffinity(0)
    with session(bind=os.environ["BIND"]):
        assert os.sched_getaffinity(0) == before


if __name__ == "__main__":
    globals()[sys.argv[1]]()

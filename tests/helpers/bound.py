"""Cases of binding for the tests: each prints what the kernel says of its threads.

Usage: python bound.py CASE FIRST LAST [OMP]; the process begins bound to these two
CPUs, with two threads for torch's operators, and OMP_NUM_THREADS=OMP, or without it.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from gpumap.errors import SessionError
from gpumap.runtime.binding import bound_to

# No machine has this CPU.
NONE = 8000


def cpus(status: str = "/proc/thread-self/status") -> str:
    """Return the CPUs of a thread, by default this one, as the kernel lists them."""
    lines = Path(status).read_text().splitlines()
    return next(x.split()[1] for x in lines if x.startswith("Cpus_allowed_list:"))


def every() -> list[str]:
    """Return the different CPUs of all threads of this process."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError, StopIteration):  # it has ended
            found.add(cpus(f"{task}/status"))
    return sorted(found)


def openmp() -> list[object]:
    """Return what processes and torch's operators are told of threads."""
    return [os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()]


def show(**what: object) -> None:
    """Print a line for the test."""
    print(json.dumps(what))


class Waiting:
    """A thread that waits until it is stopped; it may bind itself first."""

    def __init__(self, *own: int) -> None:
        """Start it."""
        self._own, self._end = own, threading.Event()
        self._there = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._there.wait(60)

    def _run(self) -> None:
        if self._own:
            os.sched_setaffinity(0, self._own)
        self._there.set()
        self._end.wait(60)

    @property
    def cpus(self) -> str:
        """Its CPUs."""
        return cpus(f"/proc/self/task/{self._thread.native_id}/status")

    def stop(self) -> None:
        """End it."""
        self._end.set()
        self._thread.join()


class Places(Dataset[str]):
    """A data set of one item: the CPUs of the process that reads it."""

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def __getitem__(self, index: int) -> str:
        """Return the reader's CPUs."""
        return cpus()


def whole(first: int, last: int) -> None:
    """Show threads and children before, inside and after a block."""
    size = 512
    torch.ones(size, size) @ torch.ones(size, size)  # starts torch's own threads
    free, own = Waiting(), Waiting(last)
    show(every=every(), openmp=openmp(), free=free.cpus, own=own.cpus)
    with bound_to([first], 1):
        inside, stays = Waiting(), Waiting(last)
        with ThreadPoolExecutor(1) as pool:
            show(
                every=sorted({*every()} - {stays.cpus}),
                openmp=openmp(),
                inside=inside.cpus,
                pool=pool.submit(cpus).result(60),
                worker=next(iter(DataLoader(Places(), num_workers=1)))[0],
                child=subprocess.run(
                    [
                        sys.executable,
                        "-c",
                        "import os; print(*os.sched_getaffinity(0))",
                    ],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=60,
                ).stdout.strip(),
            )
    new = Waiting()
    show(
        openmp=openmp(),
        main=cpus(),
        free=free.cpus,
        own=own.cpus,
        inside=inside.cpus,
        stays=stays.cpus,
        new=new.cpus,
    )
    for thread in (free, own, inside, stays, new):
        thread.stop()


def raising(_first: int, last: int) -> None:
    """Show the state after a block that raises."""
    inside: list[str] = []
    try:
        with bound_to([last], 1):
            inside += every()
            sys.exit("from the block")
    except SystemExit as error:
        show(raised=error.code, inside=inside, every=every(), openmp=openmp())


def told(first: int, _last: int) -> None:
    """Show what is told of threads inside a block and after it."""
    with bound_to([first], 1):
        inside = openmp()
    show(inside=inside, after=openmp())


def refused(first: int, _last: int) -> None:
    """Show the errors for CPUs that this machine lacks, and the state after them."""
    for wrong in ([first, NONE], [NONE]):
        try:
            with bound_to(wrong, 1):
                pass
        except SessionError as error:
            show(args=error.args[:3], every=every())


def busy(first: int, _last: int) -> None:
    """Bind and let go while threads start and end all the time."""
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            threads = [threading.Thread(target=int) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    churning = [threading.Thread(target=churn) for _ in range(2)]
    for thread in churning:
        thread.start()
    inside, after = set[str](), set[str]()
    for _ in range(30):
        with bound_to([first], 1):
            inside.update(every())
        after.update(every())
    over.set()
    for thread in churning:
        thread.join()
    show(inside=sorted(inside), after=sorted(after))


CASES: dict[str, Callable[[int, int], None]] = {
    case.__name__: case for case in (whole, raising, told, refused, busy)
}

if __name__ == "__main__":
    case, *both = sys.argv[1:4]
    first, last = map(int, both)
    for task in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(task.name), {first, last})
    torch.set_num_threads(2)
    os.environ.pop("OMP_NUM_THREADS", None)
    for omp in sys.argv[4:]:
        os.environ["OMP_NUM_THREADS"] = omp
    CASES[case](first, last)

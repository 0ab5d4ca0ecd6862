"""Binds this process to CPUs, for the time of a block or for good."""

import logging
import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gpumap.errors import SessionError
from gpumap.mapping.cpus import cpu_list
from gpumap.mapping.policy import Bind
from gpumap.runtime.placed import Placed
from gpumap.words import one_line

__all__ = ["bind_as_asked", "bind_for_good", "bound_to"]

log = logging.getLogger(__name__)

_TASKS = Path("/proc/self/task")
_OPENMP = "OMP_NUM_THREADS"


def bind_as_asked(
    placed: Placed, how: Bind | None, bind: Callable[[Collection[int], int], object]
) -> None:
    """Bind a rank to the CPUs decided for it, if any are, by bind(cpus, threads).

    A rehearsal only says which they are.

    Raises:
        SessionError: The kernel refuses, and the rank was to have CPUs of its own.
    """
    share, rank = placed.decided.cpus, placed.launch.rank
    if share is None:
        return
    cpus = cpu_list(share.cpus)
    if placed.rehearsal:
        log.info("rank %d would run on CPUs %s", rank, cpus)
        return
    try:
        bind(share.cpus, share.threads)
    except SessionError as error:
        if how == "exclusive":
            raise
        log.warning("%s", one_line(error))
    else:
        log.info("rank %d runs on CPUs %s", rank, cpus)


@contextmanager
def bound_to(cpus: Collection[int], threads: int) -> Generator[None, None, None]:
    """Bind all threads of this process to CPUs, and run torch's operators on `threads`.

    Threads and processes that start inside the block inherit the CPUs, DataLoader
    workers among them; processes that were started before keep theirs. threads goes to
    torch.set_num_threads() and, for processes that start inside, to OMP_NUM_THREADS. If
    that variable is set, both stay as they are; torchrun sets it to 1.

    Afterwards each thread has the CPUs that it had, and a thread that started inside
    has those that the main thread had, unless it has bound itself to others.

    Raises:
        SessionError: The kernel does not give this process all of these CPUs.
    """
    wanted = set(cpus)
    before: dict[int, set[int]] = {}
    for tid in _threads():
        with suppress(ProcessLookupError):  # it has ended
            before[tid] = os.sched_getaffinity(tid)
    try:
        _bind_all(wanted, before)
        with _operators_on(threads):
            yield
    finally:
        usual = before[os.getpid()]
        for tid in _threads():
            _restore(tid, before.get(tid), wanted, usual)


def bind_for_good(
    cpus: Collection[int], threads: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Bind all threads of this process to CPUs, whatever program it becomes by exec.

    Return the variables by which torch runs its operators on `threads` there, unless
    they are set.

    Raises:
        SessionError: The kernel does not give this process all of these CPUs.
    """
    _bind_all(set(cpus), {})
    return {} if environ.get(_OPENMP) else {_OPENMP: str(threads)}


def _bind_all(wanted: set[int], before: dict[int, set[int]]) -> None:
    for tid in _threads():
        _bind(tid, wanted, before)


def _threads() -> Iterator[int]:
    """Yield the id of each thread, also of those that start meanwhile."""
    seen: set[int] = set()
    while new := {int(task.name) for task in _TASKS.iterdir()} - seen:
        seen |= new
        yield from sorted(new)


def _bind(tid: int, wanted: set[int], before: dict[int, set[int]]) -> None:
    """Bind one thread; before gets what a thread had that has started meanwhile."""
    try:
        mask = os.sched_getaffinity(tid)
        if mask == wanted:
            return
        before.setdefault(tid, mask)
        os.sched_setaffinity(tid, wanted)
        given = os.sched_getaffinity(tid)
    except ProcessLookupError:  # it has ended
        return
    except OSError as error:
        raise _refused(wanted, f"The kernel says: {error.strerror}.") from None
    # Source: sched_setaffinity(2): CPUs outside the cpuset are left out, in silence.
    if given != wanted:
        raise _refused(wanted, f"The kernel gives it CPUs {cpu_list(given)} of these.")


def _restore(
    tid: int, before: set[int] | None, wanted: set[int], usual: set[int]
) -> None:
    # A cpuset that has changed meanwhile may have none of a thread's old CPUs; then the
    # kernel has given it others.
    with suppress(OSError):
        if before is not None:
            os.sched_setaffinity(tid, before)
        elif os.sched_getaffinity(tid) == wanted:
            os.sched_setaffinity(tid, usual)


def _refused(wanted: set[int], seen: str) -> SessionError:
    return SessionError(
        f"this process cannot be bound to CPUs {cpu_list(wanted)}.",
        seen,
        "Ask the launcher for these CPUs, or leave bind out.",
    )


@contextmanager
def _operators_on(threads: int) -> Generator[None, None, None]:
    told = os.environ.get(_OPENMP)
    if told:
        yield
        return
    import torch  # noqa: PLC0415 - only inside a session

    count = torch.get_num_threads()
    os.environ[_OPENMP] = str(threads)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(count)
        os.environ.pop(_OPENMP, None)
        if told is not None:
            os.environ[_OPENMP] = told

"""spawn() for tests: with a bound on all of it, which says where ranks stood."""

import faulthandler
import functools
import inspect
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from gpumap.errors import SessionError
from gpumap.mapping.device_refs import DeviceRef
from gpumap.mapping.seconds import seconds_of
from gpumap.words import plural

__all__ = ["RunRanks", "run_ranks"]

T = TypeVar("T")


class RunRanks(Protocol):
    """The type of the fixture gpumap_ranks: run_ranks() with the run's own time-out."""

    def __call__(
        self,
        function: Callable[..., T],
        /,
        *args: object,
        gpus: Sequence[DeviceRef] | None = None,
        nprocs: int | None = None,
        timeout: float | timedelta = ...,
        **kwargs: object,
    ) -> list[T]:
        """Run the function as run_ranks() does."""
        ...


def run_ranks(
    function: Callable[..., T],
    /,
    *args: object,
    gpus: Sequence[DeviceRef] | None = None,
    nprocs: int | None = None,
    timeout: float | timedelta = 120.0,
    **kwargs: object,
) -> list[T]:
    """Run a function on ranks of this machine as spawn() does, within a time.

    The other arguments, what is returned, by rank, and what is raised are spawn()'s.
    The first call of a process also waits for torch's import. The function's module is
    found by the ranks whichever --import-mode pytest has.

    Args:
        function: Called as function(*args, **kwargs) in each rank.
        args: Its arguments.
        gpus: The devices to use, in the order of the ranks; by default all visible.
        nprocs: Number of ranks; by default one per device, or one without any.
        timeout: Seconds that all of it may take, from this call on. Ranks that have not
            ended by then are ended.
        kwargs: Its keyword arguments.

    Raises:
        SessionError: Ranks did not end in time; the error's ranks names them, and its
            text says where each stood. Or as spawn() raises it.
        Exception: What a rank raised, of its own type, with notes from there.
    """
    from gpumap.spawning.spawn import spawn  # noqa: PLC0415 - it imports torch

    __tracebackhide__ = True
    seconds = seconds_of("timeout", timeout)
    with tempfile.TemporaryDirectory() as folder, _importable(function):
        bounded = _Bounded(function, time.monotonic() + seconds, folder)
        try:
            return spawn(
                bounded,
                *args,
                gpus=gpus,
                nprocs=nprocs,
                start_timeout=seconds,
                **kwargs,
            )
        except Exception as error:
            if late := _late(Path(folder)):
                raise _too_late(late, seconds) from None
            # Where the rank raised it stands in a note; spawn's own lines tell nothing.
            error.__traceback__ = None
            raise


class _Bounded(Generic[T]):
    """A function that ends its process at a deadline, and writes down where it stood.

    The deadline is of the monotonic clock, which all processes of a machine share.
    """

    def __init__(
        self, function: Callable[..., T], deadline: float, folder: str
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        with suppress(Exception):  # some of Python's own have none
            self.__signature__ = inspect.signature(function, follow_wrapped=False)
        self._parts = (function, deadline, folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Bounded, self._parts

    def __call__(self, *args: object, **kwargs: object) -> T:
        from gpumap.detect.launchers import detect_launch  # noqa: PLC0415 - in a rank

        function, deadline, folder = self._parts
        rank = detect_launch().rank
        # It stays open: what the process does after the function is bounded, too.
        self._file = Path(folder, str(rank)).open("wb")  # noqa: SIM115
        left = max(deadline - time.monotonic(), 0.001)
        faulthandler.dump_traceback_later(left, exit=True, file=self._file)
        return function(*args, **kwargs)


@contextmanager
def _importable(function: Callable[..., object]) -> Generator[None, None, None]:
    """Let new processes import a function's module, by the parent's sys.path.

    pytest's --import-mode=importlib names a test's module by its path, and leaves
    sys.path as it is.
    """
    name = str(getattr(function, "__module__", ""))
    file = getattr(sys.modules.get(name), "__file__", None)
    folders = [] if file is None else list(Path(file).parents)
    up = name.count(".") + (Path(file or "").name == "__init__.py")
    roots = [str(root) for root in folders[up : up + 1] if str(root) not in sys.path]
    sys.path[:0] = roots
    try:
        yield
    finally:
        for root in roots:
            with suppress(ValueError):
                sys.path.remove(root)


def _late(folder: Path) -> dict[int, str]:
    """Return where each rank stood that did not end in time, innermost call first."""
    told = {int(path.name): path.read_text() for path in folder.iterdir()}
    return {rank: _stood(told[rank]) for rank in sorted(told) if told[rank]}


def _stood(dump: str) -> str:
    """Return the function's part of what faulthandler wrote of all threads."""
    own = f'  File "{__file__}"'
    for thread in dump.split("\n\n"):
        calls = [line for line in thread.splitlines() if line.startswith("  File ")]
        ours = [place for place, line in enumerate(calls) if line.startswith(own)]
        if ours:
            return "\n".join(calls[: ours[0]])
    return dump.rstrip()


def _too_late(late: Mapping[int, str], seconds: float) -> SessionError:
    names = ", ".join(map(str, late))
    stacks = [f"rank {rank}, innermost call first:\n{late[rank]}" for rank in late]
    return SessionError(
        f"{plural('rank', len(late))} {names} did not end within {seconds:g} s.",
        "\n".join(stacks),
        "See for what each waits; give timeout=… more if it is only slow.",
        tuple(late),
    )

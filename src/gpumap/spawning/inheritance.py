"""Makes a process that is forked from a server like one that was freshly started.

The server was started earlier, and has imported torch. So the environment, the standard
streams, limits, CPUs and priority are set as the parent has them now, and random seeds
are drawn anew. These stay the server's: the hash seed and Python's other command-line
settings, the locale, and what libraries read from the environment when imported, except
OMP_NUM_THREADS and TORCH_DISTRIBUTED_DEBUG.
"""

import os
import resource
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.reduction import DupFd
from typing import Any, Self

import torch
import torch.distributed as dist

__all__ = ["Parent", "named"]

_LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]
_STREAMS = (1, 2)


@dataclass(frozen=True)
class Parent:
    """What a new process inherits from the one that starts it.

    Attributes:
        environ: The environment.
        threads: How many threads torch may use; None if the environment says it.
        umask: The mask of new files' permissions.
        cpus: The CPUs it may run on.
        priority: The niceness.
        limits: The resource limits, by name, soft and hard.
    """

    environ: dict[str, str]
    threads: int | None
    umask: int
    cpus: set[int]
    priority: int
    limits: dict[str, tuple[int, int]]

    @classmethod
    def now(cls, environ: dict[str, str], threads: int | None) -> "Parent":
        """Return what a process that is started now inherits."""
        umask = os.umask(0o077)
        os.umask(umask)
        return cls(
            environ=environ,
            threads=threads,
            umask=umask,
            cpus=os.sched_getaffinity(0),
            priority=os.getpriority(os.PRIO_PROCESS, 0),
            limits={n: resource.getrlimit(getattr(resource, n)) for n in _LIMITS},
        )

    def hand_on(self) -> None:
        """Make this process, forked from a server, as if this parent had started it."""
        if os.getpid() in _fresh:
            return
        _fresh.append(os.getpid())
        os.environ.clear()
        os.environ.update(self.environ)
        os.umask(self.umask)
        # A setting that the system does not allow stays the server's.
        for name, limit in self.limits.items():
            with suppress(OSError, ValueError):
                resource.setrlimit(getattr(resource, name), limit)
        with suppress(OSError):
            os.sched_setaffinity(0, self.cpus)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, self.priority)
        self._set_libraries()

    def _set_libraries(self) -> None:
        """Seed and configure what was imported before this process was forked.

        Python itself seeds its random module after each fork.
        """
        torch.default_generator.seed()
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()
        tempfile.tempdir = None
        dist.set_debug_level_from_env()
        threads = self.threads or self.environ.get("OMP_NUM_THREADS", "")
        with suppress(ValueError, RuntimeError):
            torch.set_num_threads(int(threads))


def named(name: str, parent: Parent) -> str:
    """Return a name for a new process; unpickling it sets what the process inherits.

    A new process reads its name first, before it imports the script. So what the script
    reads from the environment at its top level is the parent's current value, not the
    server's.
    """
    return _Name(name, parent) if _is_found_without_a_script() else name


class _Name(str):  # noqa: SLOT000 - a str with slots cannot have values in them
    """A name that is pickled together with what the new process inherits."""

    _parent: Parent

    def __new__(cls, name: str, parent: Parent) -> Self:
        self = super().__new__(cls, name)
        self._parent = parent
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        streams = {}
        for stream in _STREAMS:
            with suppress(OSError):
                os.fstat(stream)
                streams[stream] = DupFd(stream)
        return _read, (str(self), self._parent, streams)


def _read(name: str, parent: Parent, streams: dict[int, Any]) -> str:
    for stream, copy in streams.items():
        file = copy.detach()
        os.dup2(file, stream)
        os.close(file)
    parent.hand_on()
    return name


@cache
def _is_found_without_a_script() -> bool:
    """Tell whether a new Python can import gpumap without the script's sys.path."""
    done = subprocess.run(
        [sys.executable, "-c", "import gpumap"], capture_output=True, check=False
    )
    return done.returncode == 0


_fresh: list[int] = []

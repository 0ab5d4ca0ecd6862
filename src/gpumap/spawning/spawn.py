"""spawn: runs a function in one process for each device of this machine."""

import errno
import importlib.util
import inspect
import multiprocessing
import os
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from gpumap.detect.launchers import detect_launch, launched
from gpumap.detect.limits import files_of_spawn, refuse_few_files
from gpumap.detect.rehearsal import REHEARSAL, rehearsed_node
from gpumap.errors import DeviceError, LaunchError, SessionError
from gpumap.mapping.device_refs import DeviceRef, plain, refs_of
from gpumap.mapping.keywords import list_instead_of, nearest
from gpumap.mapping.policy import GPUS, name_of
from gpumap.mapping.seconds import start_seconds
from gpumap.rendezvous.messages import described
from gpumap.rendezvous.torch_store import store_on_loopback
from gpumap.spawning.child import Returned, work
from gpumap.spawning.inheritance import Parent, named
from gpumap.spawning.parent import Rank, end_all, first_failed, raise_from, watch
from gpumap.spawning.pickling import dumps, loads

__all__ = ["spawn"]

T = TypeVar("T")

# Imported once, by the server that all ranks are forked from.
_PRELOADED = ["torch", "torch._dynamo", "gpumap.runtime.ddp", "gpumap.spawning.child"]
# Variables that would make a child detect another launcher.
_NOT_INHERITED = ("GPUMAP_LAUNCHER", "TORCHELASTIC_RESTART_COUNT", GPUS)
_OWN = ("gpus", "nprocs", "start_timeout")
# What other libraries call it, or take beside it.
_HABITS = {
    **dict.fromkeys(
        ("num_processes", "nproc_per_node", "world_size"), "Write nprocs=2."
    ),
    "devices": "Write nprocs=2, or name the devices: gpus=[0, 1].",
    "gpu": "Write a list: gpus=[0].",
    "join": "Leave it out: spawn() waits for its processes.",
    "daemon": "Leave it out: the processes of spawn() end before it returns.",
    "start_method": "Leave it out: they are forked from a server of spawn()'s.",
    "backend": "Pass it to the session in the function.",
}


def spawn(
    function: Callable[..., T],
    /,
    *args: object,
    gpus: Sequence[DeviceRef] | None = None,
    nprocs: int | None = None,
    start_timeout: float | timedelta = 300.0,
    **kwargs: object,
) -> list[T]:
    """Run a function in one process for each device; return what it returned, by rank.

    Each process is a rank on this machine, in which ddp_session() and session() detect
    their launch, with gpus as their pool. The processes are forked from a server that
    has imported torch, so that only the first call waits for that import; it does not
    matter whether this process has started CUDA. Each is seeded anew, has this
    process's current environment and limits, and ends as a Python process does: its
    threads are waited for. Arguments and results are pickled, with tensors on
    accelerators as copies on the CPU; functions of a notebook need cloudpickle (the
    extra "notebook").

    Args:
        function: Called as function(*args, **kwargs) in each process.
        args: Its arguments, copied to every process.
        gpus: The devices to use, in the order of the ranks; by default all visible.
        nprocs: Number of processes; by default one per device, or one without any.
        start_timeout: Seconds that the processes have to start and to import the
            script, from this call on; the first call also starts the server. Once a
            process has failed, the others have as long to end, 8 at most.
        kwargs: Its keyword arguments.

    Raises:
        SessionError: A process could not start, was killed, or ended without a result;
            the function takes other arguments; this process is a rank among several
            already; or the script lacks `if __name__ == "__main__":`.
        TypeError: Neither the function nor spawn() takes an argument of that name, and
            it is like one of spawn()'s, or another library's for it.
        Exception: What a rank raised, of its own type, with notes that say which rank
            it was and what its traceback was. The other ranks are ended.
    """
    began = time.monotonic()
    _refuse_while_importing()
    _refuse_among_ranks()
    _refuse_other_arguments(function, args, kwargs)
    seconds = start_seconds("start_timeout", start_timeout, os.environ)
    gpus = _pool(gpus)
    count = _count(gpus, nprocs)
    refuse_few_files("spawn()", files_of_spawn(count))
    payload, pickler = _packed((function, args, kwargs))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    store, port = store_on_loopback()
    ranks: list[Rank] = []
    try:
        for rank in range(count):
            channel, far = context.Pipe(duplex=False)
            environ = _environment(rank, count, port, gpus)
            parent = Parent.now(environ, _threads(count))
            process = context.Process(
                target=work,
                args=(far, parent, payload, pickler),
                name=named(f"gpumap rank {rank}", parent),
            )
            # Inside the rank multiprocessing has its default start method.
            process._start_method = None  # type: ignore[assignment]  # noqa: SLF001 - multiprocessing has no public way
            ranks.append(Rank(rank, process, channel))
            _start(process)
            far.close()
        failed = watch(ranks, seconds, began)
        if failed:
            raise_from(_first(failed, store), store)
        return [_returned(rank) for rank in ranks]
    finally:
        end_all(ranks, seconds)


def _start(process: BaseProcess) -> None:
    """Start a process.

    Raises:
        SessionError: The system lacks something for it; the error says what.
    """
    main = sys.modules["__main__"]
    script = vars(main).get("__file__")
    try:
        if not _has_a_file(main):
            # The script came from standard input: there is nothing to import.
            vars(main).pop("__file__", None)
        process.start()
    except OSError as error:
        raise SessionError(
            f"{process.name} could not be started.",
            f"{error}.",
            _what_the_system_lacks(error),
        ) from error
    finally:
        if script is not None:
            vars(main)["__file__"] = script


def _has_a_file(main: ModuleType) -> bool:
    script = getattr(main, "__file__", None)
    return script is not None and Path(script).exists()


def _what_the_system_lacks(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"ulimit -n is {soft}: raise it, up to {hard}, before the script starts, "
            "or close files."
        )
    if error.errno is None:  # raised by Python: the socket's name is too long
        return (
            f"A socket's name takes 107 bytes at most, and it begins with TMPDIR, "
            f"{tempfile.gettempdir()!r}: set TMPDIR to a shorter path."
        )
    return "See what the system lacks: processes, memory, or room in TMPDIR."


def _first(failed: Sequence[Rank], store: dist.Store) -> Rank:
    """Return the rank that failed first: as the ranks reported it, or else by time."""
    known = first_failed(store)
    return next((rank for rank in failed if rank.rank in known), failed[0])


def _returned(rank: Rank) -> Any:  # noqa: ANN401 - whatever the function returned
    value = rank.message.value if isinstance(rank.message, Returned) else b""
    try:
        return loads(value)
    except Exception as error:
        raise SessionError(
            f"what rank {rank.rank} returned cannot be loaded here.",
            f"{described(error)}.",
            "Return numbers, texts, CPU tensors, or write it to a file.",
        ) from error


def _refuse_while_importing() -> None:
    """Refuse to start processes while this one is still importing the script."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SessionError(
            "spawn() was called while a new process was importing this script.",
            "Every process that spawn() starts imports the script, and would start "
            "more.",
            'Put what starts the training under `if __name__ == "__main__":`.',
        )


def _refuse_among_ranks() -> None:
    """Refuse to start a job inside each rank of a job, mostly on the same devices."""
    try:
        launch = launched()
    except LaunchError:
        return  # an incomplete launch: the new processes get their own variables
    if launch is None or launch.world_size == 1:
        return
    shared = launch.local_world_size != 1 and not launch.devices_bound
    raise SessionError(
        f"spawn() was called in rank {launch.rank} of {launch.world_size}, which "
        f"{launch.launcher} started.",
        "Each of these ranks would start a job of its own"
        + (", on the same devices." if shared else "."),
        "Open gpumap.session() or ddp_session() here without spawn(), or start the "
        "script once, by python alone. If each is meant to be a job of its own, set "
        "GPUMAP_LAUNCHER=none"
        + (", and give each gpus=[…] of its own." if shared else "."),
    )


def _refuse_other_arguments(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> None:
    """Refuse arguments that the function does not take, before any process starts."""
    try:
        # The signature of a decorator's wrapper counts, not the wrapped function's.
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 - some of Python's own have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = name_of(function)
        _refuse_names_of_others(name, set(kwargs) - set(signature.parameters))
        raise SessionError(
            f"{name} cannot be called with what spawn() was given: {error}.",
            f"It is {name}{signature}.",
            "Write spawn(function, a, b, name=c). The rank is not passed, as it is by "
            "torch.multiprocessing.spawn(function, args=(…)): in a session it is "
            "gpumap.current().rank.",
        ) from None


def _refuse_names_of_others(function: str, names: Iterable[str]) -> None:
    """Refuse arguments that are meant for spawn(), under another name than its own."""
    for name in sorted(names):
        close = nearest(name, _OWN)
        if instead := _HABITS.get(name) or (close and f"Did you mean {close}=…?"):
            message = f"neither spawn() nor {function} takes {name!r}. {instead}"
            raise TypeError(message)


def _pool(gpus: Sequence[DeviceRef] | None) -> Sequence[DeviceRef] | None:
    """Return the devices to use: gpus, or else those of GPUMAP_GPUS."""
    if gpus is None:
        named = os.environ.get(GPUS)
        return refs_of(named) if named else None
    given = cast("object", gpus)
    instead = list_instead_of(given)
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise DeviceError(
            f"gpus={gpus!r} is not a list of devices.",
            f"It is a {type(gpus).__name__}{'' if gpus else ', and empty'}.",
            instead or "Write a list, in the order of the ranks: gpus=[2, 3].",
        )
    refs = [plain(ref) for ref in gpus]
    for ref in refs:
        if "," in str(ref):
            raise DeviceError(
                f"{ref!r} is several devices.",
                f"gpus={gpus!r}.",
                "List each by itself.",
            )
    return refs


def _count(gpus: Sequence[DeviceRef] | None, nprocs: object) -> int:
    if nprocs is None:
        nprocs = _visible() if gpus is None else len(gpus)
    if isinstance(nprocs, bool) or not isinstance(nprocs, Integral) or nprocs < 1:
        raise SessionError(
            f"nprocs={nprocs!r} is not a number of processes.",
            f"gpus={gpus!r}.",
            "Write a whole number from 1, or list a device in gpus=[…] for each.",
        )
    return int(nprocs)


def _visible() -> int:
    """Count the devices without starting CUDA; 1 if there is none."""
    if wanted := os.environ.get(REHEARSAL):
        return max(
            1, len(rehearsed_node(wanted, detect_launch({}), os.environ).devices)
        )
    current = torch.accelerator.current_accelerator()
    if current is None:
        return 1
    module = torch.get_device_module(current)
    return max(1, int(module.device_count()))


def _threads(count: int) -> int | None:
    """Return each process's share of the CPUs, unless OMP_NUM_THREADS is set."""
    if count == 1 or "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, len(os.sched_getaffinity(0)) // count)


def _environment(
    rank: int, count: int, port: int, gpus: Sequence[DeviceRef] | None
) -> dict[str, str]:
    """Return a rank's environment: gpumap.spawn as launcher, the store's address."""
    inherited = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    pool = {} if gpus is None else {GPUS: ",".join(map(str, gpus))}
    return (
        inherited
        | pool
        | {
            "GPUMAP_SPAWNED": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            # This process hosts the store already.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    )


def _packed(call: tuple[object, ...]) -> tuple[bytes, str]:
    """Pickle a call, by cloudpickle if no child could import it; return by which."""
    main = sys.modules["__main__"]
    importable = _has_a_file(main) or getattr(main, "__spec__", None)
    at_prompt = not importable and getattr(call[0], "__module__", "") == "__main__"
    picklers = ["cloudpickle"] * (importlib.util.find_spec("cloudpickle") is not None)
    if importable or not (at_prompt or picklers):
        picklers.insert(0, "pickle")
    error: Exception = pickle.PicklingError("no file has what is defined there")
    for pickler in picklers:
        try:
            return dumps(call, pickler), pickler
        except Exception as failure:  # noqa: BLE001 - whatever a user's object does
            error = failure
    raise SessionError(
        "the function or its arguments cannot be sent to another process.",
        f"{described(error)}.",
        "Define them at the top level of a module, or install cloudpickle: "
        "pip install gpumap-torch[notebook].",
    ) from error

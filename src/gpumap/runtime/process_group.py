"""The process group: how it forms, and how it is destroyed or abandoned."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from importlib import import_module
from types import TracebackType
from typing import Any, NoReturn, TypeAlias
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout

from gpumap.errors import SessionError
from gpumap.notes import note
from gpumap.rendezvous.failures import Answer
from gpumap.rendezvous.gloo_sockets import GlooConnections
from gpumap.rendezvous.messages import described, first_line
from gpumap.rendezvous.rendezvous import Rendezvous
from gpumap.runtime.collectives import begun, is_standing, newest, progress
from gpumap.runtime.communicators import InTime, abort_all
from gpumap.runtime.forks import outlive
from gpumap.runtime.group_environment import group_environment
from gpumap.runtime.local_setup import LocalSetup
from gpumap.runtime.main_thread import holds_main_thread
from gpumap.runtime.session_options import SessionOptions
from gpumap.time_limits import (
    ABORT_RETURNS,
    DESTROY_RETURNS,
    GLOO_FAILS,
    INIT_RETURNS,
    LOOK_AT_COLLECTIVES,
    LOOK_AT_INIT,
    LOOK_FOR_LATE,
    TORCH_LATER,
)

__all__ = ["ProcessGroup", "list_all_ranks", "refuse_a_dead_group"]

# This module's functions have `group=group.WORLD` as a default, evaluated at import.
# The first DDP imports it (through torch._dynamo): from then on the defaults hold the
# group, its threads and its sockets for the life of the process, and destroying the
# group does not end it. Imported here, before there is a group, they hold None.
import_module("torch.distributed.nn.functional")

log = logging.getLogger(__name__)

_Hook: TypeAlias = Callable[
    [type[BaseException], BaseException, TracebackType | None], object
]


class ProcessGroup:
    """torch's default process group, from init to destroy or abort.

    A group that the user has made is only observed.

    Attributes:
        seconds: How long a collective may take.
        leaving: Set once the main thread is on its way out of the block.
    """

    def __init__(
        self, setup: LocalSetup, options: SessionOptions, rendezvous: Rendezvous
    ) -> None:
        """Take the group that exists; if there is none, form() makes it."""
        self._setup = setup
        self._options = options
        self._rendezvous = rendezvous
        self._adopted = dist.is_initialized()
        self._group = dist.group.WORLD
        self._name = _name_of(self._group)
        self._before: Mapping[str, int] = {}
        self._formed = self._adopted
        self._backend = setup.backend_in_use.lower()
        # gloo's connections break when a rank ends, and its collectives end in time.
        self._breaks = self._backend == "gloo"
        self._released = False
        of_torch = default_pg_nccl_timeout if "nccl" in self._backend else None
        timeout = options.group_timeout or of_torch or default_pg_timeout
        self.seconds = timeout.total_seconds()
        self._splits = setup.device.type != "cpu" and any(
            name in self._backend for name in _SPLITS
        )
        self._connections = GlooConnections(everything=self._adopted)
        self._variables = ExitStack()
        self._abort = InTime("abort", abort_all)
        self._forming, self._forms_since = False, 0.0
        self._stands_in, self._stands_since = -1, 0.0
        self.leaving = threading.Event()
        self._hook: _Hook = sys.excepthook
        self._installed: _Hook = sys.excepthook

    def form(self) -> None:
        """Initialise the group, after all ranks have answered the roll call.

        Raises:
            SessionError: It did not form within start_timeout, or another rank failed
                before.
        """
        if self._adopted:
            return
        setup, options = self._setup, self._options
        launch = setup.launch
        # gloo forms within start_timeout, and gets its own timeout afterwards. Other
        # groups get it now, and later than gpumap's, which can tell the other ranks.
        seconds = options.start_seconds
        if self.late_after is not None:
            seconds = self.late_after + TORCH_LATER
        self._forms_since, self._forming = time.monotonic(), True
        if self._released:
            self._forming = False
            raise SessionError(
                "another rank failed before the process group formed.",
                "This rank heard of it while it got ready.",
                "See what that rank said.",
            )
        self._before = newest()
        try:
            self._variables.enter_context(group_environment(launch, self._rendezvous))
            dist.init_process_group(
                self._backend,
                timeout=timedelta(seconds=seconds),
                store=dist.PrefixStore("group", self._rendezvous.store),
                rank=launch.rank,
                world_size=launch.world_size,
                device_id=setup.device if self._splits else None,
            )
            if self._breaks:
                _set_timeout(timedelta(seconds=self.seconds))
        except (dist.DistError, RuntimeError) as error:
            raise SessionError(
                f"the {self._backend} process group did not form, "
                f"{options.start_seconds:g} s at most.",
                f"{first_line(error)}",
                "A rank that answered the roll call did not come, or cannot be "
                "reached from here.",
            ) from error
        finally:
            self._take(dist.group.WORLD)
            self._forming = False
            self._installed = sys.excepthook
        if self._released:
            self.begin_abort()

    def _take(self, group: dist.ProcessGroup | None) -> None:
        """Take the group that init_process_group has made, if it made one."""
        if group is None:
            return
        if self._splits:
            list_all_ranks(group, self._setup.device)
        self._group, self._name = group, _name_of(group)
        self._formed = True
        _made.add(group)

    @property
    def late_after(self) -> float | None:
        """Seconds after which a collective is late; None if torch ends it by itself.

        gloo's collectives raise an error then. NCCL's watchdog ends the process, which
        tells the other ranks nothing.
        """
        if self._adopted or self._breaks:
            return None
        return self.seconds

    def is_late(self) -> bool:
        """Tell whether the group takes too long to form, or a collective to finish.

        Call it at intervals: a collective counts from the first call that sees it.
        """
        if self.late_after is None:
            return False
        if self._forming:
            return time.monotonic() - self._forms_since > self._options.start_seconds
        # The user's groups may have longer timeouts: only the session's group counts.
        return (
            self._seconds_in_one() > self.late_after
            and self.doing().stands_in is not None
        )

    def _seconds_in_one(self) -> float:
        """Return for how long calls have seen one collective stand, of any group."""
        now = time.monotonic()
        if not is_standing() or self._stands_in != begun():
            self._stands_in, self._stands_since = begun(), now
        return now - self._stands_since

    def doing(self) -> Answer:
        """Return what this rank is doing."""
        return progress(self._name, self._before)

    def intact(self) -> bool:
        """Tell whether this rank is connected to all others, as far as is known."""
        return (
            self._formed
            and not self._abort.has_begun
            and self._connections.intact(_peers())
        )

    def synchronize(self) -> None:
        """Wait for the work that is queued on this rank's device.

        Raises:
            RuntimeError: A kernel has failed.
        """
        if self._setup.device.type != "cpu":
            torch.accelerator.synchronize(self._setup.device)

    def release(self) -> None:
        """Make the main thread leave a collective that another rank will not join.

        The process is ended if the main thread stays in torch's init, which can wait
        without end for a rank that died while connecting, in a collective that gloo
        does not fail, or in another library for as long as a collective may take.
        """
        if self._adopted:
            return
        self._released = True
        self._connections.shut_down()
        if self._forming:
            self._rendezvous.cut()
            self._end_if_init_stays()
        self.begin_abort()
        # At the interpreter's end no thread can be started, and nothing is held.
        if threading.main_thread().is_alive():
            threading.Thread(
                target=self._end_if_lost if self._breaks else self._end_if_held,
                name="gpumap: last words",
                daemon=True,
            ).start()

    def begin_abort(self) -> None:
        """Begin to abort communicators that would wait for their peers."""
        if self._formed and not self._adopted and not self._breaks:
            self._abort.begin()

    def _end_if_init_stays(self) -> None:
        deadline = time.monotonic() + min(self._options.start_seconds, INIT_RETURNS)
        while self._forming:
            if time.monotonic() > deadline:
                _end("torch's init_process_group does not return")
            time.sleep(LOOK_AT_INIT)

    def _end_if_lost(self) -> None:
        """End the process if gloo stays in a collective without any connection.

        Where a rank goes between asking for a message and getting it, gloo forgets the
        message, and waits for it until the time limit.
        """
        while not self.leaving.wait(LOOK_AT_COLLECTIVES):
            if self._seconds_in_one() > GLOO_FAILS:
                _end("gloo stays in a collective that no rank can join any more")

    def _end_if_held(self) -> None:
        """End the process once a library holds the main thread for too long."""
        while not self.leaving.is_set():
            if holds_main_thread(self.seconds, self.leaving):
                _end(f"a library has held its main thread for {self.seconds:g} s")
            self.leaving.wait(LOOK_FOR_LATE)

    def destroy(self) -> None:
        """End the group after all ranks have finished.

        Raises:
            SessionError: The group could not be ended.
        """
        if self._adopted:
            return
        if dist.group.WORLD is not self._group or self._group is None:
            log.warning(
                "the process group was destroyed inside the block. gpumap does that at "
                "its end: leave dist.destroy_process_group() out."
            )
            self._restore()
            return
        try:
            if self._breaks:
                dist.destroy_process_group()
            else:
                InTime("destroy", dist.destroy_process_group).wait(DESTROY_RETURNS)
        except Exception as error:
            raise SessionError(
                f"the {self._backend} process group could not be ended.",
                described(error),
                "Training had finished; a new process is needed for another session.",
            ) from error
        finally:
            self._restore()

    def abandon(self, error: BaseException) -> None:
        """End the group without waiting for ranks that may never answer.

        gloo's connections are shut down first, even if something still refers to the
        group, so that the other ranks notice. NCCL's abort, which waits for its peers'
        aborts, is given a few seconds.
        """
        if self._adopted:
            return
        self._connections.shut_down()
        try:
            if dist.group.WORLD is not self._group or self._group is None:
                return
            if self._breaks:
                dist.destroy_process_group()
            else:
                self._abort.wait(ABORT_RETURNS)
                dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - torch has no public way
        except Exception as failure:  # noqa: BLE001 - must not hide the user's error
            note(error, f"gpumap: the process group did not end: {described(failure)}")
        finally:
            self._restore()

    def _restore(self) -> None:
        if self._group is not None and dist.group.WORLD is self._group:
            _dead.append(self._group)
            # Destroying it when Python ends would wait for its peers as well.
            _keep_all()
        # A reference to the group keeps its threads and sockets.
        self._group = None
        self.leaving.set()
        self._variables.close()
        if sys.excepthook is self._installed:
            sys.excepthook = self._hook


# Public since torch 2.14, which warns of the other one.
_set_timeout: Callable[[timedelta], None] = (
    getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout  # noqa: SLF001
)


def _name_of(group: dist.ProcessGroup | None) -> str:
    return "" if group is None else str(group.group_name)


_made: WeakSet[dist.ProcessGroup] = WeakSet()
_dead: list[dist.ProcessGroup] = []


def refuse_a_dead_group() -> None:
    """Refuse to go on if an earlier session could not end its group.

    That group would be taken for one that the user has made.

    Raises:
        SessionError: torch's default group is such a group.
    """
    if dist.is_initialized() and any(dist.group.WORLD is group for group in _dead):
        raise SessionError(
            "the process group of an earlier session is still there.",
            "It could not be ended.",
            "Start a new process for another session.",
        )


def _peers() -> list[int]:
    """Return how many other ranks each of this process's gloo groups has."""
    groups = dist.distributed_c10d._world.pg_map.items()  # noqa: SLF001 - torch has no public way
    return [group.size() - 1 for group, (backend, _) in groups if "gloo" in backend]


# Where the default group is bound to a device, torch makes new groups, a DeviceMesh's
# included, by splitting it, which fails with other backends than these. Source: torch
# 2.13, distributed_c10d.py, split_group and perform_nocolor_split.
_SPLITS = ("nccl", "xccl")


def list_all_ranks(group: dist.ProcessGroup, device: torch.device) -> None:
    """Set the list of all ranks in a default group that is bound to a device.

    torch sets it in the first such group of a process only; a DeviceMesh that splits a
    later one then ends in a segmentation fault (torch 2.13).
    """
    backend: Any = group._get_backend(device)  # noqa: SLF001 - torch has no public way
    options = getattr(backend, "options", None)
    if options is not None and hasattr(options, "global_ranks_in_group"):
        options.global_ranks_in_group = list(range(group.size()))


def _end(why: str) -> NoReturn:
    """End the process at once, since its main thread cannot, and say why."""
    sys.stderr.write(
        f"gpumap: pid {os.getpid()} ends, since another rank failed and {why}.\n"
    )
    sys.stderr.flush()
    os._exit(1)


def _keep_all() -> None:
    """Keep all groups alive until the process is gone.

    A forked child does so too, since its parent's groups have no threads there.
    """
    for group in {*dist.distributed_c10d._world.pg_map, *_made}:  # noqa: SLF001 - torch has no public way
        outlive(group)


os.register_at_fork(after_in_child=_keep_all)

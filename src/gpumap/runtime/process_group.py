"""The process group's beginning and its two ends."""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from importlib import import_module
from types import TracebackType
from typing import TypeAlias
from weakref import WeakSet

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from gpumap.errors import SessionError
from gpumap.mapping.launch import LOOPBACK, Launch
from gpumap.notes import note
from gpumap.rendezvous.failures import Answer
from gpumap.rendezvous.gloo_sockets import GlooConnections, own_address_at
from gpumap.rendezvous.interfaces import interface_of, names_itself_loopback
from gpumap.rendezvous.messages import described, first_line
from gpumap.rendezvous.rendezvous import Rendezvous
from gpumap.runtime.collectives import newest, progress
from gpumap.runtime.forks import outlive
from gpumap.runtime.local_setup import LocalSetup, SessionOptions
from gpumap.time_limits import INIT_RETURNS, LOOK_AT_INIT

__all__ = ["ProcessGroup", "refuse_a_dead_group"]

# Its functions have `group=group.WORLD` as a default, worked out when it is imported.
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

    One that exists already, and is the user's, is only looked at.
    """

    def __init__(
        self, setup: LocalSetup, options: SessionOptions, rendezvous: Rendezvous
    ) -> None:
        """Take the group that exists; without one, form() makes it."""
        self._setup = setup
        self._options = options
        self._rendezvous = rendezvous
        self._adopted = dist.is_initialized()
        self._group = dist.group.WORLD
        self._name = _name_of(self._group)
        self._before = -1
        self._formed = self._adopted
        self._backend = setup.backend_in_use
        self._connections = GlooConnections(everything=self._adopted)
        self._variables = ExitStack()
        self._forming = False
        self._hook: _Hook = sys.excepthook
        self._installed: _Hook = sys.excepthook

    def form(self) -> None:
        """Initialise the group on a store whose ranks have all answered.

        Raises:
            SessionError: It did not form within start_timeout.
        """
        if self._adopted:
            return
        setup, options = self._setup, self._options
        launch, on_cpu = setup.launch, setup.device.type == "cpu"
        # Meeting the others has its own bound; the group's is for what comes after.
        meeting = timedelta(seconds=options.start_seconds)
        self._forming = True
        self._before = newest()
        try:
            self._variables.enter_context(_gloo_in_reach(launch, self._rendezvous))
            dist.init_process_group(
                self._backend,
                timeout=meeting if self._backend == "gloo" else options.group_timeout,
                store=dist.PrefixStore("group", self._rendezvous.store),
                rank=launch.rank,
                world_size=launch.world_size,
                device_id=None if on_cpu else setup.device,
            )
            if self._backend == "gloo":
                later = options.group_timeout or default_pg_timeout
                dist.distributed_c10d._set_pg_timeout(later)  # noqa: SLF001 - torch has no public way
        except (dist.DistError, RuntimeError) as error:
            raise SessionError(
                f"the {self._backend} process group did not form, "
                f"{options.start_seconds:g} s at most.",
                f"{first_line(error)}",
                "A rank that answered the roll call did not come, or cannot be "
                "reached from here.",
            ) from error
        finally:
            self._forming = False
            self._installed = sys.excepthook
        self._formed = True
        if group := dist.group.WORLD:
            self._group = group
            self._name = _name_of(group)
            _made.add(group)

    def doing(self) -> Answer:
        """Return what this rank is doing."""
        return progress(self._name, self._before)

    def intact(self) -> bool:
        """Tell whether this rank is connected to all others, as far as is known."""
        return self._formed and self._connections.intact(_peers())

    def release(self) -> None:
        """Let the main thread out of a collective that another rank will not join.

        Where it stays in torch's init, which can wait without end for a rank that died
        while it connected, the process is ended.
        """
        if self._adopted:
            return
        self._connections.shut_down()
        if not self._forming:
            return
        self._rendezvous.cut()
        deadline = time.monotonic() + min(self._options.start_seconds, INIT_RETURNS)
        while self._forming:
            if time.monotonic() > deadline:
                sys.stderr.write(
                    f"gpumap: pid {os.getpid()} ends, since another rank failed and "
                    "torch's init_process_group does not return.\n"
                )
                sys.stderr.flush()
                os._exit(1)
            time.sleep(LOOK_AT_INIT)

    def destroy(self) -> None:
        """End the group after all ranks have finished.

        Raises:
            SessionError: It could not be ended.
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
            dist.destroy_process_group()
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

        gloo's connections are ended first, whoever still refers to the group, so that
        the others notice. NCCL's destroy waits for its peers, and its abort does not.
        """
        if self._adopted:
            return
        self._connections.shut_down()
        try:
            if dist.group.WORLD is not self._group or self._group is None:
                return
            if self._backend == "gloo":
                dist.destroy_process_group()
            else:
                dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - torch has no public way
        except Exception as failure:  # noqa: BLE001 - must not hide the user's error
            note(error, f"gpumap: the process group did not end: {described(failure)}")
        finally:
            self._restore()

    def _restore(self) -> None:
        if self._group is not None and dist.group.WORLD is self._group:
            _dead.append(self._group)
        # Whoever refers to the group keeps its threads and sockets.
        self._group = None
        self._variables.close()
        if sys.excepthook is self._installed:
            sys.excepthook = self._hook


def _name_of(group: dist.ProcessGroup | None) -> str:
    return "" if group is None else str(group.group_name)


_made: WeakSet[dist.ProcessGroup] = WeakSet()
_dead: list[dist.ProcessGroup] = []


def refuse_a_dead_group() -> None:
    """Refuse to take a group for the user's that an earlier session could not end.

    Raises:
        SessionError: That is torch's default group now.
    """
    if dist.is_initialized() and any(dist.group.WORLD is group for group in _dead):
        raise SessionError(
            "the process group of an earlier session is still there.",
            "It could not be ended.",
            "Start a new process for another session.",
        )


def _peers() -> list[int]:
    """Return how many other ranks each of this process's groups of gloo's has."""
    groups = dist.distributed_c10d._world.pg_map.items()  # noqa: SLF001 - torch has no public way
    return [group.size() - 1 for group, (backend, _) in groups if "gloo" in backend]


def _outlive_in_a_child() -> None:
    """Keep a parent's groups alive in a forked child, where they have no threads."""
    for group in {*dist.distributed_c10d._world.pg_map, *_made}:  # noqa: SLF001 - torch has no public way
        outlive(group)


os.register_at_fork(after_in_child=_outlive_in_a_child)


@contextmanager
def _gloo_in_reach(
    launch: Launch, rendezvous: Rendezvous
) -> Generator[None, None, None]:
    """Have gloo's own sockets where the other ranks come, and nowhere else.

    gloo listens where the host's name points to, unless this variable names an
    interface; torch has no argument for it. While all ranks are here that is loopback;
    while they are not, and the name points to loopback, it is the interface by which
    this rank and the store reached each other. It stays for the session, for groups
    that the user makes there; the user's own setting stays as it is.
    """
    variable = "GLOO_SOCKET_IFNAME"
    name = None if os.environ.get(variable) else _gloos_interface(launch, rendezvous)
    if name is None:
        yield
        return
    os.environ[variable] = name
    try:
        yield
    finally:
        os.environ.pop(variable, None)


def _gloos_interface(launch: Launch, rendezvous: Rendezvous) -> str | None:
    alone = launch.master_addr in LOOPBACK and not launch.several_nodes
    if launch.one_node or alone:
        names = {name for _, name in socket.if_nameindex()}
        return next(iter(names & {"lo", "lo0"}), None)
    if rendezvous.address is None or not names_itself_loopback():
        return None
    return interface_of(own_address_at(rendezvous.address[1]))

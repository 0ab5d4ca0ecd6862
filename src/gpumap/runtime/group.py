"""The process group's beginning and its two ends."""

import os
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from importlib import import_module
from types import TracebackType
from typing import TypeAlias

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from gpumap.errors import SessionError
from gpumap.mapping.launch import Launch
from gpumap.runtime.board import first_line
from gpumap.runtime.preparation import Asked, Prepared
from gpumap.runtime.tcp import LOOPBACK

__all__ = ["ProcessGroup"]

# Its functions have `group=group.WORLD` as a default, worked out when it is imported.
# The first DDP imports it (through torch._dynamo): from then on the defaults hold the
# group, its threads and its sockets for the life of the process, and destroying the
# group does not end it. Imported here, before there is a group, they hold None.
import_module("torch.distributed.nn.functional")

_Hook: TypeAlias = Callable[
    [type[BaseException], BaseException, TracebackType | None], object
]


class ProcessGroup:
    """torch's default process group, from init to destroy or abort."""

    def __init__(self, prepared: Prepared, asked: Asked, store: dist.Store) -> None:
        """Initialise the group on a store whose ranks have all answered.

        Raises:
            SessionError: It did not form within start_timeout.
        """
        self._hook: _Hook = sys.excepthook
        self._backend = prepared.backend_in_use
        self._variables = ExitStack()
        launch = prepared.placement.launch
        on_cpu = prepared.device.type == "cpu"
        # Meeting the others has its own bound; the group's is for what comes after.
        meeting = timedelta(seconds=asked.start_seconds)
        try:
            self._variables.enter_context(_gloo_on_loopback(launch))
            dist.init_process_group(
                self._backend,
                timeout=meeting if self._backend == "gloo" else asked.group_timeout,
                store=dist.PrefixStore("group", store),
                rank=launch.rank,
                world_size=launch.world_size,
                device_id=None if on_cpu else prepared.device,
            )
            if self._backend == "gloo":
                later = asked.group_timeout or default_pg_timeout
                dist.distributed_c10d._set_pg_timeout(later)  # noqa: SLF001 - torch has no public way
        except BaseException as error:
            self._installed: _Hook = sys.excepthook
            self._restore()
            if not isinstance(error, dist.DistError | RuntimeError):
                raise
            raise SessionError(
                f"the {self._backend} process group did not form, "
                f"{asked.start_seconds:g} s at most.",
                f"{first_line(error)}",
                "A rank that answered the roll call did not come, or cannot be "
                "reached from here; the notes below name it where it is known.",
            ) from error
        self._installed = sys.excepthook

    def destroy(self) -> None:
        """End the group after all ranks have finished."""
        try:
            dist.destroy_process_group()
        finally:
            self._restore()

    def abandon(self, error: BaseException) -> None:
        """End the group without waiting for ranks that may never answer.

        gloo's destroy returns at once and closes the connections, so that the others
        notice; NCCL's waits for its peers, and its abort does not.
        """
        try:
            if self._backend == "gloo":
                dist.destroy_process_group()
            else:
                dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - torch has no public way
        except Exception as failure:  # noqa: BLE001 - must not hide the user's error
            error.add_note(f"gpumap: the process group did not end: {failure}")
        finally:
            self._restore()

    def _restore(self) -> None:
        self._variables.close()
        if sys.excepthook is self._installed:
            sys.excepthook = self._hook


@contextmanager
def _gloo_on_loopback(launch: Launch) -> Generator[None, None, None]:
    """Keep gloo's own sockets on the loopback interface while all ranks are here.

    gloo listens where the host's name points to, unless this variable names an
    interface; torch has no argument for it. It stays for the session, for groups that
    the user makes there; the user's own setting stays as it is.
    """
    variable = "GLOO_SOCKET_IFNAME"
    names = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    here = launch.one_node or launch.master_addr in LOOPBACK
    if not here or not names or os.environ.get(variable):
        yield
        return
    os.environ[variable] = names.pop()
    try:
        yield
    finally:
        os.environ.pop(variable, None)

"""A warning for processes in worlds of one that share a device."""

import hashlib
import logging
import os
import socket
import struct
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from gpumap.rendezvous.members import Member
from gpumap.rendezvous.procfs import is_gone

__all__ = ["alone"]

log = logging.getLogger(__name__)


@contextmanager
def alone(me: Member) -> Generator[None, None, None]:
    """Warn if another child of the same parent is a world of one on the same device.

    It happens if a launcher's variables do not reach its processes, with a loop in a
    shell, or with a second process in a pod. While the block runs, this process listens
    at a name in the kernel's abstract namespace (unix(7)), which needs no clean-up. A
    process that finds the name taken asks the kernel which process has it. Without such
    a namespace there is no warning.
    """
    if me.identity is None or me.pid_space is None:
        yield
        return
    shared = f"{os.getuid()} {me.pid_space} {os.getppid()} {me.identity}"
    # The name of a socket has at most 108 bytes.
    name = f"\0gpumap-{hashlib.sha256(shared.encode()).hexdigest()}"
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(name)
            listener.listen()
        except OSError:
            _say(_listener_at(name), me)
        yield


def _say(other: int | None, me: Member) -> None:
    # The name stays taken while a forked child of the process that took it lives.
    if other is None or other == me.pid or is_gone(other, me.pid_space):
        return
    log.warning(
        "process %d, of the same parent as this one (%d), is alone on %s too: each is "
        "rank 0 of 1, and nothing joins them. If they are to train together, start "
        "them with torchrun, srun, mpirun or gpumap.spawn(…), whose variables say who "
        "is who; if they are not, give each a device of its own with gpus=[…]",
        *(other, me.pid, me.device),
    )


def _listener_at(name: str) -> int | None:
    """Return the process that listens at a name. Source: unix(7), SO_PEERCRED."""
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(1.0)
            one.connect(name)
            found = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except OSError:
        return None
    return int(struct.unpack("3i", found)[0])

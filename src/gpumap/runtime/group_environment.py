"""Environment variables that gloo and NCCL read while a session's groups are made."""

import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from gpumap.mapping.launch import LOOPBACK, Launch
from gpumap.rendezvous.gloo_sockets import own_address_at
from gpumap.rendezvous.interfaces import interface_of, names_itself_loopback
from gpumap.rendezvous.rendezvous import Rendezvous

__all__ = ["group_environment"]


@contextmanager
def group_environment(
    launch: Launch, rendezvous: Rendezvous
) -> Generator[None, None, None]:
    """Set these variables for a session, and so for groups that the user makes in it.

    torch has no arguments for them. A variable that the user has set stays as it is;
    the others are unset afterwards.
    """
    wanted = {**_interfaces(launch, rendezvous), **_ERRORS}
    added = {n: value for n, value in wanted.items() if not os.environ.get(n)}
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


# After a CUDA error, NCCL's watchdog ends the process within 0.1 s, before the rank can
# tell the others of it. Source: ProcessGroupNCCL.cpp, rethrowCUDAErrors_.
_ERRORS = {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"}


def _interfaces(launch: Launch, rendezvous: Rendezvous) -> Mapping[str, str]:
    """Return the interfaces where gloo and NCCL are to listen for the other ranks.

    Without these variables, gloo listens at the address of the host's name, NCCL on
    InfiniBand or the first interface that is not loopback. If all ranks are on this
    host, both get loopback. If not, and the host's name points to loopback, gloo gets
    the interface by which this rank and the store reached each other.
    """
    alone = launch.master_addr in LOOPBACK and not launch.several_nodes
    if launch.one_node or alone:
        names = {name for _, name in socket.if_nameindex()}
        name = next(iter(names & {"lo", "lo0"}), None)
        both = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return dict.fromkeys(both, name) if name else {}
    if rendezvous.address is None or not names_itself_loopback():
        return {}
    name = interface_of(own_address_at(rendezvous.address[1]))
    return {"GLOO_SOCKET_IFNAME": name} if name else {}

"""Listens at one address only, and connects to the store that listens there."""

import errno
import logging
import socket
import time

from gpumap.errors import LaunchError, RollCallError, SessionError
from gpumap.mapping.launch import LOOPBACK, Launch
from gpumap.rendezvous.interfaces import addresses, is_loopback
from gpumap.rendezvous.messages import Reminder
from gpumap.rendezvous.store_client import Client, StoreLostError
from gpumap.time_limits import GREETING, NAME_IS_KNOWN

__all__ = ["connect", "foreign", "listen"]

log = logging.getLogger(__name__)

_GREETINGS = 2


def listen(host: str, port: int, launch: Launch) -> socket.socket | None:
    """Listen on this one address; return None if it is in use.

    If it is loopback on this host, and there are ranks on other nodes, listen on every
    interface.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
    except OSError as error:
        raise _not_found(host, error) from None
    if is_loopback(str(address[0])) and launch.several_nodes:
        log.warning(
            "MASTER_ADDR %s is loopback (%s) on rank 0's own host, where other nodes "
            "cannot come: the store listens on every interface. To have it on one, set "
            "MASTER_ADDR to its address%s",
            *(launch.master_addr, address[0], _own_addresses(": {}")),
        )
        both = socket.has_dualstack_ipv6()
        family, address = (socket.AF_INET6 if both else socket.AF_INET), ("", port)
    elif is_loopback(str(address[0])) and not launch.one_node and host not in LOOPBACK:
        log.warning(
            "MASTER_ADDR %s is loopback (%s) on rank 0's own host, where other nodes "
            "cannot come. If there are any, set LOCAL_WORLD_SIZE, or NODE_RANK, or an "
            "address of the host's%s",
            *(launch.master_addr, address[0], _own_addresses(": {}")),
        )
    listener = socket.socket(family, kind)
    if address[0] == "" and family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        if error.errno == errno.EADDRNOTAVAIL:
            raise LaunchError(
                f"MASTER_ADDR {host} is not an address of {socket.gethostname()}, "
                "where rank 0 runs.",
                f"{launch.launcher}: rank 0 cannot listen on {address[0]}."
                + _own_addresses(" Its addresses are {}."),
                "Set MASTER_ADDR to one of rank 0's host on every rank. If the others "
                f"do reach rank 0 through {host} (a service, NAT, a container's host), "
                "set MASTER_ADDR=0.0.0.0 on rank 0 alone: it then listens on every "
                "interface.",
                ("MASTER_ADDR",),
            ) from None
        raise SessionError(
            f"rank 0 cannot listen on {host}:{port}.",
            f"{error.strerror}.",
            "Choose another MASTER_PORT.",
        ) from None
    return listener


def _own_addresses(sentence: str) -> str:
    """Return a sentence with this host's addresses; "" if it has none."""
    found = ", ".join(f"{address} ({name})" for name, address in addresses())
    return sentence.format(found) if found else ""


def connect(host: str, port: int, seconds: float, *, tells: bool = False) -> Client:
    """Connect to rank 0's store as soon as it is there.

    An open port can close again before the store has answered, if another job ends;
    then waiting goes on for rank 0. A port that stays open and silent is foreign.
    tells: whether to log that rank 0 is awaited.
    """
    reminder = Reminder()
    deadline = reminder.began + seconds
    refused, pause = 0, 0.01
    while True:
        left = deadline - time.monotonic()
        try:
            return Client(host, port, max(min(left, GREETING), 0.1))
        except StoreLostError:
            refused += 1
            if refused == _GREETINGS or left < 0:
                raise foreign(host, port) from None
        except OSError as error:
            waited = time.monotonic() - reminder.began
            unknown = isinstance(error, socket.gaierror)
            if unknown and (waited > NAME_IS_KNOWN or left <= pause):
                raise _not_found(host, error) from None
            if left <= pause:
                raise _no_rank_0(host, port, waited, error) from None
            if tells and reminder.due():
                log.warning(
                    "rank 0 has not opened its store at %s:%d yet (%s); "
                    "waiting for %.0f s more",
                    *(host, port, error.strerror or error, left),
                )
        time.sleep(pause)
        pause = min(2 * pause, 0.25)


def _no_rank_0(host: str, port: int, waited: float, error: OSError) -> RollCallError:
    hint = (
        "See whether rank 0 was started and what it says; then check MASTER_ADDR, "
        "MASTER_PORT and the firewall between the hosts."
    )
    if host in LOOPBACK:
        hint += f" From another host than rank 0's, {host} leads nowhere."
    return RollCallError(
        f"rank 0 did not open its store at {host}:{port} within {waited:.0f} s.",
        f"The last answer was: {error}.",
        hint,
        (0,),
    )


def foreign(host: str, port: int) -> SessionError:
    """Return the error for a port that does not answer as rank 0's store does."""
    return SessionError(
        f"port {port} on {host} belongs to another program.",
        "It does not answer as rank 0's store does; so would a rank 0 that is stopped.",
        "Choose another MASTER_PORT, the same on every rank.",
    )


def _not_found(host: str, error: OSError) -> LaunchError:
    return LaunchError(
        f"the host name {host!r} in MASTER_ADDR is not known here.",
        f"{socket.gethostname()}: {error.strerror or error}.",
        "Set MASTER_ADDR to a name or an address that every rank's host can look up.",
        ("MASTER_ADDR",),
    )

"""This host's network interfaces and the addresses at which others can reach it."""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

__all__ = ["addresses", "interface_of", "is_loopback", "names_itself_loopback"]

# linux/sockios.h; the name has 16 bytes in the request, the address 4 in the answer.
_SIOCGIFADDR = 0x8915
_IPV6 = Path("/proc/net/if_inet6")
# An unrouted test address: nothing is sent, the kernel only chooses an interface.
_ANYWHERE = ("192.0.2.1", 9)


def addresses() -> list[tuple[str, str]]:
    """Return the (interface, address) pairs at which other hosts may reach this one."""
    found = [(name, _ipv4(name)) for _, name in socket.if_nameindex()] + _ipv6()
    return [(name, x) for name, x in found if x is not None and not is_loopback(x)]


def interface_of(address: str | None) -> str | None:
    """Return the interface with an address; by default that of the default route."""
    wanted = address or _default()
    return next((name for name, own in addresses() if own == wanted), None)


def is_loopback(address: str) -> bool:
    """Tell whether an address is a loopback address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def names_itself_loopback() -> bool:
    """Tell whether this host's own name resolves to loopback, as on Debian."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return False
    return is_loopback(str(found[0][4][0]))


def _default() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(_ANYWHERE)
        except OSError:
            return None
        return str(one.getsockname()[0])


def _ipv4(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            answer = fcntl.ioctl(
                one, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15])
            )
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6() -> list[tuple[str, str | None]]:
    """Return the global IPv6 addresses, whose scope is 00, by interface."""
    try:
        lines = _IPV6.read_text().splitlines()
    except OSError:
        return []
    rows = (line.split() for line in lines)
    return [
        (row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0]))))
        for row in rows
        if row[3] == "00"
    ]

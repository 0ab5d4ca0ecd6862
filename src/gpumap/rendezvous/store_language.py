"""The language of torch's TCPStore: what its clients and its server say to each other.

Source: torch/csrc/distributed/c10d/TCPStoreBackend.hpp and TCPStore.cpp. Later versions
of torch have only added request types after these.
"""

import struct

__all__ = [
    "ADD",
    "CANCELLED",
    "CANCEL_WAIT",
    "CHECK",
    "COMPARE_SET",
    "GET",
    "LONGEST_VALUE",
    "MAGIC",
    "NO",
    "PING",
    "SET",
    "VALIDATE",
    "WAIT",
    "YES",
    "text",
]

VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT = range(7)
CANCEL_WAIT, PING = 12, 13
"""The first byte of each request."""

MAGIC = 0x3C85F7CE
"""What a client sends first, after VALIDATE."""

YES, NO = b"\0", b"\1"
"""The answers to CHECK; YES is WAIT's as well."""

CANCELLED = b"\1"
"""The answer to CANCEL_WAIT."""

LONGEST_VALUE = 4 * 2**20
"""More bytes than any value that gpumap writes."""


def text(value: bytes) -> bytes:
    r"""Return a key or a value as it is sent: its length, in 8 bytes, and then itself.

    >>> text(b"ab")
    b'\x02\x00\x00\x00\x00\x00\x00\x00ab'
    """
    return struct.pack("=Q", len(value)) + value

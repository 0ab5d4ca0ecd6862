"""What the machine itself can do at most: memory copy and TCP over loopback."""

import socket
import statistics
import threading
import time

import torch

__all__ = ["loopback_tcp", "memory_copy"]

_BYTES = 64 * 2**20
_RUNS = 7


def memory_copy() -> float:
    """Return GB/s of copying 64 MiB from memory to memory, by this process's threads.

    The bytes copied are counted once, though each is read and written.
    """
    source, target = (
        torch.ones(_BYTES, dtype=torch.uint8),
        torch.empty(_BYTES, dtype=torch.uint8),
    )
    seconds = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return _BYTES / statistics.median(seconds[1:]) / 1e9


def loopback_tcp() -> float:
    """Return GB/s of one TCP connection over loopback, in one direction."""
    payload, received = bytes(_BYTES), bytearray(_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    seconds = []
    with sender, receiver:
        for _ in range(_RUNS):
            began = time.perf_counter()
            thread = threading.Thread(target=sender.sendall, args=(payload,))
            thread.start()
            _fill(receiver, received)
            thread.join()
            seconds.append(time.perf_counter() - began)
    return _BYTES / statistics.median(seconds[1:]) / 1e9


def _fill(receiver: socket.socket, buffer: bytearray) -> None:
    rest = memoryview(buffer)
    while rest:
        rest = rest[receiver.recv_into(rest) :]

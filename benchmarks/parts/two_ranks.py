"""Jobs of two processes on this machine, started as torchrun would, for benchmarks."""

import os
import socket
import subprocess
import sys

__all__ = ["free_port", "start_ranks"]


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start_ranks(*arguments: str) -> list[subprocess.Popen[str]]:
    """Start both ranks of a job: Python with these arguments, and a port of its own."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                # All ways on the CPU, by gloo: some would choose GPUs, and some not.
                "CUDA_VISIBLE_DEVICES": "",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]

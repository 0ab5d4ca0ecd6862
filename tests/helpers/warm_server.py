"""Forks processes that run a script, from one that has imported torch: 0.1 s, not 3.

`python warm_server.py SOCKET`. A request is JSON with argv and environ, and comes with
descriptors for stdout and stderr; the answer is a line with the process id, and one
with the exit code, once it has ended. Apart from its imports the new process is like
`python script.py`: the script is __main__, and Python exits in the usual way.
"""

import gc
import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import TypedDict

# The slow imports that every rank needs.
import numpy as np  # noqa: F401
import torch
import torch._dynamo

import gpumap.runtime.ddp
import gpumap.spawning.spawn  # noqa: F401


class Request(TypedDict):
    """What a new process is to do."""

    argv: list[str]
    environ: dict[str, str]


def serve(address: str) -> Request:
    """Fork for each connection, and return its request in the new process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        # Where there is a socket, there is somebody who listens.
        listener.bind(f"{address}.new")
        listener.listen()
        Path(f"{address}.new").rename(address)
        while True:
            connection, _ = listener.accept()
            if os.fork():
                connection.close()
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            request = take(connection)
            if request is not None:
                return request
            os._exit(0)


def take(connection: socket.socket) -> Request | None:
    """Fork once more: return the request in the new process, None when it has ended."""
    data, files, *_ = socket.recv_fds(connection, 2**20, 2)
    pid = os.fork()
    if pid:
        connection.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        return None
    connection.close()
    for file, stream in zip(files, (1, 2), strict=True):
        os.dup2(file, stream)
        os.close(file)
    request: Request = json.loads(data)
    return request


if __name__ == "__main__":
    gc.freeze()
    asked = serve(sys.argv[1])
    os.environ.clear()
    os.environ.update(asked["environ"])
    torch.default_generator.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = asked["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    main = ModuleType("__main__")
    main.__file__ = sys.argv[0]
    sys.modules["__main__"] = main
    code = compile(Path(sys.argv[0]).read_text(), sys.argv[0], "exec")
    exec(code, main.__dict__)  # noqa: S102 - the script

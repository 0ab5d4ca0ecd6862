"""Starts scripts in processes that are forked from one that has imported torch."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from helpers.environments import clean_environment

__all__ = ["Script", "stop"]

_SERVER = Path(__file__).with_name("warm_server.py")


class _Server:
    """The process that the scripts of a run of tests are forked from."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._folder = tempfile.mkdtemp()
        self.address = f"{self._folder}/socket"
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER), self.address],
            env={**clean_environment(), **environ},
        )
        while not Path(self.address).exists() and self._process.poll() is None:
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder)


_started: dict[str, _Server] = {}


def stop() -> None:
    """Stop the servers, if there are any."""
    for library in list(_started):
        _started.pop(library).stop()


def _server_for(environ: Mapping[str, str]) -> _Server:
    """Return the server that has imported what a script with these variables would."""
    names = ("PYTHONPATH", "PRETEND_LIBRARY")
    own = {name: environ[name] for name in names if name in environ}
    library = own.get("PRETEND_LIBRARY", "")
    if library not in _started:
        _started[library] = _Server(own)
    return _started[library]


class Script:
    """A script's process, with the methods of subprocess.Popen."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the script; stdout and stderr are one text."""
        server = _server_for(env)
        self._out = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - it stays open
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(server.address)
        request = json.dumps({"argv": list(argv), "environ": dict(env)}).encode()
        socket.send_fds(self._connection, [request], [self._out.fileno()] * 2)
        self._answer, self._said = b"", ""
        self.pid = int(self._line(30))
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        """Return this process."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process and close its output."""
        self.kill()
        self.communicate(60)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.001)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the process to end, and return its exit code."""
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
            self._connection.close()
        return self.returncode

    def _line(self, timeout: float) -> bytes:
        self._connection.settimeout(timeout)
        while b"\n" not in self._answer:
            try:
                more = self._connection.recv(64)
            except TimeoutError:
                raise subprocess.TimeoutExpired("a script", timeout) from None
            if not more:
                raise ConnectionError
            self._answer += more
        line, _, self._answer = self._answer.partition(b"\n")
        return line

    def said(self) -> str:
        """Return what the process has written so far."""
        if not self._out.closed:
            size = os.fstat(self._out.fileno()).st_size
            self._said = os.pread(self._out.fileno(), size, 0).decode(errors="replace")
        return self._said

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Wait for the process to end, and return all that it wrote."""
        self.wait(timeout)
        self.said()
        self._out.close()
        return self._said, None

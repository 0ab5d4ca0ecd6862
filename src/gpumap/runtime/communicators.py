"""Ending communicators that wait for their peers, as NCCL's do."""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

__all__ = ["InTime", "abort_all"]


class InTime:
    """A call that may never return, made once, in a separate thread."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        """Take the call; begin() makes it."""
        self._call = call
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._error: Exception | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the call has been made."""
        return self._thread is not None

    def begin(self) -> threading.Thread:
        """Make the call, unless it was made; return its thread."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"gpumap: {self._name}", daemon=True
                )
                self._began = time.monotonic()
                self._thread.start()
            return self._thread

    def wait(self, seconds: float) -> None:
        """Make the call, unless it was made; return once the call has returned.

        Raises:
            TimeoutError: The call took longer than so many seconds since its beginning.
            Exception: What the call raised.
        """
        thread = self.begin()
        thread.join(max(self._began + seconds - time.monotonic(), 0.0))
        if self._error is not None:
            raise self._error
        if thread.is_alive():
            raise TimeoutError(f"{self._name} did not return within {seconds:g} s.")

    def _run(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            self._error = error


def abort_all() -> None:
    """Abort the communicators of all groups, so that no collective waits any longer.

    torch's list of groups stays as it is. NCCL's communicators are aborted together,
    since each abort waits for the peers', whose order may differ (pytorch 119797).
    """
    world = dist.distributed_c10d._world  # noqa: SLF001 - torch has no public way
    groups = sorted(world.pg_names, key=lambda group: world.pg_names[group])
    nccl = next((backend for group in groups for backend in _nccl_of(group)), None)
    if nccl is not None:
        nccl._group_start()  # noqa: SLF001 - as above
    try:
        for group in reversed(groups):
            group.abort()
    finally:
        if nccl is not None:
            nccl._group_end()  # noqa: SLF001 - as above


def _nccl_of(group: dist.ProcessGroup) -> list[Any]:
    """Return the NCCL backends of a group."""
    if not dist.is_nccl_available():
        return []
    backends = [group._get_backend(kind) for kind in group._device_types]  # noqa: SLF001 - as above
    return [b for b in backends if isinstance(b, dist.ProcessGroupNCCL)]

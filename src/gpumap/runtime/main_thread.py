"""Whether the main thread runs Python, or one call of a library holds it."""

import ctypes
import threading
import time
from typing import Any

__all__ = ["holds_main_thread"]

_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_LOOK = 0.5
# Pending calls are kept alive here, since Python may make them at any later time.
_asked: list[Any] = []


def holds_main_thread(seconds: float, unless: threading.Event) -> bool:
    """Tell whether the main thread runs no Python for so many seconds.

    CPython makes a pending call (Py_AddPendingCall) between two bytecodes of the main
    thread, so not during a collective, a lock or a sleep. Once the event `unless` is
    set, the answer is no.
    """
    ran = threading.Event()

    def note(_: int | None) -> int:
        ran.set()
        return 0

    call = _PENDING(note)
    _asked.append(call)
    if ctypes.pythonapi.Py_AddPendingCall(call, None) != 0:
        return False  # the queue of pending calls is full
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if unless.wait(min(_LOOK, seconds)) or ran.is_set():
            return False
    return not ran.is_set()

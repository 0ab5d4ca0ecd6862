"""Whether the main thread runs Python, or one call of a library holds it."""

import ctypes
import threading
import time
from typing import Any

__all__ = ["holds_main_thread"]

_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_LOOK = 0.5
# What Python has been asked to call, which it may do at any later time.
_asked: list[Any] = []


def holds_main_thread(seconds: float, unless: threading.Event) -> bool:
    """Tell whether the main thread runs no Python for so many seconds.

    Python is asked to call something between two steps of that thread (CPython,
    Py_AddPendingCall): a collective, a lock or a sleep lets it wait. Once the event is
    set, the answer is no.
    """
    ran = threading.Event()

    def note(_: int | None) -> int:
        ran.set()
        return 0

    call = _PENDING(note)
    _asked.append(call)
    if ctypes.pythonapi.Py_AddPendingCall(call, None) != 0:
        return False  # there are too many of them, so that nothing can be told
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if unless.wait(min(_LOOK, seconds)) or ran.is_set():
            return False
    return not ran.is_set()

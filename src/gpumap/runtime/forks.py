"""What a forked child must not end together with itself."""

import ctypes

__all__ = ["outlive"]


def outlive(thing: object) -> None:
    """Keep an object alive until the process is gone, beyond the end of Python.

    In a child that was forked, the end of a process group of its parent's waits for
    threads that exist in the parent only.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))

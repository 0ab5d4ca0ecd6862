"""Objects that must outlive a forked child."""

import ctypes

__all__ = ["outlive"]


def outlive(thing: object) -> None:
    """Keep an object alive until the process is gone, even after Python's exit.

    In a forked child, destroying a process group of the parent would wait for threads
    that exist in the parent only.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))

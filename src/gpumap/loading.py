"""Importing many modules without garbage collection, once torch is loaded."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["without_collection"]


@contextmanager
def without_collection() -> Generator[None, None, None]:
    """Disable Python's cyclic garbage collection inside a block.

    Each collection would walk all objects of torch, while imports make little garbage.
    Without it gpumap's own import takes half the time, and torch._dynamo's a third
    less.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

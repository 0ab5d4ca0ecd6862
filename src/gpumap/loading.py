"""Importing many modules at once, where torch is loaded already."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["without_collection"]


@contextmanager
def without_collection() -> Generator[None, None, None]:
    """Hold Python's cyclic garbage collection back for the length of a block.

    Each would walk all objects of torch, and an import makes little garbage: held back,
    gpumap's own costs half as much, and torch._dynamo's a third less.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

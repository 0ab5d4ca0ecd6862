"""A call in a thread, while the main thread waits in torch's init."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from gpumap.time_limits import INIT_IS_UNDER_WAY

__all__ = ["beside"]


@contextmanager
def beside(call: Callable[[], None]) -> Generator[None, None, None]:
    """Call a function in a thread if the block takes longer than a moment.

    The function may import torch._dynamo. If that import began earlier, the first steps
    of init_process_group, which clear a cache in that module, would wait for it (torch
    2.13). Errors are dropped here: the function is called again where it is needed.
    """
    is_over = threading.Event()

    def run() -> None:
        if not is_over.wait(INIT_IS_UNDER_WAY):
            with suppress(Exception):
                call()

    thread = threading.Thread(target=run, name="gpumap: import", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

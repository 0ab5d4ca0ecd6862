"""A progress bar on a terminal, and nothing anywhere else."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(steps: int) -> Generator[Callable[[str], None], None, None]:
    """Show how many steps are done; the yielded function is told each, with its name.

    No steps is for ranks that show nothing.
    """
    if not steps or not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        from rich.console import Console  # noqa: PLC0415 - the extra may be missing
        from rich.progress import Progress  # noqa: PLC0415
    except ImportError:
        print("pip install gpumap-torch[bench] shows progress here", file=sys.stderr)
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=steps)
        yield lambda name: bar.update(task, advance=1, description=name)

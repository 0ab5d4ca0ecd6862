"""Printing a whole text at once, where it may be impossible."""

import sys

__all__ = ["printed", "say"]


def printed(text: str) -> bool:
    """Print a text and a newline; tell whether it worked, and say on stderr if not.

    A reader that closes its end of a pipe is no failure.
    """
    failure = _not_printed(text)
    if failure:
        say(f"gpumap: nothing could be printed: {failure}")
    return failure is None


def say(text: str) -> None:
    """Print a text and a newline on stderr, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")


def _not_printed(text: str) -> str | None:
    """Print a text; return the reason if that failed.

    A reader that closes its end of a pipe is no failure.
    """
    if sys.stdout is None:
        return "standard output is closed"
    encoding = sys.stdout.encoding or "utf-8"
    try:
        # In one write: under a launcher other ranks print too.
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        sys.stdout.flush()
    except OSError as error:
        # Otherwise Python would try to flush the buffer again at exit, and fail.
        sys.stdout = None
        return None if isinstance(error, BrokenPipeError) else str(error)
    return None

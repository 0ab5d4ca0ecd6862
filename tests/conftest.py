"""What holds for every run of tests: it leaves no process and no file behind."""

import multiprocessing.util
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

# What multiprocessing keeps until this process ends.
_HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[None, None, None]:
    """Give all processes one folder for files; remove it, and find none alive."""
    # These two are elsewhere, and are removed by those who made them.
    tmp_path_factory.getbasetemp()
    multiprocessing.util.get_temp_dir()
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="tests-") as folder:
        Path(folder).chmod(0o755)  # munged wants every user to get through
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        yield
        if "helpers.warm" in sys.modules:
            sys.modules["helpers.warm"].stop()
        alive = [line for line in _started_with(folder) if not _is_helper(line)]
        tempfile.tempdir = None
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
    assert not alive


def _started_with(folder: str) -> list[str]:
    """Return pid, parent and command of each process that was given the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes()
            command = (
                (process / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # it has ended, or is another user's
            continue
        if f"TMPDIR={folder}\0".encode() in environ:
            words = command.replace("\0", " ")
            found.append(f"{process.name} of {parent}: {words}")
    return found


def _is_helper(line: str) -> bool:
    own = f" of {os.getpid()}: "
    return own in line and any(helper in line for helper in _HELPERS)

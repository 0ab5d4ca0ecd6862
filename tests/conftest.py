"""A fixture for every run of the tests: it leaves no process and no file behind."""

import multiprocessing.util
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

# multiprocessing's own helpers, which live until this process ends.
_HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[None, None, None]:
    """Give all processes one TMPDIR; remove it at the end, and find none alive."""
    # pytest and multiprocessing create and remove their own folders, outside TMPDIR.
    tmp_path_factory.getbasetemp()
    multiprocessing.util.get_temp_dir()
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="tests-") as folder:
        Path(folder).chmod(0o755)  # munged needs a folder that every user may enter
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


@pytest.fixture(scope="session")
def slurm_conf() -> Generator[str, None, None]:
    """Start a Slurm of three nodes for all tests that want one."""
    from helpers.cluster import slurm  # noqa: PLC0415 - who asks for it pays
    from helpers.launchers import need  # noqa: PLC0415 - as above

    need("munged", "slurmctld", "slurmd", "srun", "sbatch", root=True)
    # Not pytest's own folder: munged needs one that every user may enter.
    with tempfile.TemporaryDirectory(prefix="gpumap-slurm-") as name:
        Path(name).chmod(0o755)
        with slurm(Path(name)) as configuration:
            yield str(configuration)


def _started_with(folder: str) -> list[str]:
    """Return pid, parent and command of each process with this TMPDIR."""
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

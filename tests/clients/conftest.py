"""Fixtures of the tests with scripts of other people's libraries."""

import json
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

import gpumap
from helpers.cluster import slurm
from helpers.launchers import need

# They import what only their own session installs.
collect_ignore = ["scripts"]


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a rehearsal file of two nodes with eight GPUs each."""
    whole = gpumap.machine("dgx-a100")
    nodes = [
        json.loads(whole.model_copy(update={"hostname": host}).model_dump_json())
        for host in ("machine0", "machine1")
    ]
    path = tmp_path_factory.mktemp("rehearsal") / "machines.json"
    path.write_text(json.dumps(nodes))
    return str(path)


@pytest.fixture(scope="session")
def slurm_conf() -> Generator[str, None, None]:
    """Start a Slurm of three nodes for all tests that want one."""
    need("munged", "slurmctld", "slurmd", "srun", root=True)
    # Not pytest's own folder: munged needs one that every user may enter.
    with tempfile.TemporaryDirectory(prefix="gpumap-slurm-") as name:
        Path(name).chmod(0o755)
        with slurm(Path(name)) as configuration:
            yield str(configuration)

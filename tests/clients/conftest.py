"""Fixtures of the tests with scripts of other people's libraries."""

import json

import pytest

import gpumap

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

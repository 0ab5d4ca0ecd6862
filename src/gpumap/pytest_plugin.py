"""pytest's fixtures of gpumap, which pytest finds by itself where gpumap is installed.

Nothing of gpumap is imported until a fixture is used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpumap.mapping.devices import Node
    from gpumap.testing.ranks import RunRanks
    from gpumap.testing.rehearsing import Machine, Rehearse

__all__ = ["gpumap_ranks", "gpumap_rehearse", "pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option gpumap_timeout."""
    parser.addini(
        "gpumap_timeout",
        "seconds that a call of gpumap_ranks may take, where the test says none",
        default="120",
    )


@pytest.fixture
def gpumap_ranks(pytestconfig: pytest.Config) -> RunRanks:
    """gpumap.testing.run_ranks, within gpumap_timeout seconds of pytest's settings."""
    from gpumap.testing import run_ranks  # noqa: PLC0415 - who uses it pays

    return partial(run_ranks, timeout=float(pytestconfig.getini("gpumap_timeout")))


@pytest.fixture
def gpumap_rehearse(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Rehearse:
    """gpumap.testing.rehearse, from its call to the end of the test."""
    from gpumap.testing.rehearsing import prepared  # noqa: PLC0415 - as above

    def begin(machine: Machine) -> list[Node]:
        nodes, variables = prepared(machine, tmp_path_factory.mktemp("gpumap"))
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        return nodes

    return begin

"""The package as a whole: what importing it costs, and what it offers."""

import inspect
import subprocess
import sys

import pytest

import gpumap


def test_importing_gpumap_imports_neither_torch_nor_nvml() -> None:
    """As `python -X importtime` tells."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import gpumap"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "gpumap" in imported
    assert not {name.partition(".")[0] for name in imported} & {"torch", "pynvml"}


@pytest.mark.parametrize("names", [["place", "plan", "machine", "detect_launch"]])
def test_planning_needs_no_torch(names: list[str]) -> None:
    """A login node without torch can still say who would train where."""
    code = (
        "import sys, gpumap\n"
        f"for name in {names}: getattr(gpumap, name)\n"
        "gpumap.plan([gpumap.machine('dgx-a100')], [8]).explain()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", gpumap.__all__)
def test_every_public_name_resolves_and_has_a_docstring(name: str) -> None:
    """DeviceRef is a union of int and str, and documented where it is defined."""
    value = getattr(gpumap, name)
    if name != "DeviceRef":
        assert inspect.getdoc(value)
        assert value.__module__.startswith("gpumap.")


def test_the_public_names_are_those_of_the_table() -> None:
    """__all__ is written out for type checkers; the table is what loads."""
    assert set(gpumap.__all__) == set(gpumap._HOME)
    assert dir(gpumap) == sorted(gpumap.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gpumap.nothing  # type: ignore[attr-defined]  # noqa: B018

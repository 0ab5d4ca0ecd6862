"""The package as a whole: what importing it costs, and its public names."""

import ast
import inspect
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import gpumap
from gpumap.command.main import main
from helpers.programs import run_python


def test_importing_gpumap_imports_neither_torch_nor_nvml() -> None:
    """`import gpumap` imports neither torch nor pynvml (`python -X importtime`)."""
    done = run_python("-X", "importtime", "-c", "import gpumap")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "gpumap" in imported
    assert not {name.partition(".")[0] for name in imported} & {"torch", "pynvml"}


@pytest.mark.parametrize("names", [["place", "plan", "machine", "detect_launch"]])
def test_planning_needs_no_torch(names: list[str]) -> None:
    """Planning imports no torch, so that it works on a login node without torch."""
    code = (
        "import sys, gpumap\n"
        f"for name in {names}: getattr(gpumap, name)\n"
        "gpumap.plan([gpumap.machine('dgx-a100')], [8]).explain()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert run_python("-c", code).returncode == 0


@pytest.mark.parametrize("name", dir(gpumap))
def test_every_public_name_resolves_and_has_a_docstring(name: str) -> None:
    """Every public name has a docstring, except DeviceRef, a union of types."""
    value = getattr(gpumap, name)
    if name != "DeviceRef":
        assert inspect.getdoc(value)
        assert value.__module__.startswith("gpumap.")


def test_checkers_read_the_same_names_as_are_loaded() -> None:
    """The names that type checkers read are those that are loaded at run time."""
    tree = ast.parse(Path(gpumap.__file__).read_text())
    imported = {
        alias.asname: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert sorted(imported) == dir(gpumap) == sorted(vars(gpumap)["__all__"])
    for name, (module, source) in imported.items():
        assert getattr(import_module(str(module)), source) is getattr(gpumap, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gpumap.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_console_script_is_the_command() -> None:
    """The console script `gpumap` runs the same main() as `python -m gpumap`."""
    [script] = entry_points(group="console_scripts", name="gpumap")
    assert script.load() is main

"""Rehearsing a machine for the length of a block, whatever the environment was."""

import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter

from gpumap.detect.launchers import LAUNCHERS
from gpumap.detect.rehearsal import REHEARSAL, rehearsed_nodes
from gpumap.mapping.devices import Node
from gpumap.mapping.environment import LOCAL_RANK, RUN
from gpumap.mapping.policy import GPUS
from gpumap.mapping.visibility import ALL_MASKS

__all__ = ["Machine", "Rehearse", "prepared", "rehearse"]

Machine = str | Node | Sequence[Node]
"""A machine's name or the path of its JSON file; a node; or several nodes."""

Rehearse = Callable[[Machine], list[Node]]
"""The type of the fixture gpumap_rehearse."""

_OF_LAUNCHERS = {
    name
    for row in LAUNCHERS
    for names in (row.marks, *row.numbers.values())
    for name in names
}
# What would choose other devices or another rank than the block says.
_UNSET = (*_OF_LAUNCHERS, *ALL_MASKS, "GPUMAP_LAUNCHER", RUN, LOCAL_RANK, GPUS)


@contextmanager
def rehearse(machine: Machine) -> Generator[list[Node], None, None]:
    """Rehearse a machine for the length of a block, or of a function below it.

    In the block, and in processes that it starts, gpumap finds that machine's devices,
    and trains on the CPU. No launcher, mask or GPUMAP_GPUS of the environment counts,
    so that a test gives the same under any; the block may set its own. Afterwards these
    variables are as before. Returns the machine's nodes, for gpumap.plan().

    Raises:
        DeviceError: There is no such machine, or the file describes none.

    >>> with rehearse("dgx-a100") as [node]:
    ...     len(node.devices)
    8
    """
    with tempfile.TemporaryDirectory() as folder:
        nodes, new = prepared(machine, Path(folder))
        before = {name: os.environ.get(name) for name in new}
        _set(new)
        try:
            yield nodes
        finally:
            _set(before)


def prepared(
    machine: Machine, folder: Path
) -> tuple[list[Node], dict[str, str | None]]:
    """Return a machine's nodes, and the variables to set, or as None to unset.

    Nodes that have no file are written to one in the folder.

    Raises:
        DeviceError: There is no such machine, or the file describes none.
    """
    wanted = machine if isinstance(machine, str) else _written(machine, folder)
    nodes = rehearsed_nodes(wanted, {})
    return nodes, {**dict.fromkeys(_UNSET), REHEARSAL: wanted}


def _written(machine: Node | Sequence[Node], folder: Path) -> str:
    nodes = [machine] if isinstance(machine, Node) else list(machine)
    path = folder / "machine.json"
    path.write_bytes(TypeAdapter(list[Node]).dump_json(nodes))
    return str(path)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

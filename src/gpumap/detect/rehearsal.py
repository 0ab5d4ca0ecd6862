"""A machine that one does not have: from machines/, or from a JSON file."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import cast

from gpumap.errors import DeviceError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.visibility import visible

__all__ = ["REHEARSAL", "machine", "rehearsed_node"]

REHEARSAL = "GPUMAP_REHEARSAL"
"""The environment variable that names the machine to pretend."""

_MACHINES = files("gpumap") / "machines"


def machine(name: str) -> Node:
    """Return a well-known machine by its name.

    Raises:
        DeviceError: There is none of that name; the error lists those there are.

    >>> len(machine("dgx-a100").devices)
    8
    """
    names = sorted(
        f.name.removesuffix(".json")
        for f in _MACHINES.iterdir()
        if f.name.endswith(".json")
    )
    if name not in names:
        raise DeviceError(
            f"there is no machine {name!r}.",
            f"There are {', '.join(names)}.",
            "Name one of these, or give the path of a JSON file (with a / or .json).",
        )
    return Node.model_validate_json((_MACHINES / f"{name}.json").read_bytes())


def rehearsed_node(wanted: str, launch: Launch, environ: Mapping[str, str]) -> Node:
    """Return the machine to pretend, as this process would see it under its mask.

    wanted is a machine's name, or the path of a JSON file with one Node or a list of
    them, of which the launch's node_rank picks one.

    Raises:
        DeviceError: There is no such machine, or the file describes none.
    """
    is_path = "/" in wanted or wanted.endswith(".json")
    nodes = _from_file(Path(wanted)) if is_path else machine(wanted)
    if isinstance(nodes, Node):
        node = nodes
    else:
        place = (
            launch.node_rank if launch.node_rank is not None or len(nodes) > 1 else 0
        )
        if place is None or place >= len(nodes):
            raise DeviceError(
                f"{wanted} describes {len(nodes)} nodes; this is node_rank {place}.",
                f"{launch.launcher}: rank={launch.rank}, node_rank={place}.",
                "Describe every node, in the order of node_rank.",
            )
        node = nodes[place]
    return visible(node, environ)


def _from_file(path: Path) -> Node | list[Node]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DeviceError(
            f"{path} does not describe a machine.",
            str(error),
            "Write one with Node.model_dump_json(), or a list of them.",
        ) from None
    if isinstance(found, list):
        return [Node.model_validate(node) for node in cast("list[object]", found)]
    return Node.model_validate(found)

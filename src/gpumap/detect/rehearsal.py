"""Machines to rehearse on, from gpumap's machines/ or from a JSON file."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import cast

from gpumap.detect.launchers import detect_launch
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Node
from gpumap.mapping.identity import tells
from gpumap.mapping.launch import Launch
from gpumap.mapping.visibility import visible

__all__ = [
    "REHEARSAL",
    "machine",
    "names_a_file",
    "rehearsed_node",
    "rehearsed_nodes",
]

REHEARSAL = "GPUMAP_REHEARSAL"
"""The environment variable that names the machine to rehearse."""

_MACHINES = files("gpumap") / "machines"


def machine(name: str) -> Node:
    """Return a well-known machine by its name.

    Raises:
        DeviceError: There is no such machine; the error lists the known ones.

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


def names_a_file(wanted: str) -> bool:
    """Tell whether GPUMAP_REHEARSAL's value is a file's path, not a machine's name."""
    return "/" in wanted or wanted.endswith(".json")


def rehearsed_node(
    wanted: str, launch: Launch | None, environ: Mapping[str, str]
) -> Node:
    """Return the rehearsed machine, as this process would see it under its mask.

    wanted is a machine's name, or the path of a JSON file with one Node or a list of
    them, from which the launch's node_rank selects one; without a launch, and if there
    are several, the launch is detected from environ.

    Raises:
        DeviceError: There is no such machine, or the file describes none.
    """
    found = _described(wanted)
    if isinstance(found, Node):
        return visible(found, environ)
    if launch is None:
        if len(found) == 1:
            return visible(found[0], environ)
        launch = detect_launch(environ)
    place = launch.node_rank if launch.node_rank is not None or len(found) > 1 else 0
    if place is None or place >= len(found):
        raise DeviceError(
            f"{wanted} describes {len(found)} nodes; this is node_rank {place}.",
            f"{launch.launcher}: rank={launch.rank}, node_rank={place}.",
            "Describe every node, in the order of node_rank.",
        )
    return visible(found[place], environ)


def rehearsed_nodes(wanted: str, environ: Mapping[str, str]) -> list[Node]:
    """Return all rehearsed nodes, as processes under this mask would see them.

    Raises:
        DeviceError: There is no such machine, or the file describes none.
    """
    found = _described(wanted)
    nodes = [found] if isinstance(found, Node) else found
    return [visible(node, environ) for node in nodes]


def _described(wanted: str) -> Node | list[Node]:
    """Return the machine with this name, or the node or nodes in this file."""
    if not names_a_file(wanted):
        return machine(wanted).pretended()
    path = Path(wanted)
    found = _content(path)
    if isinstance(found, list):
        nodes = [Node.model_validate(node) for node in cast("list[object]", found)]
        if not nodes:
            raise _no_machine(path, "It is an empty list.")
    else:
        nodes = [Node.model_validate(found)]
    for node in nodes:
        _refuse_a_uuid_twice(path, node)
    nodes = [node.pretended() for node in nodes]
    return nodes if isinstance(found, list) else nodes[0]


def _content(path: Path) -> object:
    try:
        if path.exists() and not path.is_file():
            # The first process would read all of a pipe, and leave nothing.
            raise _no_machine(path, "It is no regular file.")
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _no_machine(path, str(error)) from None


def _no_machine(path: Path, seen: str) -> DeviceError:
    return DeviceError(
        f"{path} does not describe a machine.",
        seen,
        "Write one with Node.model_dump_json(), or a list of them.",
    )


def _refuse_a_uuid_twice(path: Path, node: Node) -> None:
    # Without NVML slices have their GPU's UUID; placeholders identify no device.
    uuids = [d.uuid for d in node.devices if tells(d.uuid) and not d.mig]
    twice = [uuid for uuid in dict.fromkeys(uuids) if uuids.count(uuid) > 1]
    if twice:
        crowd = ", ".join(str(d) for d in node.devices if d.uuid == twice[0])
        raise DeviceError(
            f"{path} gives several devices of {node.hostname} one UUID, {twice[0]}.",
            f"They are {crowd}.",
            "Give each a UUID of its own, or null.",
        )

"""Which GPU does this process train on?

gpumap maps ranks to devices by pure functions, checks with all ranks that the mapping
is right before training starts, and runs the session that trains on it. Importing it
imports neither torch nor NVML; the names below are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumap.detect.hardware import detect_node
    from gpumap.detect.launchers import detect_launch
    from gpumap.detect.measure import measure
    from gpumap.detect.rehearsal import machine
    from gpumap.errors import (
        DeviceError,
        GpumapError,
        LaunchError,
        PlacementError,
        RollCallError,
        SessionError,
    )
    from gpumap.mapping.best_links import best_linked
    from gpumap.mapping.device_refs import DeviceRef
    from gpumap.mapping.devices import Device, Link, Node
    from gpumap.mapping.launch import Launch
    from gpumap.mapping.placement import Conflict, Placement, place
    from gpumap.mapping.plan import Plan, plan
    from gpumap.mapping.ranks import RankLayout
    from gpumap.mapping.topology import parse_topology
    from gpumap.runtime.ddp import ddp_session
    from gpumap.runtime.session import Session, current, session
    from gpumap.spawning.spawn import spawn

_HOME = {
    "Conflict": "mapping.placement",
    "Device": "mapping.devices",
    "DeviceError": "errors",
    "DeviceRef": "mapping.device_refs",
    "GpumapError": "errors",
    "Launch": "mapping.launch",
    "LaunchError": "errors",
    "Link": "mapping.devices",
    "Node": "mapping.devices",
    "Placement": "mapping.placement",
    "PlacementError": "errors",
    "Plan": "mapping.plan",
    "RankLayout": "mapping.ranks",
    "RollCallError": "errors",
    "Session": "runtime.session",
    "SessionError": "errors",
    "best_linked": "mapping.best_links",
    "current": "runtime.session",
    "ddp_session": "runtime.ddp",
    "detect_launch": "detect.launchers",
    "detect_node": "detect.hardware",
    "machine": "detect.rehearsal",
    "measure": "detect.measure",
    "parse_topology": "mapping.topology",
    "place": "mapping.placement",
    "plan": "mapping.plan",
    "session": "runtime.session",
    "spawn": "spawning.spawn",
}

__all__ = [
    "Conflict",
    "Device",
    "DeviceError",
    "DeviceRef",
    "GpumapError",
    "Launch",
    "LaunchError",
    "Link",
    "Node",
    "Placement",
    "PlacementError",
    "Plan",
    "RankLayout",
    "RollCallError",
    "Session",
    "SessionError",
    "best_linked",
    "current",
    "ddp_session",
    "detect_launch",
    "detect_node",
    "machine",
    "measure",
    "parse_topology",
    "place",
    "plan",
    "session",
    "spawn",
]


if not TYPE_CHECKING:  # so that checkers find a name that does not exist

    def __getattr__(name: str) -> object:
        """Load a public name on first use (PEP 562)."""
        if name not in _HOME:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(f"gpumap.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)

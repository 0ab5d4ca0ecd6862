"""Which GPU does this process train on?

gpumap maps ranks to devices by pure functions, checks with all ranks that the mapping
is right before training starts, and runs the session that trains on it. Importing it
imports neither torch nor NVML; the names below are loaded when they are first used.
Only these names are public; modules and their other contents may change at any time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gpumap.loading import without_collection

if TYPE_CHECKING:
    from gpumap.detect.hardware import detect_node as detect_node
    from gpumap.detect.launchers import detect_launch as detect_launch
    from gpumap.detect.measure import measure as measure
    from gpumap.detect.rehearsal import machine as machine
    from gpumap.drawing.picture import picture as picture
    from gpumap.errors import DeviceError as DeviceError
    from gpumap.errors import GpumapError as GpumapError
    from gpumap.errors import LaunchError as LaunchError
    from gpumap.errors import PlacementError as PlacementError
    from gpumap.errors import RollCallError as RollCallError
    from gpumap.errors import SessionError as SessionError
    from gpumap.mapping.balance import Balance as Balance
    from gpumap.mapping.batches import split_batch as split_batch
    from gpumap.mapping.best_links import best_linked as best_linked
    from gpumap.mapping.device_refs import DeviceRef as DeviceRef
    from gpumap.mapping.devices import Device as Device
    from gpumap.mapping.devices import Link as Link
    from gpumap.mapping.devices import Node as Node
    from gpumap.mapping.devices import Tenant as Tenant
    from gpumap.mapping.environment import environment as environment
    from gpumap.mapping.launch import Launch as Launch
    from gpumap.mapping.placement import Conflict as Conflict
    from gpumap.mapping.placement import Placement as Placement
    from gpumap.mapping.plan import Plan as Plan
    from gpumap.mapping.plan import plan as plan
    from gpumap.mapping.pool import place as place
    from gpumap.mapping.ranks import RankLayout as RankLayout
    from gpumap.mapping.topology import parse_topology as parse_topology
    from gpumap.runtime.ddp import ddp_session as ddp_session
    from gpumap.runtime.finding import find_placement as find_placement
    from gpumap.runtime.opening import session as session
    from gpumap.runtime.opening import start as start
    from gpumap.runtime.sampler import BalancedSampler as BalancedSampler
    from gpumap.runtime.session import Session as Session
    from gpumap.runtime.session import current as current
    from gpumap.spawning.spawn import spawn as spawn

else:  # not read by type checkers, which so report a name that does not exist
    _HOME = {
        "Balance": "mapping.balance",
        "BalancedSampler": "runtime.sampler",
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
        "Tenant": "mapping.devices",
        "best_linked": "mapping.best_links",
        "current": "runtime.session",
        "ddp_session": "runtime.ddp",
        "detect_launch": "detect.launchers",
        "detect_node": "detect.hardware",
        "environment": "mapping.environment",
        "find_placement": "runtime.finding",
        "machine": "detect.rehearsal",
        "measure": "detect.measure",
        "parse_topology": "mapping.topology",
        "picture": "drawing.picture",
        "place": "mapping.pool",
        "plan": "mapping.plan",
        "session": "runtime.opening",
        "spawn": "spawning.spawn",
        "split_batch": "mapping.batches",
        "start": "runtime.opening",
    }
    __all__ = list(_HOME)

    def __getattr__(name: str) -> object:
        """Load a public name on first use (PEP 562)."""
        if name not in _HOME:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        with without_collection():
            value = getattr(import_module(f"gpumap.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Return the public names."""
        return sorted(_HOME)

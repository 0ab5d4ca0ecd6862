"""Lists of CPUs as the kernel prints them, and the CPUs beside a device."""

import re
from collections.abc import Collection, Iterable
from itertools import groupby

from gpumap.errors import DeviceError, PlacementError
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.devices import Device
from gpumap.words import plural

__all__ = ["cpu_list", "cpus_beside", "near_cpus", "no_cpus", "parse_cpu_list"]

_LIST = re.compile("[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list as the kernel prints it, in ascending order.

    Source: cpuset(7), list format.

    Raises:
        DeviceError: It is no such list.

    >>> parse_cpu_list("0-3,8,10-11")
    (0, 1, 2, 3, 8, 10, 11)
    """
    stripped = text.strip()
    if not stripped:
        return ()
    items = stripped.split(",") if _LIST.fullmatch(stripped) else []
    runs = [_run(item) for item in items]
    if not runs or not all(runs):
        raise DeviceError(
            f"{text!r} is not a list of CPUs.",
            "",
            'Write numbers and ascending ranges: "0-3,8,10-11".',
        )
    return tuple(sorted({cpu for run in runs for cpu in run}))


def _run(item: str) -> range:
    low, _, high = item.partition("-")
    return range(int(low), int(high or low) + 1)


def cpu_list(cpus: Iterable[int]) -> str:
    """Return CPUs as the kernel prints them.

    >>> cpu_list((0, 1, 2, 3, 8))
    '0-3,8'
    """
    runs: list[str] = []
    numbered = enumerate(sorted(set(cpus)))
    for _, group in groupby(numbered, key=lambda pair: pair[1] - pair[0]):
        run = [cpu for _, cpu in group]
        runs.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(runs)


def cpus_beside(
    device: Device, topology: CpuTopology, allowed: Collection[int] | None
) -> tuple[int, ...]:
    """Return the CPUs beside a device that this process may use; maybe none.

    allowed: None for all, as in a rehearsal, where this machine's do not count.
    near_cpus() says which are beside it, no_cpus() why there is none.
    """
    near = near_cpus(device, topology)
    return near if allowed is None else tuple(sorted(set(near) & set(allowed)))


def near_cpus(device: Device, topology: CpuTopology) -> tuple[int, ...]:
    """Return the CPUs beside a device: those of its NUMA node; none if it is not told.

    A GPU's own memory can be a NUMA node without CPUs. Then, and if the node is not
    told, these are the device's cpu_affinity, or else the CPUs at the least distance
    from the node, or all of them if only one node has CPUs.
    """
    with_cpus = [node for node in topology.nodes if node.cpus]
    own = next((n for n in topology.nodes if n.index == device.numa_node), None)
    if own is not None and own.cpus:
        return own.cpus
    if device.cpu_affinity:
        return device.cpu_affinity
    if own is not None and own.distances:
        indices = [node.index for node in topology.nodes]
        far = dict(zip(indices, own.distances, strict=True))
        least = min((far[node.index] for node in with_cpus), default=0)
        nearest = [node for node in with_cpus if far[node.index] == least]
        return tuple(cpu for node in nearest for cpu in node.cpus)
    return with_cpus[0].cpus if len(with_cpus) == 1 else ()


def no_cpus(
    device: Device, topology: CpuTopology, allowed: Collection[int]
) -> PlacementError:
    """Return the error that says why cpus_beside() is empty."""
    near = near_cpus(device, topology)
    if not near:
        told = "not told" if device.numa_node is None else device.numa_node
        count = sum(1 for node in topology.nodes if node.cpus)
        return PlacementError(
            f"the system does not tell which CPUs are beside {device}.",
            f"Its NUMA node is {told}; the CPUs of {count} NUMA "
            f"{plural('node', count)} are known.",
            "Leave bind out, or bind the ranks with the launcher (srun --cpu-bind, "
            "mpirun --bind-to).",
        )
    return PlacementError(
        f"no CPU beside {device} is left to this process.",
        f"CPUs {cpu_list(near)} are beside it; the cgroup allows "
        f"{cpu_list(allowed) or 'none'}.",
        "Ask the launcher for CPUs beside the device, or write "
        'strategy="closest", which takes devices beside the CPUs that there are.',
    )

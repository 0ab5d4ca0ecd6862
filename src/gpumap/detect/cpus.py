"""The CPUs of this host and those that this process may use, from the kernel's files.

Files are read below `root`, "/" unless a test has its own.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gpumap.errors import DeviceError
from gpumap.mapping.cpu_topology import CpuTopology, NumaNode
from gpumap.mapping.cpus import parse_cpu_list
from gpumap.mapping.devices import Node

__all__ = ["allowed_cpus", "bound_cpus", "near_of_pci", "read_topology", "with_cpus"]

_ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
# The CPUs that a cgroup's processes can have, by the type of its file system.
_FILES = {"cgroup": "cpuset.effective_cpus", "cgroup2": "cpuset.cpus.effective"}


def read_topology(root: Path = _ROOT) -> CpuTopology:
    """Return the NUMA nodes and the physical cores of this host, online CPUs only.

    It is empty where /sys does not tell them.

    Source: the kernel's ABI, sysfs-devices-node and sysfs-devices-system-cpu.
    """
    online = _listed(root / _CPUS / "online")
    folders = _numbered(root / _NODES, "node")
    rows = [_distances(folder / "distance") for folder in folders.values()]
    square = all(len(row) == len(folders) for row in rows)
    cores = {
        _kept(_listed(folder / "topology/thread_siblings_list") or (cpu,), online)
        for cpu, folder in _numbered(root / _CPUS, "cpu").items()
    }
    return CpuTopology(
        nodes=tuple(
            NumaNode(
                index=index,
                cpus=_kept(_listed(folder / "cpulist"), online),
                distances=row if square else (),
            )
            for (index, folder), row in zip(folders.items(), rows, strict=True)
        ),
        cores=tuple(sorted(core for core in cores if core)),
    )


def with_cpus(node: Node, root: Path = _ROOT) -> Node:
    """Return the node with this host's CPUs, and with what is beside each device.

    NVML tells NUMA nodes and CPUs of NVIDIA's devices; where they are missing, the
    kernel tells them for every PCI device.
    """
    devices = list(node.devices)
    for place, device in enumerate(devices):
        untold = device.numa_node is None and device.cpu_affinity is None
        if untold and device.pci_bus_id is not None:
            numa_node, cpus = near_of_pci(device.pci_bus_id, root)
            told = {"numa_node": numa_node, "cpu_affinity": cpus}
            devices[place] = device.model_copy(update=told)
    update = {"devices": tuple(devices), "cpus": read_topology(root)}
    return node.model_copy(update=update)


def near_of_pci(
    pci_bus_id: str, root: Path = _ROOT
) -> tuple[int | None, tuple[int, ...] | None]:
    """Return a PCI device's NUMA node and the CPUs beside it; None if not told.

    Where the firmware does not tell the node, the kernel's file says -1, and that of
    the CPUs lists all that are online.

    Source: the kernel's ABI, sysfs-bus-pci.
    """
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        folder = root / "sys/bus/pci/devices" / f"{int(domain, 16):04x}:{rest}"
        numa_node = int(_text(folder / "numa_node"))
    except ValueError:
        return None, None
    if numa_node < 0:
        return None, None
    return numa_node, _listed(folder / "local_cpulist") or None


def bound_cpus() -> tuple[int, ...]:
    """Return the CPUs that this thread is bound to; none where it cannot be told."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0)))


def allowed_cpus(root: Path = _ROOT) -> tuple[int, ...]:
    """Return the CPUs that this process could bind itself to: those of its cpuset.

    A launcher may have bound the process to fewer, which it can undo; what lies outside
    the cpuset it cannot have. Without a cpuset, these are all online CPUs.

    Source: cpuset(7), cgroups(7) and the kernel's documentation of cgroup v2.
    """
    found = (_listed(path) for path in _cpusets(root))
    online = _listed(root / _CPUS / "online")
    return next((cpus for cpus in found if cpus), online or bound_cpus())


def _cpusets(root: Path) -> Iterator[Path]:
    """Yield the files that may list the cpuset's CPUs, the one that counts first.

    A cgroup without such a file, or with an empty one, has its parent's CPUs. Where v1
    has the cpusets, v2 has none; the kernel lists its cgroup last.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, cgroup = line.split(":", 2)
        if number != "0" and "cpuset" not in controllers.split(","):
            continue
        kind = "cgroup2" if number == "0" else "cgroup"
        for begin, top in _mounts(root, kind):
            path = PurePosixPath(cgroup)
            # In a container the mount can begin below the root of the path.
            inside = path.relative_to(begin) if path.is_relative_to(begin) else ""
            for folder in (top / inside, *(top / inside).parents):
                yield folder / _FILES[kind]
                if folder == top:
                    break


def _mounts(root: Path, kind: str) -> Iterator[tuple[str, Path]]:
    """Yield each mount of a file system: the path in it that is mounted, and where."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, system = line.partition(" - ")
        if system.partition(" ")[0] == kind:
            begin, point = mount.split(" ")[3:5]
            yield begin, root / point.lstrip("/")


def _numbered(folder: Path, name: str) -> dict[int, Path]:
    """Return the folders that are named so and numbered, in order."""
    found = {path.name.removeprefix(name): path for path in folder.glob(f"{name}*")}
    numbers = sorted(int(number) for number in found if number.isdecimal())
    return {number: found[str(number)] for number in numbers}


def _kept(cpus: tuple[int, ...], online: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(cpu for cpu in cpus if cpu in online) if online else cpus


def _distances(path: Path) -> tuple[int, ...]:
    words = _text(path).split()
    return tuple(int(word) for word in words) if all(map(str.isdecimal, words)) else ()


def _listed(path: Path) -> tuple[int, ...]:
    try:
        return parse_cpu_list(_text(path))
    except DeviceError:
        return ()


def _text(path: Path) -> str:
    """Return a file's text; "" if there is none that this process may read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

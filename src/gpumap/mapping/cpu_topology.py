"""The CPUs of a host: its NUMA nodes and physical cores."""

from collections.abc import Collection
from typing import Self

from pydantic import model_validator

from gpumap.errors import DeviceError
from gpumap.mapping.base import FrozenModel, Index
from gpumap.words import plural

__all__ = ["CpuTopology", "NumaNode", "cores_of"]


class NumaNode(FrozenModel):
    """One NUMA node of a host.

    Attributes:
        index: The kernel's number; numbers may be missing between two nodes.
        cpus: Its logical CPUs; none for memory alone, such as a GPU's on GB200.
        distances: The kernel's distance to each of CpuTopology.nodes, 10 to itself;
            empty if it is not told.
    """

    raises = DeviceError

    index: Index
    cpus: tuple[Index, ...] = ()
    distances: tuple[Index, ...] = ()


class CpuTopology(FrozenModel):
    """The online CPUs of a host; empty where the system does not tell them.

    Attributes:
        nodes: The NUMA nodes, by index.
        cores: The logical CPUs (hyper-threads) of each physical core.

    Raises:
        DeviceError: A node has distances to more or fewer nodes than there are.
    """

    raises = DeviceError

    nodes: tuple[NumaNode, ...] = ()
    cores: tuple[tuple[Index, ...], ...] = ()

    @model_validator(mode="after")
    def _is_square(self) -> Self:
        count = len(self.nodes)
        for node in self.nodes:
            if len(node.distances) not in (0, count):
                raise DeviceError(
                    f"NUMA node {node.index} has {len(node.distances)} distances.",
                    f"The host has {count} NUMA {plural('node', count)}.",
                    "Give it one to each node, in the order of nodes, or none.",
                )
        return self


def cores_of(cpus: Collection[int], topology: CpuTopology) -> list[tuple[int, ...]]:
    """Return the physical cores of these CPUs, in order, without other CPUs.

    A CPU of which the topology does not tell the core counts as one.
    """
    whole = {cpu: core for core in topology.cores for cpu in core}
    parts: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(cpus):
        parts.setdefault(whole.get(cpu, (cpu,)), []).append(cpu)
    return [tuple(part) for _, part in sorted(parts.items())]

"""Real machines' NUMA nodes, cores and GPUs, from the tables in tests/data/cpus."""

import json
from dataclasses import dataclass
from pathlib import Path

from gpumap.mapping.cpu_topology import CpuTopology, NumaNode
from gpumap.mapping.cpus import parse_cpu_list
from gpumap.mapping.devices import Device

__all__ = ["MACHINES", "Machine", "machine"]

_FOLDER = Path(__file__).parents[1] / "data/cpus"

MACHINES = sorted(path.stem for path in _FOLDER.glob("*.json"))


@dataclass(frozen=True)
class Machine:
    """One machine.

    Attributes:
        nodes: The kernel's list of each NUMA node's CPUs, by its index.
        distances: From each node to each.
        sibling: How far apart the two hyper-threads of a core are; 0 if it has one.
        gpus: The NUMA node of each GPU.
    """

    nodes: dict[int, str]
    distances: list[list[int]]
    sibling: int
    gpus: list[int]

    @property
    def cpus(self) -> list[int]:
        """All CPUs."""
        return sorted(cpu for x in self.nodes.values() for cpu in parse_cpu_list(x))

    @property
    def cores(self) -> list[tuple[int, ...]]:
        """The hyper-threads of each core."""
        if not self.sibling:
            return [(cpu,) for cpu in self.cpus]
        return [(cpu, cpu + self.sibling) for cpu in range(self.sibling)]

    @property
    def topology(self) -> CpuTopology:
        """The same as a value."""
        rows = zip(self.nodes.items(), self.distances, strict=True)
        return CpuTopology(
            nodes=tuple(
                NumaNode(index=n, cpus=parse_cpu_list(cpus), distances=tuple(row))
                for (n, cpus), row in rows
            ),
            cores=tuple(self.cores),
        )

    @property
    def devices(self) -> list[Device]:
        """Its GPUs, as torch and the kernel describe them."""
        return [
            Device(
                kind="cuda",
                index=index,
                pci_bus_id=f"00000000:{16 + index:02x}:00.0",
                numa_node=numa_node,
            )
            for index, numa_node in enumerate(self.gpus)
        ]


def machine(name: str) -> Machine:
    """Return a machine by its name."""
    table = json.loads((_FOLDER / f"{name}.json").read_bytes())
    return Machine(
        nodes={int(index): cpus for index, cpus in table["nodes"].items()},
        distances=table["distances"],
        sibling=table["sibling"],
        gpus=table["gpus"],
    )

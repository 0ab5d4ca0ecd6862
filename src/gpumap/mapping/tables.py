"""Tables of placements, devices and links, as text."""

from collections.abc import Callable, Iterable, Sequence

from gpumap.mapping.cpus import cpu_list
from gpumap.mapping.devices import Device, Link, Node, Tenant
from gpumap.mapping.placement import Placement

__all__ = ["aligned", "device_table", "link_name", "link_table", "placement_table"]

_COLUMNS: dict[str, Callable[[Device], object]] = {
    "device": lambda d: f"{d.kind}:{d.index}",
    "physical": lambda d: d.physical_index,
    "UUID": lambda d: d.uuid,
    "PCI bus ID": lambda d: d.pci_bus_id,
    "name": lambda d: d.name,
    "memory": lambda d: _gib(d.total_memory),
    "free": lambda d: _gib(d.free_memory),
    "busy": lambda d: None if d.utilization is None else f"{d.utilization} %",
    "SMs": lambda d: d.multiprocessors,
    "NUMA": lambda d: d.numa_node,
    "CPUs": lambda d: cpu_list(d.cpu_affinity or ()),
    "used by": lambda d: _tenants(d.tenants),
    "slice of": lambda d: d.mig,
}


_CPUS = 6
"""The column of a placement's CPUs, left out if no rank is bound to any."""


def placement_table(
    placements: Iterable[Placement], hostname: Callable[[int], str]
) -> str:
    """Return a line for each placement; hostname maps a node_rank to its host."""
    rows = [["rank", "node", "host", "local_rank", "device", "name", "CPUs", "why"]]
    for placement in placements:
        launch, device = placement.launch, placement.device
        host = hostname(launch.node_rank or 0)
        rows.append(
            [
                *(str(launch.rank), _or_unknown(launch.node_rank)),
                *(host, _or_unknown(launch.local_rank)),
                *(str(device), device.name or "", cpu_list(placement.cpus or ())),
                placement.why,
            ]
        )
    if not any(row[_CPUS] for row in rows[1:]):
        rows = [[*row[:_CPUS], *row[_CPUS + 1 :]] for row in rows]
    return aligned(rows)


def _or_unknown(place: int | None) -> str:
    return "?" if place is None else str(place)


def device_table(node: Node) -> str:
    """Return a line for each device, in torch's order, with index and physical index.

    A column in which nothing is known is left out.
    """
    known = {
        name: ["" if (x := value(d)) is None else str(x) for d in node.devices]
        for name, value in _COLUMNS.items()
    }
    columns = [[name, *cells] for name, cells in known.items() if any(cells)]
    return aligned([list(row) for row in zip(*columns, strict=True)])


def link_table(node: Node) -> str:
    """Return the link between each two devices, in the terms of `nvidia-smi topo -m`.

    Devices have torch's indices, which may differ from nvidia-smi's.
    """
    names = [f"{device.kind}:{device.index}" for device in node.devices]
    cells = [
        ["X" if a == b else "?" for b in range(len(names))] for a in range(len(names))
    ]
    for link in node.links:
        cells[link.a][link.b] = cells[link.b][link.a] = link_name(link)
    rows = [["links", *names]]
    rows += [[name, *row] for name, row in zip(names, cells, strict=True)]
    return aligned(rows)


def link_name(link: Link) -> str:
    """Return NV2 for two NVLinks, XGMI, or the path over PCIe; "?" if it is unknown."""
    if link.nvlinks:
        return f"NV{link.nvlinks}"
    return "XGMI" if link.xgmi else link.pcie or "?"


def _tenants(tenants: Sequence[Tenant] | None) -> str | None:
    """Return who uses or claims a device, in words; None if that was not asked for."""
    if tenants is None:
        return None
    words = (f"{x} (claim)" if x.claims else str(x) for x in tenants)
    return "; ".join(words) or "nobody"


def _gib(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**30:.1f} GiB"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

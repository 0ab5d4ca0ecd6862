"""Parses the link matrix that nvidia-smi or rocm-smi prints into a Node.

Sources: `nvidia-smi topo -m` and its legend, `rocm-smi --showtopo`, and what people
paste of them: tabs or spaces, network cards, blank cells, colours, quoted by "#".
"""

import re
from collections.abc import Sequence

from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Link, Node
from gpumap.words import plural

__all__ = ["parse_topology"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*[mK]")  # grep --color writes K as well
_GPU = re.compile(r"GPU(\d{1,3})")
_PCIE = {name: name for name in ("PIX", "PXB", "PHB", "NODE", "SYS")} | {"SOC": "SYS"}
# One or several cells of the matrix; some drivers print network cards' without a gap.
_CELLS = re.compile(r"(X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|MX|XGMI)+")
_CPUS = re.compile("[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
# The longest text of a NUMA node, a number or a range; lists of CPUs are longer.
_LONGEST_NODE = 6


def parse_topology(text: str, hostname: str = "unknown") -> Node:
    """Return the node that a printed link matrix describes.

    Reads `nvidia-smi topo -m` (and MetaX's mx-smi, which prints the same form) and
    `rocm-smi --showtopo`. Blank cells are None; Link.pcie is None for NVLinks, whose
    PCIe path nvidia-smi does not print.

    Raises:
        DeviceError: There is no whole matrix, or it contradicts itself. Nothing is
            guessed.

    >>> text = '''      GPU0  GPU1  CPU Affinity  NUMA Affinity
    ... GPU0   X    NV4   0-3           0
    ... GPU1  NV4    X    0-3           0'''
    >>> parse_topology(text).links
    (Link(a=0, b=1, nvlinks=4, xgmi=False, pcie=None),)
    """
    lines = [_COLOURS.sub("", line).lstrip("# ") for line in text.splitlines()]
    link_types = [n for n, line in enumerate(lines) if "Link Type between" in line]
    if link_types:
        lines = lines[link_types[0] + 1 :]
        numa = dict(re.findall(r"GPU\[(\d+)\].*Numa Node: (\d+)", text))
        return _node(hostname, _matrix(lines, "rocm-smi"), numa, {}, rocm=True)
    matrix = _matrix(lines, "nvidia-smi")
    numa, cpus = _affinities(lines)
    return _node(hostname, matrix, numa, cpus)


def _matrix(lines: Sequence[str], program: str) -> list[list[str]]:
    """Return the GPU block, one row per GPU, checked."""
    header = next((line for line in lines if _GPU.search(line)), "")
    columns = [int(number) for number in _GPU.findall(header)]
    rows = _rows(lines)
    count = len(columns)
    whole = columns == list(range(count)) and list(rows) == columns
    if not count or not whole or _is_row(header):
        raise _unreadable(
            f"{program} lists {count} GPUs in its header and {len(rows)} "
            f"{plural('row', len(rows))} of links."
        )
    matrix = [cells[:count] for cells in rows.values()]
    for a, cells in enumerate(matrix):
        if len(cells) != count:
            raise _unreadable(f"The row of GPU{a} has {len(cells)} of {count} cells.")
    for a, cells in enumerate(matrix):
        for b, cell in enumerate(cells):
            own = cell in ("X", "0")
            if (a == b) != own or not _is_link(cell) or matrix[b][a] != cell:
                raise _unreadable(f"The cell of GPU{a} and GPU{b} is {cell!r}.")
    return matrix


def _rows(lines: Sequence[str]) -> dict[int, list[str]]:
    """Return the cells of each line that begins with a GPU and continues with links."""
    rows: dict[int, list[str]] = {}
    for line in lines:
        if _is_row(line):
            label, *cells = line.split()
            number = int(label[3:])
            if number in rows:
                break
            rows[number] = cells
    return rows


def _is_row(line: str) -> bool:
    words = line.split()
    return (
        len(words) > 1 and _GPU.fullmatch(words[0]) is not None and _is_link(words[1])
    )


def _is_link(cell: str) -> bool:
    return cell in {*_PCIE, "X", "0", "MX", "XGMI", "PCIE"} or (
        re.fullmatch(r"NV\d{1,3}", cell) is not None
    )


def _affinities(lines: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the NUMA node and the CPUs of each GPU, where they can be told apart."""
    header = next(line for line in lines if _GPU.search(line))
    headings = [
        str(found)
        for found in re.findall(
            "CPU Affinity|NUMA Affinity|Node Affinity|NUMA ID", header
        )
    ]
    numa: dict[str, str] = {}
    cpus: dict[str, str] = {}
    for number, cells in _rows(lines).items():
        rest = [cell for cell in cells if not _CELLS.fullmatch(cell)]
        if len(rest) == len(headings):
            found = dict(zip(headings, rest, strict=True))
        else:
            # A cell is blank: only a long text is surely a list of CPUs.
            lists = [cell for cell in rest if len(cell) > _LONGEST_NODE]
            found = {"CPU Affinity": lists[0]} if lists else {}
        near = found.get("NUMA Affinity", found.get("Node Affinity", ""))
        if re.fullmatch("[0-9]{1,5}", near):
            numa[str(number)] = near
        if _CPUS.fullmatch(found.get("CPU Affinity", "")):
            cpus[str(number)] = found["CPU Affinity"]
    return numa, cpus


def _node(
    hostname: str,
    matrix: list[list[str]],
    numa: dict[str, str],
    cpus: dict[str, str],
    *,
    rocm: bool = False,
) -> Node:
    return Node(
        hostname=hostname,
        devices=tuple(
            Device(
                kind="cuda",
                index=place,
                physical_index=place,
                numa_node=int(numa[str(place)]) if str(place) in numa else None,
                cpu_affinity=_expand(cpus[str(place)]) if str(place) in cpus else None,
                rocm=rocm,
            )
            for place in range(len(matrix))
        ),
        links=tuple(
            _link(a, b, matrix[a][b])
            for a in range(len(matrix))
            for b in range(a + 1, len(matrix))
        ),
    )


def _link(a: int, b: int, cell: str) -> Link:
    if cell.startswith("NV"):
        return Link(a=a, b=b, nvlinks=int(cell[2:]))
    # MetaX's links count as XGMI, a fabric like AMD's; rocm-smi's PCIE has no path.
    fields = {"xgmi": cell in ("XGMI", "MX"), "pcie": _PCIE.get(cell)}
    return Link.model_validate({"a": a, "b": b, **fields})


def _expand(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for item in text.split(","):
        low, _, high = item.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


def _unreadable(seen: str) -> DeviceError:
    return DeviceError(
        "this is not a whole link matrix.",
        seen,
        "Give all that `nvidia-smi topo -m` or `rocm-smi --showtopo` prints.",
    )

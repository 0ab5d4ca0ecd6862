"""The words in a picture, and where its devices stand."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from gpumap.mapping.devices import Device, Link, Node
from gpumap.mapping.placement import Placement
from gpumap.words import plural

__all__ = [
    "MOST_NODES",
    "link_label",
    "places",
    "product",
    "products",
    "ranks_label",
    "title",
]

MOST_NODES = 8
"""How many nodes a picture has room for."""

_LONGEST = 11  # letters that a box holds
_BESIDE = 0.78  # from one device's middle to the next, of which a box takes 0.62
_PCIE = {
    "PIX": "PCIe, one bridge (PIX)",
    "PXB": "PCIe, several bridges (PXB)",
    "PHB": "PCIe, host bridge (PHB)",
    "NODE": "PCIe, NUMA node (NODE)",
    "SYS": "PCIe, across sockets (SYS)",
}


def places(count: int) -> list[tuple[float, float]]:
    """Return the middle (x, y) of each device, clockwise on a circle from top left.

    >>> [(round(x, 1), round(y, 1)) for x, y in places(4)]
    [(-0.7, 0.7), (0.7, 0.7), (0.7, -0.7), (-0.7, -0.7)]
    """
    if count == 1:
        return [(0.0, 0.0)]
    if count == 2:  # noqa: PLR2004 - a circle would keep them far apart
        return [(-_BESIDE, 0.0), (_BESIDE, 0.0)]
    radius = max(1.0, _BESIDE / 2 / math.sin(math.pi / count))
    turns = [0.25 + (0.5 - place) / count for place in range(count)]
    return [
        (radius * math.cos(2 * math.pi * turn), radius * math.sin(2 * math.pi * turn))
        for turn in turns
    ]


def ranks_label(ranks: Sequence[int]) -> str:
    """Return the ranks on a device, in few words; nothing for none.

    >>> ranks_label([3]), ranks_label([0, 4]), ranks_label(range(9))
    ('rank 3', 'ranks 0, 4', '9 ranks')
    """
    if not ranks:
        return ""
    listed = f"{plural('rank', len(ranks))} {', '.join(map(str, ranks))}"
    return listed if len(listed) <= _LONGEST else f"{len(ranks)} ranks"


def product(device: Device) -> str:
    """Return the product's name without its maker's; nothing if it is unknown.

    >>> product(Device(kind="cuda", index=0, name="NVIDIA GeForce RTX 3090"))
    'RTX 3090'
    """
    return (device.name or "").removeprefix("NVIDIA ").removeprefix("GeForce ")


def products(devices: Iterable[Device]) -> str:
    """Return how many devices there are of each product, or that there is none.

    >>> products([Device(kind="cuda", index=0, name="Tesla T4")])
    '1 x Tesla T4'
    """
    found = Counter(product(device) or device.kind for device in devices)
    if not found:
        return "no accelerator"
    return ", ".join(f"{count} x {name}" for name, count in found.items())


def link_label(link: Link) -> str:
    """Return what a line for this link means; nothing if nothing is known of it.

    >>> link_label(Link(a=0, b=1, nvlinks=4)), link_label(Link(a=0, b=1, pcie="SYS"))
    ('4 NVLinks', 'PCIe, across sockets (SYS)')
    """
    if link.nvlinks:
        return "1 NVLink" if link.nvlinks == 1 else f"{link.nvlinks} NVLinks"
    if link.xgmi:
        return "XGMI"
    return _PCIE[link.pcie] if link.pcie else ""


def title(nodes: Sequence[Node], placements: Sequence[Placement]) -> str:
    """Return how many ranks there are, on how many nodes, by which strategy."""
    launch = placements[0].launch
    ranks, count = launch.world_size or len(placements), launch.num_nodes or len(nodes)
    some = f", {MOST_NODES} of them drawn" if len(nodes) > MOST_NODES else ""
    return (
        f"{ranks} {plural('rank', ranks)} on {count} {plural('node', count)}{some}, "
        f"strategy {placements[0].strategy}"
    )

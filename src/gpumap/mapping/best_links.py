"""Choosing the best-connected k of n devices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from types import MappingProxyType

from gpumap.errors import PlacementError
from gpumap.mapping.device_refs import DeviceRef, resolve_all
from gpumap.mapping.devices import Device, Link, Node
from gpumap.words import plural

__all__ = ["BANDWIDTHS", "MOST_EXACT", "best_linked", "link_speeds", "ring_link"]

# GB/s in one direction, of one NVLink and of each other class of link: a model, whose
# order is what choices depend on. NVLink and PCIe 3 x16: NCCL src/graph/topo.h (2.30);
# NODE and PHB lie between NCCL's values for PCIe and for crossing sockets; XGMI: AMD's
# MI200 and MI300 platforms. SOC, in old drivers, is SYS.
BANDWIDTHS: Mapping[str, float] = MappingProxyType(
    {
        "NVLINK": 20.0,
        "XGMI": 50.0,
        "PIX": 12.0,
        "PXB": 12.0,
        "PHB": 10.0,
        "NODE": 9.0,
        "SYS": 6.0,
    }
)
MOST_EXACT = 16
"""The largest pool for which the choice is exact; beyond, it is greedy with swaps."""


def best_linked(
    node: Node,
    k: int,
    pool: Iterable[DeviceRef] | None = None,
    required: Iterable[DeviceRef] = (),
    *,
    bandwidths: Mapping[str, float] = BANDWIDTHS,
) -> tuple[Device, ...]:
    """Return the k devices among which an all-reduce runs fastest, in index order.

    Of all sets of k devices from the pool that contain the required ones, this is the
    one with the fastest best ring (by its slowest link), then the highest sum of links,
    then the fewest NUMA nodes, then the lowest indices. Exact for pools of up to 16
    devices, greedy with swaps beyond. A pair whose link is unknown counts as
    unconnected.

    Raises:
        DeviceError: A device is named that is not there.
        PlacementError: k is not between the number required and the pool's size, or a
            required device is not in the pool.

    >>> from gpumap.detect.rehearsal import machine
    >>> [d.index for d in best_linked(machine("rtx3090x4"), 2, pool=[1, 2, 3])]
    [2, 3]
    """
    devices = node.devices if pool is None else resolve_all(pool, node)
    members = sorted({device.index for device in devices})
    needed = sorted({device.index for device in resolve_all(required, node)})
    _check(k, members, needed)
    task = _Task(
        speeds=link_speeds(node, bandwidths),
        places=[_place(device) for device in node.devices],
        k=k,
        needed=frozenset(needed),
    )
    chosen = task.exact(members) if len(members) <= MOST_EXACT else task.greedy(members)
    return tuple(node.devices[index] for index in chosen)


def ring_link(
    node: Node,
    devices: Iterable[Device],
    bandwidths: Mapping[str, float] = BANDWIDTHS,
) -> tuple[float, Link | None]:
    """Return the slowest link of the best ring through 2 to 16 devices, and its GB/s.

    The link is None if it is unknown.
    """
    chosen = tuple(sorted({device.index for device in devices}))
    speeds = link_speeds(node, bandwidths)
    speed = next(s for s in _levels(speeds, chosen) if _rings(speeds, chosen, s))
    inside = (link for link in node.links if {link.a, link.b} <= set(chosen))
    return speed, next((x for x in inside if _speed(x, bandwidths) == speed), None)


def link_speeds(
    node: Node, bandwidths: Mapping[str, float] = BANDWIDTHS
) -> list[list[float]]:
    """Return the bandwidth between each two devices in GB/s; 0 if it is unknown."""
    speeds = [[0.0] * len(node.devices) for _ in node.devices]
    for link in node.links:
        speeds[link.a][link.b] = speeds[link.b][link.a] = _speed(link, bandwidths)
    return speeds


@dataclass(frozen=True)
class _Task:
    """A search for the best set, with devices given by their indices.

    Attributes:
        speeds: Bandwidth between each two devices.
        places: NUMA node of each device, or else the CPUs near it.
        k: How many devices to choose.
        needed: The devices that the set must contain.
    """

    speeds: list[list[float]]
    places: list[int | tuple[int, ...] | None]
    k: int
    needed: frozenset[int]

    def exact(self, members: Sequence[int]) -> tuple[int, ...]:
        """Return the best set of those that reach the highest ring speed of any set."""
        if self.k == len(members):
            return tuple(members)
        # Sorting keeps the order of equals: the lowest indices come first.
        sets = sorted(
            self._sets(members),
            key=lambda s: (self._total(s), -self._nodes(s)),
            reverse=True,
        )
        levels = _levels(self.speeds, members)
        return next(s for x in levels for s in sets if _rings(self.speeds, s, x))

    def greedy(self, members: Sequence[int]) -> tuple[int, ...]:
        """Grow a set from the best start, then swap members while that improves it."""
        start = max(members, key=lambda m: (max(self.speeds[m]), -m))
        chosen = self.needed or frozenset([start])
        while len(chosen) < self.k:
            grown = (chosen | {m} for m in members if m not in chosen)
            chosen = max(grown, key=self._worth)
        while better := self._swapped(chosen, members):
            chosen = better
        return tuple(sorted(chosen))

    def _swapped(
        self, chosen: frozenset[int], members: Sequence[int]
    ) -> frozenset[int] | None:
        """Return the first set with one other member that is worth more."""
        others = [m for m in members if m not in chosen]
        swaps = product(sorted(chosen - self.needed), others)
        sets = (chosen - {out} | {new} for out, new in swaps)
        worth = self._worth(chosen)
        return next((s for s in sets if self._worth(s) > worth), None)

    def _sets(self, members: Sequence[int]) -> Iterator[tuple[int, ...]]:
        free = [m for m in members if m not in self.needed]
        for added in combinations(free, self.k - len(self.needed)):
            yield tuple(sorted((*self.needed, *added)))

    def _total(self, chosen: Sequence[int]) -> float:
        return sum([self.speeds[a][b] for a, b in combinations(chosen, 2)])

    def _nodes(self, chosen: Iterable[int]) -> int:
        """Return the number of NUMA nodes; unknown ones count as one."""
        return len({self.places[m] for m in chosen})

    def _worth(self, chosen: Iterable[int]) -> tuple[float, float, int, int]:
        members = tuple(sorted(chosen))
        slowest = min(
            (sorted(self.speeds[a][b] for b in members if b != a)[-2:] or [0.0])[0]
            for a in members
        )
        return slowest, self._total(members), -self._nodes(members), -sum(members)


def _levels(speeds: Sequence[Sequence[float]], members: Sequence[int]) -> list[float]:
    """Return how fast a ring through some members can be, the fastest first."""
    return sorted({speeds[a][b] for a, b in combinations(members, 2)}, reverse=True)


def _rings(
    speeds: Sequence[Sequence[float]], chosen: tuple[int, ...], level: float
) -> bool:
    """Tell whether a ring through all of a set has no link slower than a level."""
    if len(chosen) == 1:
        return True
    near = {a: {b for b in chosen if b != a and speeds[a][b] >= level} for a in chosen}
    fewest = min(map(len, near.values()))
    if 2 * fewest >= len(chosen):  # Dirac's theorem; a pair has its one link
        return True
    return (
        fewest > 1 and _hangs_together(near) and _closes(chosen[0], [chosen[0]], near)
    )


def _hangs_together(near: Mapping[int, set[int]]) -> bool:
    reached, edge = set[int](), {next(iter(near))}
    while edge:
        reached |= edge
        edge = set[int]().union(*(near[a] for a in edge)) - reached
    return len(reached) == len(near)


def _closes(start: int, path: list[int], near: Mapping[int, set[int]]) -> bool:
    if len(path) == len(near):
        return start in near[path[-1]]
    for following in near[path[-1]]:
        if following in path:
            continue
        path.append(following)
        if _closes(start, path, near):
            return True
        path.pop()
    return False


def _place(device: Device) -> int | tuple[int, ...] | None:
    return device.cpu_affinity if device.numa_node is None else device.numa_node


def _speed(link: Link, bandwidths: Mapping[str, float]) -> float:
    if link.nvlinks:
        return link.nvlinks * bandwidths["NVLINK"]
    if link.xgmi:
        return bandwidths["XGMI"]
    return bandwidths[link.pcie] if link.pcie else 0.0


def _check(k: object, members: Sequence[int], needed: Sequence[int]) -> None:
    if isinstance(k, bool) or not isinstance(k, int):
        raise PlacementError(
            f"k={k!r} is not a number of devices.",
            "",
            "Write a whole number from 1.",
        )
    outside = [index for index in needed if index not in members]
    if outside:
        raise PlacementError(
            f"required devices {outside} are not in the pool.",
            f"The pool is {list(members)}.",
            "Add them to the pool, or do not require them.",
        )
    if not max(1, len(needed)) <= k <= len(members):
        raise PlacementError(
            f"{k} {plural('device', k)} cannot be chosen.",
            f"The pool has {len(members)}, and {len(needed)} are required.",
            f"Ask for {max(1, len(needed))} to {len(members)}.",
        )

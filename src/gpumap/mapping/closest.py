"""The devices nearest to the CPUs that the launcher has bound the ranks to."""

from collections.abc import Mapping, Sequence
from math import lcm

from gpumap.errors import PlacementError
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.cpus import near_cpus
from gpumap.mapping.devices import Device
from gpumap.words import plural

__all__ = ["closest_devices"]

# The distances of Linux where the firmware gives none. Source: linux/topology.h,
# LOCAL_DISTANCE and REMOTE_DISTANCE.
_LOCAL, _REMOTE = 10, 20


def closest_devices(
    cpus_by_local_rank: Sequence[Sequence[int]],
    devices: Sequence[Device],
    topology: CpuTopology,
) -> tuple[Device, ...]:
    """Return the device of each rank of a node, by local rank.

    A rank is as far from a device as its CPUs are on average: the kernel's distance
    from a CPU's NUMA node to the device's, or, where that is not told, 10 for a CPU
    beside the device and 20 for others. Of all ways to give each rank a device of its
    own, this is the one with the least sum. Of equal ones it is the one in which local
    rank 0 has the earliest device of the list, then local rank 1, and so on: ranks that
    are bound to nothing get the devices in order.

    Raises:
        PlacementError: There are more ranks than devices.

    >>> cards = [Device(kind="cuda", index=i, numa_node=1 - i) for i in range(2)]
    >>> host = CpuTopology.model_validate(
    ...     {"nodes": [{"index": 0, "cpus": (0, 1)}, {"index": 1, "cpus": (2, 3)}]}
    ... )
    >>> [device.index for device in closest_devices([(0, 1), (2, 3)], cards, host)]
    [1, 0]
    """
    ranks, count = len(cpus_by_local_rank), len(devices)
    if ranks > count:
        raise PlacementError(
            f"{ranks} {plural('rank', ranks)} of a node cannot each have the closest "
            f"of {count} {plural('device', count)}.",
            f"The pool is {', '.join(map(str, devices)) or 'empty'}.",
            f"Start {count} processes on each node, or list {ranks} devices in "
            "gpus=[…].",
        )
    distances = [_distances(device, topology) for device in devices]
    # Whole numbers compare exactly: an average times a common multiple of its divisors.
    # Below it, a number whose digits are the places of local rank 0, 1, … breaks ties.
    multiple = lcm(*(max(len(cpus), 1) for cpus in cpus_by_local_rank))
    costs = [
        [
            sum(far.get(cpu, _REMOTE) for cpu in cpus)
            * (multiple // max(len(cpus), 1) * count**ranks)
            + place * count ** (ranks - 1 - local_rank)
            for place, far in enumerate(distances)
        ]
        for local_rank, cpus in enumerate(cpus_by_local_rank)
    ]
    return tuple(devices[place] for place in _cheapest(costs))


def _distances(device: Device, topology: CpuTopology) -> Mapping[int, int]:
    """Return the distance from CPUs to a device; CPUs that are left out are remote."""
    beside = dict.fromkeys(near_cpus(device, topology), _LOCAL)
    indices = [node.index for node in topology.nodes]
    if device.numa_node not in indices:
        return beside
    place = indices.index(device.numa_node)
    told = [node for node in topology.nodes if node.distances]
    return beside | {cpu: x.distances[place] for x in told for cpu in x.cpus}


def _cheapest(costs: Sequence[Sequence[int]]) -> list[int]:
    """Return a column for each row, no column twice, with the least sum of costs.

    The Hungarian method, in time rows² · columns: each row in turn takes a column, by
    the cheapest chain of exchanges with rows before it. Prices keep every cost less its
    row's and its column's price at 0 or more, and at 0 for columns that are taken.

    Source: J. Munkres, Algorithms for the Assignment and Transportation Problems, 1957.
    """
    columns = range(len(costs[0])) if costs else range(0)
    row_price, column_price = [0] * len(costs), [0] * len(columns)
    owner: dict[int, int] = {}
    for new, cost in enumerate(costs):
        excess = {c: cost[c] - column_price[c] for c in columns}
        before = dict.fromkeys(columns, -1)
        passed: list[int] = []
        while True:
            nearest = min(excess, key=lambda c: (excess[c], c))
            step = excess.pop(nearest)
            row_price[new] += step
            for c in passed:
                row_price[owner[c]] += step
                column_price[c] -= step
            if nearest not in owner:
                break
            passed.append(nearest)
            row = owner[nearest]
            for c, old in excess.items():
                other = costs[row][c] - row_price[row] - column_price[c]
                if other < old - step:
                    before[c] = nearest
                excess[c] = min(other, old - step)
        while before[nearest] >= 0:
            owner[nearest] = owner[before[nearest]]
            nearest = before[nearest]
        owner[nearest] = new
    return [column for column, _ in sorted(owner.items(), key=lambda pair: pair[1])]

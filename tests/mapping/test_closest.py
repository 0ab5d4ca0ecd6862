"""The devices nearest to the ranks' CPUs, against guides of sites and brute force."""

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumap.errors import PlacementError
from gpumap.mapping.closest import closest_devices
from gpumap.mapping.cpu_topology import CpuTopology, NumaNode
from gpumap.mapping.cpus import near_cpus
from gpumap.mapping.devices import Device
from helpers.cpus import MACHINES, machine


def closest(name: str, cpus: list[range], gpus: list[int] | None = None) -> list[int]:
    """Return the index of each rank's device; gpus is the pool, all by default."""
    there = machine(name)
    pool = there.devices if gpus is None else [there.devices[gpu] for gpu in gpus]
    return [device.index for device in closest_devices(cpus, pool, there.topology)]


@pytest.mark.parametrize(
    ("name", "cpus", "expected"),
    [
        # ALCF's guide: mpiexec --ppn 4 --depth 8 --cpu-bind depth, and its script
        # set_affinity_gpu_polaris.sh, which takes GPU 3 - local rank.
        ("polaris", [range(8 * r, 8 * r + 8) for r in range(4)], [3, 2, 1, 0]),
        ("polaris", [range(8, 16), range(24, 32)], [2, 0]),
        # OLCF's guide: srun -n8 -c7 --gpu-bind=closest; core 0 of 8 is the system's.
        (
            "frontier",
            [range(8 * r + 1, 8 * r + 8) for r in range(8)],
            [4, 5, 2, 3, 6, 7, 0, 1],
        ),
        # Nodes 0, 2, 4 and 6 have no GPU; those of the same socket are nearer.
        ("dgx-a100", [range(64, 80), range(16), range(96, 112)], [4, 0, 5]),
        ("gb200", [range(72, 144), range(72), range(72, 80)], [2, 0, 3]),
        # All CPUs, or none told: nothing is nearer.
        ("two-sockets", [range(96)] * 4, [0, 1, 2, 3]),
        ("two-sockets", [range(0)] * 2, [0, 1]),
        # Three ranks on a socket with two GPUs: one of them has to go across.
        ("two-sockets", [range(24, 48)] * 3 + [range(24)], [0, 2, 3, 1]),
        # Most of rank 0's CPUs are on the second socket.
        ("two-sockets", [range(20, 30), range(24)], [2, 0]),
        ("two-sockets", [], []),
    ],
)
def test_ranks_get_the_devices_beside_their_cpus(
    name: str, cpus: list[range], expected: list[int]
) -> None:
    """The devices are those that the sites' guides, or arithmetic by hand, give."""
    assert closest(name, cpus) == expected


def test_equally_near_devices_are_dealt_in_the_order_of_the_pool() -> None:
    """Of devices that are equally near, lower local ranks get those listed first."""
    assert closest("two-sockets", [range(96)] * 2, [3, 0, 1]) == [3, 0]
    assert closest("two-sockets", [range(24)] * 2, [3, 1, 0]) == [1, 0]


def test_a_device_that_is_listed_twice_is_given_twice() -> None:
    """Two ranks beside a device that stands in the pool twice both get it."""
    assert closest("two-sockets", [range(24)] * 2, [2, 0, 0]) == [0, 0]


def test_a_devices_own_list_of_cpus_serves_without_a_topology() -> None:
    """Where only the devices' CPUs are told, those decide."""
    cards = [
        Device(kind="cuda", index=0, cpu_affinity=(4, 5, 6, 7)),
        Device(kind="cuda", index=1, cpu_affinity=(0, 1, 2, 3)),
    ]
    found = closest_devices([(0, 1), (4, 5)], cards, CpuTopology())
    assert [device.index for device in found] == [1, 0]


def test_more_ranks_than_devices_are_refused() -> None:
    """With more ranks than devices the error has both numbers and names the pool."""
    with pytest.raises(PlacementError) as caught:
        closest("two-sockets", [range(24)] * 3, [1, 2])
    assert caught.value.args[:3] == (
        "3 ranks of a node cannot each have the closest of 2 devices.",
        "The pool is cuda:1, cuda:2.",
        "Start 2 processes on each node, or list 3 devices in gpus=[…].",
    )


@st.composite
def hosts(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Draw the distances between nodes of two CPUs, ranks' CPUs, devices' nodes."""
    nodes = draw(st.integers(1, 4))
    far = st.sampled_from([10, 12, 21, 32])
    distances = [[draw(far) for _ in range(nodes)] for _ in range(nodes)]
    devices = draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=6))
    cpus = st.sets(st.integers(0, 2 * nodes - 1), max_size=5).map(sorted)
    ranks = draw(st.lists(cpus, min_size=1, max_size=len(devices)))
    return distances, ranks, devices


@given(hosts())
@settings(max_examples=200)
def test_no_other_way_to_deal_the_devices_is_nearer(
    host: tuple[list[list[int]], list[list[int]], list[int]],
) -> None:
    """Of all ways to deal devices this has the least sum, then the least indices."""
    distances, ranks, devices = host

    def far(cpus: list[int], place: int) -> Fraction:
        each = [distances[cpu // 2][devices[place]] for cpu in cpus]
        return Fraction(sum(each), len(each) or 1)

    ways = permutations(range(len(devices)), len(ranks))
    best = min((sum(map(far, ranks, way)), way) for way in ways)
    nodes = [
        NumaNode(index=n, cpus=(2 * n, 2 * n + 1), distances=tuple(row))
        for n, row in enumerate(distances)
    ]
    cards = [Device(kind="cuda", index=i, numa_node=n) for i, n in enumerate(devices)]
    found = closest_devices(ranks, cards, CpuTopology(nodes=tuple(nodes)))
    assert tuple(device.index for device in found) == best[1]


@pytest.mark.parametrize("name", MACHINES)
def test_ranks_on_their_devices_cpus_keep_their_devices(name: str) -> None:
    """Ranks that are bound beside devices 0, 1, 2 and so on get these."""
    there = machine(name)
    beside = [near_cpus(device, there.topology) for device in there.devices]
    assert list(closest_devices(beside, there.devices, there.topology)) == there.devices

"""How the ranks of a node share the CPUs beside their devices."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import PlacementError
from gpumap.mapping.cpu_shares import CpuShare, shares_of_cpus
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.cpus import cpu_list, cpus_beside, parse_cpu_list
from gpumap.mapping.policy import Bind
from helpers.cpus import machine


def shared(
    name: str, how: Bind, gpus: Iterable[int], allowed: str = "0-255"
) -> list[tuple[str, int]]:
    """Return each rank's CPUs and threads, for the GPU of each."""
    there = machine(name)
    beside = [
        cpus_beside(there.devices[gpu], there.topology, parse_cpu_list(allowed))
        for gpu in gpus
    ]
    shares = shares_of_cpus(beside, there.topology, how)
    return [(cpu_list(share.cpus), share.threads) for share in shares]


@pytest.mark.parametrize(
    ("name", "gpus", "allowed", "expected"),
    [
        (
            "two-sockets",
            [0, 1, 2, 3],
            "0-95",
            [("0-23,48-71", 12)] * 2 + [("24-47,72-95", 12)] * 2,
        ),
        ("two-sockets", [3, 0], "0-95", [("24-47,72-95", 24), ("0-23,48-71", 24)]),
        ("two-sockets", [2, 3], "0-31", [("24-31", 4)] * 2),
        ("two-sockets", [2, 3, 2, 3], "24", [("24", 1)] * 4),
        ("two-sockets", [0, 2], "0-23", [("0-23", 24), ("", 0)]),
        ("gb200", [0, 1, 2], "0-143", [("0-71", 36)] * 2 + [("72-143", 72)]),
        ("polaris", [3, 0], "0-63", [("0-7,32-39", 8), ("24-31,56-63", 8)]),
    ],
)
def test_numa_gives_a_rank_all_cpus_of_its_node(
    name: str, gpus: list[int], allowed: str, expected: list[tuple[str, int]]
) -> None:
    """All ranks of a NUMA node have all its CPUs; their threads fill its cores once."""
    assert shared(name, "numa", gpus, allowed) == expected


@pytest.mark.parametrize(
    ("name", "gpus", "allowed", "expected"),
    [
        (
            "two-sockets",
            [0, 1, 2, 3],
            "0-95",
            [
                ("0-11,48-59", 12),
                ("12-23,60-71", 12),
                ("24-35,72-83", 12),
                ("36-47,84-95", 12),
            ],
        ),
        # 24 cores for 5 ranks are 5, 5, 5, 5 and 4.
        (
            "two-sockets",
            [0, 1, 0, 1, 0],
            "0-95",
            [
                ("0-4,48-52", 5),
                ("5-9,53-57", 5),
                ("10-14,58-62", 5),
                ("15-19,63-67", 5),
                ("20-23,68-71", 4),
            ],
        ),
        # Local ranks take turns between the sockets.
        (
            "two-sockets",
            [0, 2, 1, 3],
            "0-95",
            [
                ("0-11,48-59", 12),
                ("24-35,72-83", 12),
                ("12-23,60-71", 12),
                ("36-47,84-95", 12),
            ],
        ),
        # A cpuset with 3 whole cores and one hyper-thread of a fourth.
        ("two-sockets", [0, 1], "0-3,48-50", [("0-1,48-49", 2), ("2-3,50", 2)]),
        ("two-sockets", [0, 2], "0-23", [("0-23", 24), ("", 0)]),
        ("polaris", [3, 0], "0-63", [("0-7,32-39", 8), ("24-31,56-63", 8)]),
        (
            "dgx-a100",
            range(8),
            "0-255",
            [
                ("48-55,176-183", 8),
                ("56-63,184-191", 8),
                ("16-23,144-151", 8),
                ("24-31,152-159", 8),
                ("112-119,240-247", 8),
                ("120-127,248-255", 8),
                ("80-87,208-215", 8),
                ("88-95,216-223", 8),
            ],
        ),
    ],
)
def test_exclusive_deals_whole_cores(
    name: str, gpus: Iterable[int], allowed: str, expected: list[tuple[str, int]]
) -> None:
    """Each rank has its own run of cores, both hyper-threads of each."""
    assert shared(name, "exclusive", gpus, allowed) == expected


@given(st.integers(1, 6), st.sets(st.integers(0, 47), min_size=6))
def test_exclusive_shares_are_even_and_lose_nothing(ranks: int, cpus: set[int]) -> None:
    """Shares are disjoint, complete, in order, of whole cores, and differ by one."""
    topology = CpuTopology(cores=tuple((cpu, cpu + 24) for cpu in range(24)))
    cores = {cpu % 24 for cpu in cpus}
    if len(cores) < ranks:
        return
    shares = shares_of_cpus([tuple(cpus)] * ranks, topology, "exclusive")
    dealt = [{cpu % 24 for cpu in share.cpus} for share in shares]
    assert Counter(cpu for s in shares for cpu in s.cpus) == Counter(cpus)
    assert [core for own in dealt for core in sorted(own)] == sorted(cores)
    assert [share.threads for share in shares] == [len(own) for own in dealt]
    counts = [len(own) for own in dealt]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1


def test_fewer_cores_than_ranks_cannot_be_dealt() -> None:
    """With more ranks than cores the error has both numbers and names the ranks."""
    with pytest.raises(PlacementError) as caught:
        shared("two-sockets", "exclusive", [0, 2, 1, 1], "0-1,24,48-49")
    assert caught.value.args[:3] == (
        "3 ranks of a node share 2 physical cores beside their devices.",
        "CPUs 0-1,48-49 are left to local ranks 0, 2, 3.",
        'Write bind="numa", which lets them share these CPUs; or start fewer '
        "processes on each node.",
    )
    with pytest.raises(
        PlacementError, match="2 ranks of a node share 1 physical core "
    ):
        shares_of_cpus([(0,), (0,)], CpuTopology(), "exclusive")


def test_cpus_that_overlap_in_part_cannot_be_dealt() -> None:
    """Two ranks whose CPUs overlap in part have none of their own to be given."""
    with pytest.raises(PlacementError) as caught:
        shares_of_cpus([(9,), (0, 1, 2), (2, 3)], CpuTopology(), "exclusive")
    assert caught.value.args[:3] == (
        "local ranks 1 and 2 cannot have CPUs of their own.",
        "CPUs 0-2 are beside the device of local rank 1, CPUs 2-3 beside that of 2; "
        "2 are both's.",
        'Write bind="numa", which lets them share.',
    )
    assert shares_of_cpus([(0, 1, 2), (2, 3)], CpuTopology(), "numa") == (
        CpuShare(cpus=(0, 1, 2), threads=3),
        CpuShare(cpus=(2, 3), threads=2),
    )


def test_ranks_without_cpus_share_nothing() -> None:
    """Ranks of devices without CPUs have the empty share, however it is dealt."""
    both: tuple[Bind, ...] = ("numa", "exclusive")
    for how in both:
        assert shares_of_cpus([(), (), (1,)], CpuTopology(), how) == (
            CpuShare(),
            CpuShare(),
            CpuShare(cpus=(1,), threads=1),
        )

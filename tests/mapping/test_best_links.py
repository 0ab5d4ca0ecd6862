"""The best-linked k of n, against published cases and an exhaustive search."""

import csv
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumap.errors import LaunchError, PlacementError
from gpumap.mapping.best_links import best_linked, link_speeds, ring_link
from gpumap.mapping.devices import Device, Link, Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.pool import place
from gpumap.mapping.topology import parse_topology
from helpers.matrices import FOLDER, WHOLE, text
from helpers.nodes import launch, node

TABLE = (FOLDER.parent / "topology_cases.tsv").read_text().splitlines()
CASES = list(csv.DictReader(TABLE, delimiter="\t"))


def numbers(listed: str) -> list[int]:
    """Return "0,2" as numbers."""
    return [int(item) for item in listed.split(",") if item]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c['topology']}-{c['expected']}"
)
def test_published_cases(case: dict[str, str]) -> None:
    """Choices match another allocator's tests and arithmetic on the matrices."""
    chosen = best_linked(
        parse_topology(text(case["topology"])),
        int(case["k"]),
        numbers(case["available"]),
        numbers(case["required"]),
    )
    assert [device.index for device in chosen] == numbers(case["expected"])


def slowest_of_best_ring(members: tuple[int, ...], speeds: list[list[float]]) -> float:
    """Return the speed of the best ring's slowest link, by trying every order."""
    if len(members) == 1:
        return 0.0
    first, *others = members
    rings = ([first, *order] for order in permutations(others))
    return max(
        min(speeds[a][b] for a, b in zip(ring, [*ring[1:], ring[0]], strict=True))
        for ring in rings
    )


def exhaustive(n1: Node, k: int, members: list[int]) -> tuple[int, ...]:
    """Return the best set by comparing all sets of k, without any shortcut."""
    speeds = link_speeds(n1)

    def worth(chosen: tuple[int, ...]) -> tuple[float, float, int, list[int]]:
        total = sum(speeds[a][b] for a, b in combinations(chosen, 2))
        near = [n1.devices[m] for m in chosen]
        numa = len(
            {d.cpu_affinity if d.numa_node is None else d.numa_node for d in near}
        )
        ring = slowest_of_best_ring(chosen, speeds)
        return ring, total, -numa, [-m for m in chosen]

    return max(combinations(members, k), key=worth)


SMALL = [n for n in WHOLE if 1 < len(parse_topology(text(n)).devices) <= 8]


@pytest.mark.parametrize("name", SMALL)
def test_an_exhaustive_search_agrees_on_every_machine(name: str) -> None:
    """For k up to 6 the choice is an exhaustive search's, also without two devices."""
    n1 = parse_topology(text(name))
    count = len(n1.devices)
    for members in (list(range(count)), list(range(count))[1:-1] or [0]):
        for k in range(1, min(6, len(members)) + 1):
            chosen = tuple(d.index for d in best_linked(n1, k, members))
            assert chosen == exhaustive(n1, k, members)


def test_a_square_of_nvlinks_beats_a_star() -> None:
    """Of 0, 1, 2, 4, 5 on a DGX-1, 0-1-5-4 is chosen: a ring without a PCIe link."""
    chosen = best_linked(parse_topology(text("dgx1-v100")), 4, [0, 1, 2, 4, 5])
    assert [device.index for device in chosen] == [0, 1, 4, 5]


@settings(max_examples=30)
@given(st.integers(2, 7), st.data())
def test_random_matrices_agree_with_the_exhaustive_search(
    count: int, data: st.DataObject
) -> None:
    """For random links, some tied or unknown, the choice is an exhaustive search's."""
    links = [
        Link(a=a, b=b, **data.draw(st.sampled_from(KINDS)))
        for a, b in combinations(range(count), 2)
    ]
    devices = tuple(
        Device(kind="cuda", index=i, numa_node=data.draw(st.sampled_from([0, 1, None])))
        for i in range(count)
    )
    n1 = Node(hostname="n1", devices=devices, links=tuple(links))
    k = data.draw(st.integers(1, min(count, 6)))
    chosen = tuple(device.index for device in best_linked(n1, k))
    assert chosen == exhaustive(n1, k, list(range(count)))


KINDS: list[dict[str, Any]] = [
    *({"nvlinks": 1}, {"nvlinks": 2}, {"xgmi": True}, {}),
    *({"pcie": "PIX"}, {"pcie": "NODE"}, {"pcie": "SYS"}),
]


def linked(count: int, kinds: dict[tuple[int, int], dict[str, Any]]) -> Node:
    """Return a node of so many devices with the given links."""
    return Node(
        hostname="n1",
        devices=tuple(Device(kind="cuda", index=i) for i in range(count)),
        links=tuple(Link(a=a, b=b, **kind) for (a, b), kind in kinds.items()),
    )


NV2: dict[str, Any] = {"nvlinks": 2}
NV6: dict[str, Any] = {"nvlinks": 6}


def test_speeds_are_those_of_nccls_model() -> None:
    """A link has 20 GB/s per NVLink, 50 by XGMI, 6 across sockets, 0 if unknown."""
    kinds = {(0, 1): NV2, (0, 2): {"xgmi": True}, (3, 1): {"pcie": "SYS"}, (2, 3): {}}
    assert link_speeds(linked(4, kinds)) == [
        [0, 40, 50, 0],
        [40, 0, 0, 6],
        [50, 0, 0, 0],
        [0, 6, 0, 0],
    ]


def test_whoever_measured_bandwidths_gives_their_own() -> None:
    """Bandwidths that the user passes decide, even if PCIe then beats NVLink."""
    n1 = linked(3, {(0, 1): NV2, (1, 2): {"pcie": "PIX"}})
    mine = {"NVLINK": 1.0, "PIX": 3.0}
    assert [d.index for d in best_linked(n1, 2)] == [0, 1]
    assert [d.index for d in best_linked(n1, 2, bandwidths=mine)] == [1, 2]
    assert ring_link(n1, n1.devices[1:], mine) == (3.0, Link(a=1, b=2, pcie="PIX"))


SQUARE = [(0, 1), (1, 2), (2, 3), (0, 3)]
BOW_TIE = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4)]
HEXAGON = [(0, 3), (1, 3), (1, 4), (2, 4), (2, 5), (0, 5)]
TWO_TRIANGLES = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)]


@pytest.mark.parametrize(
    ("fast", "speed"),
    [
        ([(0, 1)], 40),
        ([(0, 1), (1, 2)], 6),
        ([(0, 1), (1, 2), (0, 2)], 40),
        (SQUARE, 40),
        # A path through all, 0-1-2-3-4, but the way back crosses 2 again.
        (BOW_TIE, 6),
        ([*BOW_TIE, (0, 4)], 40),
        (HEXAGON, 40),
        (HEXAGON[:-1], 6),
        (TWO_TRIANGLES, 6),
    ],
    ids=str,
)
def test_a_ring_is_as_fast_as_its_slowest_link(
    fast: list[tuple[int, int]], speed: float
) -> None:
    """A ring has NVLink's speed if NVLinks alone close it, else that of SYS."""
    count = max(b for _, b in fast) + 1
    slow: dict[str, Any] = {"pcie": "SYS"}
    pairs = combinations(range(count), 2)
    n1 = linked(count, {pair: NV2 if pair in fast else slow for pair in pairs})
    found, link = ring_link(n1, n1.devices)
    assert found == speed
    assert link
    assert (link.nvlinks > 0) == (speed == 40)


def test_a_ring_through_an_unknown_path_has_no_slowest_link() -> None:
    """A ring with an unknown link has speed 0 and no slowest link."""
    n1 = linked(3, {(0, 1): NV2})
    assert ring_link(n1, n1.devices) == (0.0, None)


NEAR: list[dict[str, Any]] = [
    {"numa_node": 0},
    {"cpu_affinity": (0, 1)},
    {"numa_node": 0, "cpu_affinity": (0, 1)},
    {"numa_node": 1, "cpu_affinity": (0, 1)},
]


@pytest.mark.parametrize("count", [4, 20])
@pytest.mark.parametrize(
    ("kinds", "expected"),
    [([0, 1], [0, 2]), ([2, 3], [0, 2]), ([0, 2], [0, 1])],
    ids=["node or CPUs", "two nodes on one list of CPUs", "CPUs of one node"],
)
def test_among_equals_the_fewest_numa_nodes_win(
    count: int, kinds: list[int], expected: list[int]
) -> None:
    """Among equally linked sets, the one on the fewest NUMA nodes is chosen."""
    devices = tuple(
        Device(kind="cuda", index=i, **NEAR[kinds[i % 2]]) for i in range(count)
    )
    n1 = Node(hostname="n1", devices=devices)
    assert [device.index for device in best_linked(n1, 2)] == expected


def test_beyond_sixteen_devices_a_swap_search_finds_islands() -> None:
    """Of five NVLinked islands of four devices, k=4 gives one whole island."""
    links = [
        Link(a=a, b=b, nvlinks=4) if a % 5 == b % 5 else Link(a=a, b=b, pcie="SYS")
        for a, b in combinations(range(20), 2)
    ]
    devices = tuple(Device(kind="cuda", index=i) for i in range(20))
    n1 = Node(hostname="n1", devices=devices, links=tuple(links))
    assert len({d.index % 5 for d in best_linked(n1, 4)}) == 1
    assert [d.index for d in best_linked(n1, 4, required=[7])] == [2, 7, 12, 17]


def island(*members: int, nvlinks: int) -> dict[tuple[int, int], dict[str, Any]]:
    """Return so many NVLinks for each pair of the members."""
    return {pair: {"nvlinks": nvlinks} for pair in combinations(members, 2)}


# The set whose ring has the most NVLinks is expected; other pairs are unconnected.
LARGE: dict[str, tuple[dict[tuple[int, int], dict[str, Any]], list[int]]] = {
    "no link at all": ({}, [0]),
    "the faster pair": ({(3, 5): NV2, (7, 12): NV6}, [7, 12]),
    "of equal pairs the first": ({(7, 12): NV2, (3, 5): NV2}, [3, 5]),
    "the faster island": (
        island(2, 5, 7, 9, nvlinks=4) | island(13, 14, 15, 16, nvlinks=3),
        [2, 5, 7, 9],
    ),
    "a triangle beside its fastest link": (
        {(0, 1): NV6} | island(1, 2, 3, nvlinks=2),
        [1, 2, 3],
    ),
    "a square beside its fastest link": (
        {(0, 4): NV6, (1, 4): NV2} | dict.fromkeys(SQUARE, NV2),
        [0, 1, 2, 3],
    ),
}


@pytest.mark.parametrize("count", [16, 17])
@pytest.mark.parametrize(("links", "expected"), LARGE.values(), ids=LARGE)
def test_large_machines_are_searched_too(
    count: int,
    links: dict[tuple[int, int], dict[str, Any]],
    expected: list[int],
) -> None:
    """The best ring is found among 16 devices (exactly) and 17 (by swapping)."""
    n1 = linked(max(count, 17), links)
    pool = None if count == 17 else [i for i in range(17) if i != 8]
    found = best_linked(n1, len(expected), pool)
    assert [device.index for device in found] == expected


def test_up_to_sixteen_devices_the_choice_is_exact() -> None:
    """Among 16 devices a ring of four is chosen, despite a faster link elsewhere."""
    ring = [(3, 4), (4, 5), (5, 6), (3, 6)]
    n1 = linked(16, {(0, 1): NV6} | dict.fromkeys(ring, NV2))
    assert [device.index for device in best_linked(n1, 4)] == [3, 4, 5, 6]


WHOLE_NUMBER = "Write a whole number from 1."


@pytest.mark.parametrize(
    ("k", "pool", "required", "happened", "seen", "hint"),
    [
        (
            *(0, None, (), "0 devices cannot be chosen."),
            *("The pool has 4, and 0 are required.", "Ask for 1 to 4."),
        ),
        (
            *(5, None, (), "5 devices cannot be chosen."),
            *("The pool has 4, and 0 are required.", "Ask for 1 to 4."),
        ),
        (
            *(1, None, (0, 1, 3), "1 device cannot be chosen."),
            *("The pool has 4, and 3 are required.", "Ask for 3 to 4."),
        ),
        (
            *(3, [0, 1], (), "3 devices cannot be chosen."),
            *("The pool has 2, and 0 are required.", "Ask for 1 to 2."),
        ),
        (
            *(2, [0, 1], (2,), "required devices [2] are not in the pool."),
            *(
                "The pool is [0, 1].",
                "Add them to the pool, or do not require them.",
            ),
        ),
        (True, None, (), "k=True is not a number of devices.", "", WHOLE_NUMBER),
        (2.0, None, (), "k=2.0 is not a number of devices.", "", WHOLE_NUMBER),
    ],
)
def test_what_cannot_be_chosen_is_an_error(
    k: Any,
    pool: list[int] | None,
    required: tuple[int, ...],
    happened: str,
    seen: str,
    hint: str,
) -> None:
    """A number of devices that the pool cannot give is an error, not an empty list."""
    with pytest.raises(PlacementError) as caught:
        best_linked(node(4), k, pool, required)
    assert caught.value.args == (happened, seen, hint, ())


def test_the_strategy_takes_as_many_as_there_are_processes() -> None:
    """The strategy "linked" chooses a device per process, in index order."""
    n1 = parse_topology(text("rtx8000x4-nvlink-pairs"))
    placed = [place(launch(n, 2), n1, "linked") for n in range(2)]
    assert [p.device.index for p in placed] == [0, 3]
    assert placed[0].why == "linked: the best-linked 2 of the pool, [local_rank]"
    pooled = place(launch(1, 2), n1, "linked", gpus=[1, 2, 3])
    assert pooled.device.index == 2


def test_without_links_the_lowest_indices_are_taken() -> None:
    """Without links, as read through torch alone, the lowest indices are taken."""
    assert [place(launch(n, 2), node(4), "linked").device.index for n in (0, 1)] == [
        0,
        1,
    ]


def test_the_strategy_needs_the_number_of_processes() -> None:
    """The strategy "linked" is an error if local_world_size is not known."""
    me = Launch(launcher="torch variables", rank=0, world_size=2, local_rank=0)
    with pytest.raises(LaunchError) as caught:
        place(me, node(4), "linked")
    assert caught.value.args == (
        'strategy "linked" depends on the number of processes on this node, and the '
        "launcher does not say it.",
        "torch variables: rank=0, world_size=2.",
        "Set LOCAL_WORLD_SIZE for each process, or start with torchrun.",
        ("LOCAL_WORLD_SIZE",),
    )


def test_of_a_single_process_the_number_is_known() -> None:
    """A world of one is one local process, even if the launcher does not say so."""
    alone = Launch(launcher="single process", rank=0, world_size=1)
    placed = place(alone, linked(3, {(1, 2): NV2}), "linked")
    assert placed.device.index == 0
    assert placed.why == "linked: the best-linked 1 of the pool, [local_rank]"


def test_a_bound_task_takes_its_own() -> None:
    """A task with one bound device takes it; "linked" has nothing to choose."""
    assert place(launch(3, 8, devices_bound=True), node(1), "linked").device.index == 0


def test_the_data_is_where_its_index_says() -> None:
    """Each row of both index files names a file that exists."""
    for index in ("INDEX.tsv", "INDEX-collected.tsv"):
        rows = (FOLDER / index).read_text().splitlines()[1:]
        missing = [r for r in rows if not Path(FOLDER, r.split("\t")[0]).exists()]
        assert missing == []

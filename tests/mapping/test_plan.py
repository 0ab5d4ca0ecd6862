"""The placement of every rank of a cluster, planned in advance."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import DeviceError, LaunchError, PlacementError
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import ranks_in_words
from gpumap.mapping.plan import plan
from gpumap.mapping.pool import place
from helpers.nodes import node

if TYPE_CHECKING:
    from gpumap.mapping.policy import Gpus


def test_node_and_local_rank_arithmetic_on_nodes_of_4_and_2() -> None:
    """Ranks 4 and 5 are local ranks 0 and 1 of the second node, on its devices 0, 1."""
    whole = plan([node(4, "n1"), node(2, "n2")], [4, 2])
    assert len(whole) == 6
    assert [p.device.index for p in whole] == [0, 1, 2, 3, 0, 1]
    assert whole[5].launch == Launch(
        launcher="plan",
        rank=5,
        world_size=6,
        local_rank=1,
        local_world_size=2,
        node_rank=1,
        num_nodes=2,
    )
    assert whole.conflicts() == []


def test_a_different_list_on_each_node() -> None:
    """The argument gpus may map each host name to its own list of devices."""
    whole = plan(
        [node(4, "n1"), node(4, "n2")], [2, 2], gpus={"n1": [0, 1], "n2": [2, 3]}
    )
    assert [p.device.index for p in whole] == [0, 1, 2, 3]


def test_cyclic_distribution_deals_ranks_to_the_nodes_in_turn() -> None:
    """Under cyclic distribution over two nodes, rank 1 is on node 1's device 0."""
    whole = plan([node(2, "n1"), node(2, "n2")], [2, 2], distribution="cyclic")
    assert [(p.launch.node_rank, p.device.index) for p in whole] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
    ]


def test_modulo_conflicts_name_ranks_device_and_host() -> None:
    """Each conflict names the ranks, the device and the host."""
    nodes = [node(4, "n1"), node(4, "n2")]
    whole = plan(nodes, [4, 4], strategy="modulo", distribution="cyclic")
    assert [str(c) for c in whole.conflicts()] == [
        "rank 0 and rank 4 are both placed on cuda:0 (GPU-a000n1…) on host n1",
        "rank 2 and rank 6 are both placed on cuda:2 (GPU-a200n1…) on host n1",
        "rank 1 and rank 5 are both placed on cuda:1 (GPU-a100n2…) on host n2",
        "rank 3 and rank 7 are both placed on cuda:3 (GPU-a300n2…) on host n2",
    ]


def test_three_ranks_on_a_device_are_all_named() -> None:
    """A conflict of three ranks names all three."""
    whole = plan([node(1)], [3], strategy="modulo")
    assert str(whole.conflicts()[0]) == (
        "rank 0, rank 1 and rank 2 are placed on cuda:0 (GPU-a000n1…) on host n1"
    )


@pytest.mark.parametrize(
    ("count", "end"),
    [
        (20, "rank 18 and rank 19"),
        (21, "rank 19 and 1 more"),
        (24, "rank 19 and 4 more"),
    ],
)
def test_of_many_ranks_the_first_twenty_are_named(count: int, end: str) -> None:
    """Of more than twenty ranks, the first twenty are named, the others counted."""
    words = ranks_in_words(range(count))
    assert words.startswith("rank 0, rank 1, rank 2, ")
    assert words.endswith(f", {end}")


def test_a_functions_conflicts_are_found_too() -> None:
    """Conflicts are also found if the strategy is a user's function."""
    whole = plan([node(2)], [2], strategy=lambda *_: 1)
    assert [c.ranks for c in whole.conflicts()] == [(0, 1)]


def test_devices_shared_on_purpose_are_still_listed() -> None:
    """oversubscribe=True lets a plan be made; conflicts() says what is shared."""
    whole = plan([node(2)], [2], gpus=[0, 0], oversubscribe=True)
    assert [c.device.index for c in whole.conflicts()] == [0]
    nodes = [node(4, name) for name in ("n1", "n2", "n3")]
    some: Gpus = {"n1": [0, 1, 2], "n2": [1, 3, 1], "n3": [2, 1, 0]}
    mixed = plan(nodes, [3, 3, 3], gpus=some, oversubscribe=True)
    assert [(c.hostname, c.device.index, c.ranks) for c in mixed.conflicts()] == [
        ("n2", 1, (3, 5))
    ]
    with pytest.raises(PlacementError, match="is listed twice"):
        plan([node(2)], [2], gpus=[0, 0])


def test_explain_is_a_table_of_all_ranks() -> None:
    """A plan is explained by a table row for each rank, then all conflicts."""
    whole = plan([node(2, "n1"), node(0, "n2")], [2, 1], strategy="modulo")
    assert whole.explain().splitlines() == [
        "rank  node  host  local_rank  device                name  why",
        "0     0     n1    0           cuda:0 (GPU-a000n1…)  Card  modulo: pool[rank % 2]",  # noqa: E501 - one row of the table
        "1     0     n1    1           cuda:1 (GPU-a100n1…)  Card  modulo: pool[rank % 2]",  # noqa: E501 - one row of the table
        "2     1     n2    0           cpu                   CPU   no accelerator is visible on n2",  # noqa: E501 - one row of the table
    ]
    crowded = plan([node(1)], [2], strategy="modulo").explain().splitlines()
    assert crowded[-1].startswith(
        "conflict: rank 0 and rank 1 are both placed on cuda:0"
    )


def test_equal_nodes_are_worked_out_once() -> None:
    """If one node is listed a thousand times, its devices are scored once."""
    scored: list[int] = []

    def score(device: Device) -> float:
        scored.append(device.index)
        return -device.index

    whole = plan([node(8)] * 1000, [8] * 1000, scores=score)
    assert whole[7999].device.index == 7
    assert scored == list(range(8))


class Made(Mapping[int, list[int]]):
    """A mapping that creates each list when it is looked up."""

    def __getitem__(self, node_rank: int) -> list[int]:
        """Return the two devices of a node."""
        if node_rank not in range(3):
            raise KeyError(node_rank)
        return [2 * node_rank, 2 * node_rank + 1]

    def __iter__(self) -> Iterator[int]:
        """Yield the node ranks."""
        return iter(range(3))

    def __len__(self) -> int:
        """Return the number of nodes."""
        return 3


def test_lists_that_are_made_when_asked_for_are_not_mixed_up() -> None:
    """Each node gets its own list from a mapping that creates lists on look-up."""
    whole = plan([node(6)] * 3, [2] * 3, gpus=Made())
    assert [p.device.index for p in whole] == [0, 1, 2, 3, 4, 5]


def test_a_rank_without_a_device_is_found_when_the_plan_is_made() -> None:
    """A plan with more processes than devices on a node raises, naming the node."""
    with pytest.raises(PlacementError, match="4 processes on n2 have 2 devices"):
        plan([node(4, "n1"), node(2, "n2")], [4, 4])


def test_a_device_that_is_not_there_is_found_when_the_plan_is_made() -> None:
    """A plan with a device that a node lacks raises, naming the node."""
    with pytest.raises(DeviceError, match="no device 3 on n2"):
        plan([node(4, "n1"), node(2, "n2")], [2, 2], gpus=[0, 3])


def test_nodes_and_sizes_go_together() -> None:
    """A plan needs one number of processes for each node."""
    with pytest.raises(LaunchError) as caught:
        plan([node(1), node(1)], [1])
    assert caught.value.args == (
        "2 nodes and 1 local world sizes.",
        "",
        "Give one number of processes for each node.",
        (),
    )


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_plan_is_an_index_error(rank: int) -> None:
    """A rank outside the plan, negative ones included, is an IndexError."""
    with pytest.raises(IndexError, match=f"ranks 0 to 1, not {rank}"):
        plan([node(2)], [2])[rank]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5),
    st.sampled_from(["local_rank", "modulo", "scored", "function"]),
    st.sampled_from(["block", "cyclic"]),
)
def test_a_plan_says_what_place_says_for_every_rank(
    shapes: list[tuple[int, int]], strategy: Any, distribution: Any
) -> None:
    """A plan equals place() for every rank, on uneven nodes, by any strategy."""
    nodes = [node(devices, f"n{i}") for i, (devices, _) in enumerate(shapes)]
    sizes = [min(shape) for shape in shapes]
    how: dict[str, Any] = {"strategy": strategy}
    if strategy == "scored":
        how["scores"] = "memory"
    if strategy == "function":
        how["strategy"] = by_rank
    whole = plan(nodes, sizes, distribution=distribution, **how)
    for rank, planned in enumerate(whole):
        assert planned.launch.rank == rank
        here = nodes[planned.launch.node_rank or 0]
        assert place(planned.launch, here, **how) == planned


def by_rank(me: Launch, here: Any) -> int:
    """Return an index that depends on the global rank."""
    return me.rank % len(here.devices)


def test_a_plan_says_which_cpus_each_rank_would_be_bound_to() -> None:
    """Two ranks beside one NUMA node share its four cores, hyper-threads together."""
    cards = tuple(
        Device(kind="cuda", index=n, cpu_affinity=(*range(4), *range(8, 12)))
        for n in range(2)
    )
    cores = CpuTopology(cores=tuple((n, n + 8) for n in range(8)))
    n1 = Node(hostname="n1", devices=cards, cpus=cores)
    shared = plan([n1, n1], [2, 2], bind="numa")
    assert [p.cpus for p in shared] == [(0, 1, 2, 3, 8, 9, 10, 11)] * 4
    own = plan([n1, n1], [2, 2], bind="exclusive", strategy="modulo")
    assert [p.cpus for p in own] == [(0, 1, 8, 9), (2, 3, 10, 11)] * 2
    assert "  0-1,8-9    modulo" in own.explain()
    assert plan([n1], [2])[0].cpus is None


def test_a_way_to_bind_that_does_not_exist_is_refused() -> None:
    """What is written "NUMA" is not "numa"; the error says what there is."""
    with pytest.raises(PlacementError) as caught:
        plan([node(1)], [1], bind="NUMA")  # type: ignore[arg-type]  # the mistake
    assert str(caught.value) == (
        "bind='NUMA' is unknown.\n"
        "There are 'numa' and 'exclusive'.\n"
        "Write one of these, or leave it out."
    )


def test_an_explained_plan_says_on_which_nodes_cores_are_not_known() -> None:
    """Two ranks deal CPUs 0 to 3 of n1 and n2; those of n3 are known to be cores."""
    cards = tuple(
        Device(kind="cuda", index=n, cpu_affinity=(0, 1, 2, 3)) for n in range(2)
    )
    told = CpuTopology(cores=((0, 2), (1, 3)))
    nodes = [
        Node(hostname="n1", devices=cards),
        Node(hostname="n2", devices=cards),
        Node(hostname="n3", devices=cards, cpus=told),
    ]
    whole = plan([nodes[0], *nodes], [2] * 4, bind="exclusive")
    lines = [x for x in whole.explain().splitlines() if x.startswith("warning: ")]
    doubt = (
        "which of the CPUs 0-3 are hyper-threads of one core is not known: "
        'bind="exclusive" counts each as a core, and two ranks may share one.'
    )
    assert lines == [f"warning: on n1, {doubt}", f"warning: on n2, {doubt}"]
    assert "warning" not in plan(nodes, [1] * 3, bind="exclusive").explain()
    assert "warning" not in plan(nodes, [2] * 3, bind="numa").explain()


def test_more_ranks_than_cores_have_none_of_their_own() -> None:
    """A plan that gives each rank its own cores needs one for each."""
    cards = tuple(Device(kind="cuda", index=n, cpu_affinity=(0,)) for n in range(2))
    own = plan([Node(hostname="n1", devices=cards)], [2], bind="exclusive")
    with pytest.raises(PlacementError, match="2 ranks of a node share 1 physical core"):
        own.explain()

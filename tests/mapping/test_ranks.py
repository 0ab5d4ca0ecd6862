"""The arithmetic between rank, node_rank and local_rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import LaunchError
from gpumap.mapping.ranks import Distribution, RankLayout

# Worked out by hand. Cyclic over (3, 1) is also what Slurm 22.05 did with -m cyclic:
# SLURM_GTIDS was 0,2,3 on the first node and 1 on the second.
TABLES = {
    ("block", (4, 2)): [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)],
    ("block", (1, 2)): [(0, 0), (1, 0), (1, 1)],
    ("cyclic", (2, 2)): [(0, 0), (1, 0), (0, 1), (1, 1)],
    ("cyclic", (3, 1)): [(0, 0), (1, 0), (0, 1), (0, 2)],
    ("cyclic", (1, 3, 2)): [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2)],
}


@pytest.mark.parametrize(("how", "expected"), TABLES.items(), ids=str)
def test_ranks_are_where_the_tables_say(
    how: tuple[Distribution, tuple[int, ...]], expected: list[tuple[int, int]]
) -> None:
    """Block fills node after node; cyclic deals in turn and skips full nodes."""
    distribution, sizes = how
    layout = RankLayout(sizes, distribution)
    assert [layout.locate(rank) for rank in range(layout.world_size)] == expected


def test_cyclic_distribution_puts_rank_1_on_node_1() -> None:
    """Under cyclic distribution, rank // local_world_size is not the node rank."""
    assert RankLayout((4, 4), "cyclic").locate(1) == (1, 0)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.sampled_from(["block", "cyclic"]),
)
def test_rank_undoes_locate(sizes: list[int], distribution: Distribution) -> None:
    """Each rank has one place, each place one rank, and ranks_of() lists them."""
    layout = RankLayout(sizes, distribution)
    places = [layout.locate(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == sum(sizes)
    for rank, (node_rank, local_rank) in enumerate(places):
        assert layout.rank(node_rank=node_rank, local_rank=local_rank) == rank
        assert layout.ranks_of(node_rank)[local_rank] == rank


def test_the_ranks_of_a_block_are_a_range() -> None:
    """Under block distribution ranks_of() returns a range, not a list."""
    assert RankLayout((4, 2)).ranks_of(1) == range(4, 6)


@pytest.mark.parametrize(
    ("node_rank", "local_rank", "happened", "seen"),
    [
        (2, 0, "node_rank 2 does not exist.", "There are 2: node_rank 0 to 1."),
        (1, 2, "local_rank 2 does not exist.", "There are 2: local_rank 0 to 1."),
        (0, -1, "local_rank -1 does not exist.", "There are 4: local_rank 0 to 3."),
    ],
)
def test_a_place_that_does_not_exist_is_an_error(
    node_rank: int, local_rank: int, happened: str, seen: str
) -> None:
    """The error for a place that does not exist says which places do."""
    with pytest.raises(LaunchError) as caught:
        RankLayout((4, 2)).rank(node_rank=node_rank, local_rank=local_rank)
    assert caught.value.args == (happened, seen, "Places count from 0.", ())


@pytest.mark.parametrize("rank", [-1, 6, 1.0, True])
def test_a_rank_outside_the_world_is_an_error(rank: int) -> None:
    """A rank that is negative, too high or not an int is an error."""
    with pytest.raises(LaunchError, match=f"rank {rank!r} does not exist"):
        RankLayout((4, 2)).locate(rank)


@pytest.mark.parametrize(
    ("sizes", "seen"),
    [
        ((), "no node"),
        ((4, 0), "[0]"),
        ((4, -1), "[-1]"),
        ((4, 2.0), "[2.0]"),
        ((True,), "[True]"),
    ],
)
def test_every_node_runs_at_least_one_process(
    sizes: tuple[int, ...], seen: str
) -> None:
    """A layout without nodes, or with a size that is not an int from 1, is an error."""
    with pytest.raises(LaunchError) as caught:
        RankLayout(sizes)
    assert caught.value.args == (
        "every node runs at least one process.",
        f"local_world_sizes contains {seen}.",
        "Write how many processes run on each node, for instance [4, 4, 2].",
        (),
    )


def test_an_unknown_distribution_is_an_error() -> None:
    """Distributions other than block and cyclic need more than sizes: an error."""
    with pytest.raises(LaunchError) as caught:
        RankLayout((2,), "plane")  # type: ignore[arg-type]
    assert caught.value.args == (
        "distribution 'plane' is unknown.",
        "",
        'Write distribution="block" or distribution="cyclic".',
        (),
    )

"""A session's numbers: those that the launcher says, or that follow for sure."""

import pytest

import gpumap
from gpumap.runtime.launch_numbers import LaunchNumber, number_of

NAMES: tuple[LaunchNumber, ...] = (
    "local_rank",
    "local_world_size",
    "node_rank",
    "num_nodes",
)
TOLD = [
    # All are said.
    (
        {"local_rank": 1, "local_world_size": 4, "node_rank": 1, "num_nodes": 2},
        (1, 4, 1, 2),
    ),
    # All processes are on one node.
    ({"local_rank": 5, "local_world_size": 8}, (5, 8, 0, 1)),
    ({"local_rank": 5, "num_nodes": 1}, (5, 8, 0, 1)),
    ({"num_nodes": 1}, (None, 8, 0, 1)),
    # Each process is on a node of its own.
    ({"num_nodes": 8}, (0, 1, None, 8)),
    ({"local_world_size": 1}, (0, 1, None, None)),
    # Open MPI says how many there are here, and not how many elsewhere.
    ({"local_rank": 1, "local_world_size": 4}, (1, 4, None, None)),
    # A group that exists already says nothing else.
    ({}, (None, None, None, None)),
]


@pytest.mark.parametrize(("how", "numbers"), TOLD, ids=str)
def test_a_number_is_an_int_or_an_error_in_words(
    how: dict[str, int], numbers: tuple[int | None, ...]
) -> None:
    """A number that does not follow is a LaunchError that names it."""
    launch = gpumap.Launch.model_validate(
        {"launcher": "a", "rank": 5, "world_size": 8, **how}
    )
    for name, number in zip(NAMES, numbers, strict=True):
        if number is None:
            with pytest.raises(gpumap.LaunchError, match="is not known") as caught:
                number_of(launch, name)
            assert caught.value.seen == f"a: rank=5, world_size=8, no {name}."
            assert f"launch=gpumap.Launch(…, {name}=…)" in caught.value.hint
        else:
            assert number_of(launch, name) == number


@pytest.mark.parametrize(
    ("name", "variable"), [("local_rank", "LOCAL_RANK"), ("node_rank", "NODE_RANK")]
)
def test_torchs_own_variables_are_named(name: LaunchNumber, variable: str) -> None:
    """Where torch's own variables are read, the error names the missing one."""
    launch = gpumap.detect_launch({"RANK": "1", "WORLD_SIZE": "2"})
    with pytest.raises(gpumap.LaunchError, match=f"Set {variable} for each") as caught:
        number_of(launch, name)
    assert caught.value.variables == (variable,)


def test_a_session_has_its_numbers() -> None:
    """A single process is rank 0 of 1 on node 0 of 1, also where nobody says so."""
    bare = gpumap.Launch(launcher="by hand", rank=0, world_size=1)
    for launch in (None, bare):
        with gpumap.session(device="cpu", launch=launch) as s:
            assert (s.rank, s.world_size, s.is_main) == (0, 1, True)
            assert (s.local_rank, s.local_world_size) == (0, 1)
            assert (s.node_rank, s.num_nodes) == (0, 1)

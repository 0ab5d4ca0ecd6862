"""Children of a rank: forks, DataLoader workers, subprocesses that live on or die."""

import re

import pytest

from helpers.jobs import endings


@pytest.mark.parametrize("how", ["persistent", "iterator", "subprocess", "fork"])
def test_a_child_that_outlives_the_block_does_not_hold_it(how: str) -> None:
    """A child that outlives the block, with its descriptors, does not delay its end."""
    for rank in endings(f"outlived {how}"):
        assert rank.code == 0, rank.out
        assert float(re.findall(r"left after (\S+) s", rank.out)[0]) < 5


@pytest.mark.parametrize("how", ["persistent", "fork"])
def test_a_child_that_outlives_an_error_does_not_keep_the_others(how: str) -> None:
    """Rank 0 hears of rank 1's error though a child keeps rank 1's sockets open."""
    ended = endings(f"outlived {how}", each={1: {"FAILS": "1"}})
    for rank in ended:
        assert float(re.findall(r"left after (\S+) s", rank.out)[0]) < 5, rank.out
    assert "error ValueError in the loop" in ended[1].out
    assert re.search("error SessionError rank 1 .* failed first: Value", ended[0].out)


@pytest.mark.parametrize(
    ("how", "status"), [("returns", 0), ("exits", 7), ("raises", 1)]
)
def test_a_child_that_runs_out_of_the_block_touches_neither_store_nor_group(
    how: str, status: int
) -> None:
    """A forked child may leave the block, and its parent's sessions go on."""
    for rank in endings(f"runs_on {how}"):
        assert rank.code == 0, rank.out
        assert f"child's status {status * 256}" in rank.out
        assert "out of the block, in the parent" in rank.out
        assert "another session ended" in rank.out
        assert ("out of the block, in the child" in rank.out) == (how == "returns")
        assert "refers to an open session" not in rank.out


def test_a_child_cannot_open_a_session_of_its_parents_job() -> None:
    """A forked child is refused a session with the reason, and its parent trains on."""
    for number, rank in enumerate(endings("opens_one")):
        assert rank.code == 0, rank.out
        assert "inside: this process was forked inside a session, of pid" in rank.out
        assert f"afterwards: rank {number} is claimed twice" in rank.out
        assert "terminate called" not in rank.out
        assert "another session ended" in rank.out


def test_a_child_that_is_forked_after_the_block_ends_as_well() -> None:
    """A child forked after the block can exit, though it has a DDP of the group."""
    for rank in endings("keeps_group"):
        assert f"child's status {7 * 256}" in rank.out

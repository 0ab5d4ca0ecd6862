"""How a job ends when one of its ranks fails."""

import re

import pytest
from jobs import run


@pytest.mark.parametrize("failing", [0, 1])
def test_an_exception_leaves_unchanged_and_the_others_know_why(failing: int) -> None:
    """Its own rank and device in its notes; the first failure in the others'."""
    ended = run("body_fails", every={"FAILS": str(failing)}, limit=30)
    assert [rank.code for rank in ended] == [1, 1]
    own, other = ended[failing].out, ended[1 - failing].out
    assert "args ('bad batch',)" in own
    assert f"gpumap: raised on rank {failing} (pid" in own
    assert "of 2, cpu" in own
    assert "failed first" not in own
    assert re.search("Connection (closed|reset) by peer", other)
    assert f"gpumap: raised on rank {1 - failing} (pid" in other
    assert f"gpumap: rank {failing} (pid" in other
    assert "on cpu, failed first: ValueError: bad batch" in other
    assert all(rank.seconds < 25 for rank in ended)


def test_a_rank_that_has_ended_hears_of_a_later_failure() -> None:
    """It does not end with 0, and does not wait for its time-out."""
    ended = run("fails_when_other_has_ended", limit=30)
    assert [rank.code for rank in ended] == [1, 1]
    assert (
        "SessionError: another rank failed while this one had already" in ended[0].out
    )
    assert "failed first: ValueError: late failure" in ended[0].out


def test_a_rank_that_never_comes_to_the_end_is_named() -> None:
    """After the time-out of the group, not of the world."""
    ended = run("ends_late", every={"TIMEOUT": "3"}, limit=40)
    assert "SessionError: rank 1 did not come to the end" in ended[0].out


def test_models_that_differ_name_the_rank_that_found_it() -> None:
    """Torch's own error on one rank; its text in the other's notes."""
    ended = run("uneven_model", limit=40)
    assert [rank.code for rank in ended] == [1, 1]
    assert "failed first" in ended[0].out
    assert "appears not to match sizes of the same param" in ended[0].out


def test_an_error_while_closing_never_hides_the_users_own() -> None:
    """It becomes a note."""
    for rank in run("closing_fails"):
        assert rank.code == 1
        assert "\nValueError: the user's own\n" in rank.out
        assert "the process group did not end: RuntimeError: planted" in rank.out

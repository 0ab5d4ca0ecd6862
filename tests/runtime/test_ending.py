"""How a job ends when one of its ranks fails."""

import re

import pytest
from jobs import run


@pytest.mark.parametrize("failing", [0, 1])
def test_an_exception_leaves_unchanged_and_the_others_know_why(failing: int) -> None:
    """Its rank and device are in its notes; the others' error names both."""
    ended = run("body_fails", every={"FAILS": str(failing)}, limit=30)
    assert [rank.code for rank in ended] == [1, 1]
    own, other = ended[failing].out, ended[1 - failing].out
    assert "args ('bad batch',)" in own
    assert f"gpumap: raised on rank {failing} (pid" in own
    assert "of 2, cpu" in own
    assert "failed first" not in own
    assert re.search("Connection (closed|reset) by peer", other)
    assert f"gpumap: raised on rank {1 - failing} (pid" in other
    assert re.search(
        rf"SessionError: rank {failing} \(pid \d+ on .*\), on cpu, failed first: "
        "ValueError: bad batch",
        other,
    )
    assert all(rank.seconds < 25 for rank in ended)


def test_a_rank_that_has_ended_hears_of_a_later_failure() -> None:
    """It does not end with 0, and does not wait for its time-out."""
    ended = run("fails_when_other_has_ended", limit=30)
    assert [rank.code for rank in ended] == [1, 1]
    assert "This rank had come to its end." in ended[0].out
    assert "failed first: ValueError: late failure" in ended[0].out


def test_a_rank_that_never_comes_to_the_end_is_named() -> None:
    """After end_timeout, with what it does meanwhile."""
    ended = run("ends_late", every={"TIMEOUT": "3"}, limit=40)
    assert [rank.code for rank in ended] == [1, 1]
    said = re.search(r"SessionError: (rank 1 \(pid .*)", ended[0].out)
    assert said
    assert "on cpu, is in ends_late, worker.py line" in said[1]
    assert "did not come to the end of the session within 3 s after rank 0" in said[1]


def test_an_error_while_closing_never_hides_the_users_own() -> None:
    """It becomes a note."""
    for rank in run("closing_fails"):
        assert rank.code == 1
        assert "\nValueError: the user's own\n" in rank.out
        assert (
            "the process group did not end: RuntimeError: RuntimeError: planted"
            in rank.out
        )

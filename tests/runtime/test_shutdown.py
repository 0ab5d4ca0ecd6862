"""How a job ends when one of its ranks fails."""

import re

import pytest

from helpers.jobs import Ended, endings, run


@pytest.mark.parametrize("failing", [0, 1])
def test_an_exception_leaves_unchanged_and_the_others_know_why(failing: int) -> None:
    """A rank's exception leaves with a note; the other rank's error names that rank."""
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
    """A rank that has finished fails too when another rank fails later."""
    ended = run("fails_when_other_has_ended", limit=30)
    assert [rank.code for rank in ended] == [1, 1]
    assert "This rank had come to its end." in ended[0].out
    assert "failed first: ValueError: late failure" in ended[0].out


def test_a_rank_that_never_comes_to_the_end_is_named() -> None:
    """After end_timeout the error names the rank that is late, and what it does."""
    ended = run("ends_late", every={"TIMEOUT": "3"}, limit=40)
    assert [rank.code for rank in ended] == [1, 1]
    said = re.search(r"SessionError: (rank 1 \(pid .*)", ended[0].out)
    assert said
    assert "on cpu, is in ends_late, worker.py line" in said[1]
    assert "did not come to the end of the session within 3 s after rank 0" in said[1]


def test_a_rank_that_gloo_does_not_let_go_ends_with_a_message() -> None:
    """If gloo stays in a collective after another rank's failure, the process ends."""
    first, _ = endings("gloo_stays", limit=30)
    assert first.code == 1
    assert "the session ends: rank 1 (pid" in first.out
    assert (
        "ends, since another rank failed and gloo stays in a collective that no rank "
        "can join any more." in first.out
    )


def test_an_error_while_closing_never_hides_the_users_own() -> None:
    """An error while closing becomes a note of the user's error."""
    for rank in run("closing_fails"):
        assert rank.code == 1
        assert "\nValueError: the user's own\n" in rank.out
        assert (
            "the process group did not end: RuntimeError: RuntimeError: planted"
            in rank.out
        )


def seconds(rank: Ended) -> float:
    """Return the seconds after which a rank printed that it had left."""
    return float(re.findall(r"after (\S+) s", rank.out)[0])


def test_rank_0_may_evaluate_for_longer_than_a_collective_may_take() -> None:
    """The time limit of collectives does not apply to ranks that wait at the end."""
    for rank in endings("rank_0_evaluates"):
        assert (rank.code, rank.out) == (0, "ended well\n")


@pytest.mark.parametrize("case", ["waits_in_own_group", "constructor"])
def test_connections_close_whoever_refers_to_the_group(case: str) -> None:
    """Connections close even if the user keeps a group, its DDP or the error."""
    ended = endings(case)
    assert [rank.code for rank in ended] == [0, 0], ended
    assert all(seconds(rank) < 5 for rank in ended), ended
    assert "ValueError" in ended[1].out
    assert "not heard of" not in ended[1].out
    assert all("connected False" in rank.out for rank in ended)
    assert re.search("text rank 1 .*, on cpu, failed first: ValueError", ended[0].out)


def test_a_group_that_the_body_destroys_is_survived_with_a_hint() -> None:
    """destroy_process_group() inside the block is no error; a hint says to omit it."""
    for rank in endings("destroys"):
        assert rank.code == 0, rank.out
        assert "leave dist.destroy_process_group() out" in rank.out
        assert "ended well" in rank.out


def test_a_group_that_does_not_end_is_told_and_not_taken_for_the_users() -> None:
    """A group that cannot be destroyed is an error, and the next session is refused."""
    ended = endings("destroy_fails")
    assert "error the gloo process group could not be ended." in ended[1].out
    assert "RuntimeError: planted" in ended[1].out
    assert re.search("error rank 1 .* failed first: SessionError: the", ended[0].out)
    assert "second the process group of an earlier session is" in ended[1].out
    assert "second one opened" not in ended[1].out


def test_uneven_steps_are_told_as_such_and_at_once() -> None:
    """If rank 1 makes one step more than rank 0, both say so and name m.join().

    DDP makes two collectives to compare the models and one for each of two tensors
    before the first step, and one per step. All of them count, so that only their
    difference is fixed.
    """
    for rank in endings("uneven"):
        assert seconds(rank) < 15, rank.out
        found = re.search(
            r"rank 0 \(.*\), on cpu, had come to its end after (\d+) collectives, "
            r"while rank 1 \(.*\), on cpu, stood in all_reduce, its (\d+)th",
            rank.out,
        )
        assert found, rank.out
        assert int(found[2]) == int(found[1]) + 1
        assert "or train inside `with m.join():`" in rank.out
        assert "ranks (0, 1)" in rank.out


def test_collectives_of_an_earlier_session_do_not_count() -> None:
    """An earlier session's collectives do not count, though group names repeat."""
    for rank in endings("uneven_after_another"):
        assert re.search(
            r"rank 0 \(.*\), on cpu, had come to its end after 0 collectives, "
            r"while rank 1 \(.*\), on cpu, stood in all_reduce, its 1st",
            rank.out,
        ), rank.out


@pytest.mark.parametrize("case", ["joined", "works_on_after_another"])
def test_steps_that_only_look_uneven_are_none(case: str) -> None:
    """Uneven steps are no error inside m.join(), or in a group of other ranks."""
    for rank in endings(case):
        assert (rank.code, rank.out) == (0, "ended well\n")


def test_a_slow_rank_hears_that_the_others_gave_up_and_why() -> None:
    """Both ranks' errors name the slow rank alone, and the line where it is."""
    for rank in endings("slow"):
        assert rank.code == 0, rank.out
        assert re.search(
            r"error rank 1 \(.*\), on cpu, is in load_data, endings\.py line \d+, "
            r"after \d+ collectives, while rank 0 \(.*\) waited for it in its \d+th",
            rank.out,
        ), rank.out
        assert "ranks (1,)" in rank.out


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "shape",
            "the ranks' models differ: rank {0} has parameter 1.weight ({2}, 3) "
            "float32, rank {1} has parameter 1.weight ({3}, 3) float32.",
        ),
        (
            "option",
            "the ranks disagree on find_unused_parameters: rank {0} has {2}, rank {1} "
            "has {3}.",
        ),
        (
            "session",
            "the ranks disagree on session: rank {0} has {2}, rank {1} has {3}.",
        ),
    ],
)
def test_what_must_be_alike_is_compared_before_the_wrap(how: str, said: str) -> None:
    """Different models, options or sessions are one and the same error on all ranks."""
    values = {
        "shape": ("2", "3"),
        "option": ("not given", "True"),
        "session": ("session()", "ddp_session()"),
    }[how]
    ended = endings(f"differs {how}")
    assert [rank.code for rank in ended] == [1, 1]
    texts = {re.findall("RollCallError: (.*)", rank.out)[-1] for rank in ended}
    assert len(texts) == 1
    text = re.sub(r" \(pid \d+ on \S+\)", "", texts.pop())
    orders = [said.format(a, b, values[a], values[b]) for a, b in ((0, 1), (1, 0))]
    assert text in orders


@pytest.mark.parametrize(
    ("how", "name", "text"),
    [
        ("frozen", "FrozenError", "3"),
        ("notes", "BadNotesError", "odd"),
        ("stop", "StopIteration", "over"),
    ],
)
def test_an_odd_error_is_still_the_same_with_its_rank(
    how: str, name: str, text: str
) -> None:
    """Errors that take no notes, have odd ones or are StopIteration leave unchanged."""
    ended = endings(f"odd_error {how}")
    assert f"same True {name}\ntext {text}\n" in ended[1].out
    assert "gpumap: raised on rank 1 (pid" in ended[1].out
    assert re.search(f"text rank 1 .* failed first: {name}: {text}", ended[0].out)

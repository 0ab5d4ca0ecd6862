"""Several models in one session, by session.wrap()."""

import re
from pathlib import Path

import pytest
from torch import nn

import gpumap
from helpers.jobs import WORKER, Ended, run

INSIDE = WORKER.with_name("inside.py")


def inside(case: str, folder: object = "") -> list[Ended]:
    """Run a case of inside.py in two ranks."""
    return run(case, script=INSIDE, every={"FOLDER": str(folder)})


def test_two_models_train_in_one_session() -> None:
    """Of inputs 0 and 1, four rows each, the mean gradient is 2 for either model."""
    for rank in inside("gan"):
        assert rank.code == 0, rank.out
        assert "grad [[2.0, 2.0]] False" in rank.out
        assert "grad [[2.0, 2.0, 2.0]] True" in rank.out
        assert rank.out.count("SessionError the session is over, and with it the") == 2
        assert "threads []" in rank.out


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("shape", r"RollCallError the ranks' models differ: rank \d \(.*\) has "),
        ("option", r"RollCallError the ranks disagree on broadcast_buffers: "),
    ],
)
def test_a_second_model_that_differs_is_the_same_error_on_every_rank(
    how: str, said: str
) -> None:
    """Every rank raises one RollCallError, before torch's constructor."""
    ended = inside(f"second {how}")
    told = [re.findall(rf"^{said}.*$", rank.out, re.MULTILINE) for rank in ended]
    assert told[0] == told[1] != []
    assert all("failed first" not in rank.out for rank in ended)


def test_a_second_model_that_one_rank_cannot_wrap_is_told_to_the_others() -> None:
    """A rank's own refusal is the others' RollCallError."""
    refused, other = inside("second frozen")
    # Rank 1 may have failed of it by then, and rank 0's group is gone with that.
    assert re.match(
        r"SessionError (rank 0 \(.*\) cannot start: )?ReLU has no parameter that requi",
        refused.out,
    )
    assert re.search(r"RollCallError rank 0 \(.*\) cannot start: ReLU has", other.out)


def test_a_rank_that_wraps_fewer_models_is_named_at_once() -> None:
    """Rank 1 comes to its end while rank 0 waits for it at its wrap."""
    waited, ended = inside("second fewer")
    assert re.search(
        r"RollCallError rank 1 \(.*\), on cpu, has come to its end. The others were at "
        r"the session's 1st session.wrap\(…\). Every rank wraps the same models",
        waited.out,
    )
    assert "ranks (1,)" in waited.out
    assert "rank 1 (" in ended.out
    for rank in (waited, ended):
        assert float(re.findall(r"after (\S+) s", rank.out)[-1]) < 20


@pytest.mark.parametrize(
    ("how", "why"), [("fails", "ValueError: boom"), ("killed", "its process is gone")]
)
def test_a_rank_that_fails_elsewhere_frees_those_that_wrap(how: str, why: str) -> None:
    """A rank that waits at its wrap hears of another rank's failure in its block."""
    waited = inside(f"second {how}")[0]
    assert re.search(
        rf"RollCallError rank 1 \(.*\), on cpu, failed first: {why}\. The others were",
        waited.out,
    )
    assert float(re.findall(r"after (\S+) s", waited.out)[-1]) < 20


def test_a_wrap_that_was_refused_can_be_followed_by_another() -> None:
    """The n-th wraps of all ranks are compared, also after one that failed on all."""
    for rank in inside("caught"):
        assert rank.code == 0, rank.out
        assert rank.out.splitlines()[-2:] == ["caught", "ended well"]


def test_a_session_that_splits_a_batch_trains_one_model() -> None:
    """What weighs the gradients counts the samples of one model's calls."""
    for rank in inside("balanced"):
        # Its own refusal, or the other's, which came first.
        assert re.match(
            r"SessionError (rank \d \(.*\), on cpu, failed first: SessionError: )?"
            r"a session with a balance trains one model\.",
            rank.out,
        ), rank.out


@pytest.mark.parametrize("store", ["tcp", "file"])
def test_a_group_that_exists_serves_a_wrap_too(store: str, tmp_path: Path) -> None:
    """Models are compared on the store of a group that the user has made."""
    for rank in inside(f"adopted {store}", tmp_path):
        assert rank.code == 0, rank.out
        assert "in" in rank.out.splitlines()
        assert "SessionError the session is over, and with it the wrapped" in rank.out


def test_a_forked_child_wraps_nothing_in_its_parents_session() -> None:
    """A child's wrap and turn are refused, its close() does nothing."""
    for rank in inside("forked"):
        assert rank.code == 0, rank.out
        assert rank.out.count("SessionError this process was forked inside a sess") == 2
        assert rank.out.count("ended well") == 2


def test_a_model_that_is_wrapped_by_hand_keeps_the_groups_threads() -> None:
    """Torch's own wrapper trains on after the session, and the process exits with 0."""
    for rank in inside("by_hand"):
        assert rank.code == 0, rank.out
        assert "group False threads True" in rank.out
        assert "it still trains" in rank.out


def test_the_model_of_ddp_session_costs_no_request_of_its_own() -> None:
    """ddp_session() compares its model in the session's roll call."""
    for rank in inside("requests"):
        assert rank.out.splitlines() == ["the first 0", "the second True"]


def test_alone_a_process_wraps_any_number_of_models() -> None:
    """In a world of one, session.wrap() is ddp_session()'s wrap without a roll call."""
    with gpumap.session() as s:
        models = [s.wrap(nn.Linear(n, 1)) for n in (1, 2, 3)]
        with pytest.raises(gpumap.SessionError, match="ReLU has no parameter"):
            s.wrap(nn.ReLU())
        with pytest.raises(TypeError, match="Did you mean find_unused_parameters"):
            s.wrap(nn.Linear(1, 1), find_unused_parameter=True)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="Pass gpus=… when the session is opened"):
            s.wrap(nn.Linear(1, 1), gpus=[0])  # type: ignore[call-arg]
        with pytest.raises(gpumap.SessionError, match="device_ids cannot be passed"):
            s.wrap(nn.Linear(1, 1), device_ids=[0])  # type: ignore[call-arg]
    assert [m.module.in_features for m in models] == [1, 2, 3]
    with pytest.raises(gpumap.SessionError, match="this session is over"):
        s.wrap(nn.Linear(1, 1))


def test_a_session_in_a_session_leads_to_wrap() -> None:
    """The error on a nested session names what takes another model."""
    with gpumap.ddp_session(nn.Linear(1, 1)):
        with (
            pytest.raises(gpumap.SessionError) as refused,
            gpumap.ddp_session(nn.Linear(1, 1)),
        ):
            pass
        assert "its wrap(model) wraps another model" in refused.value.hint
        gpumap.current().wrap(nn.Linear(1, 1))

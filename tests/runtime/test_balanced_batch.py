"""Batches that the ranks of a session split by their speeds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.accelerator import accelerator
from helpers.jobs import Ended, run

# The first test on the pretended accelerator may have to build it.
pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).parent.parent / "helpers/balanced.py"
REHEARSAL = {"GPUMAP_REHEARSAL": "rtx3090x4"}


def job(case: str, world_size: int = 2, **environ: str) -> list[Ended]:
    """Run a case of balanced.py in every rank of a job on four pretended cards."""
    return run(case, world_size, script=SCRIPT, every={**REHEARSAL, **environ})


def lines(ended: list[Ended], begin: str) -> list[str]:
    """Return a line that begins so from each rank; all must have ended with 0."""
    out = "".join(rank.out for rank in ended)
    assert [rank.code for rank in ended] == [0] * len(ended), out
    found = [re.search(rf"^{begin}(.*)$", rank.out, re.MULTILINE) for rank in ended]
    return [match[1] for match in found if match]


def parameters(ended: list[Ended]) -> list[list[list[float]]]:
    """Return the parameters that each rank has trained."""
    return [json.loads(line) for line in lines(ended, "parameters ")]


SHARES = [("3,1", "(6, 2)"), ("5,2,1", "(5, 2, 1)"), ("1,1", "(4, 4)")]


@pytest.mark.parametrize(("speeds", "shares"), SHARES)
@pytest.mark.parametrize("on", ["cpu", "accelerator"])
def test_a_balanced_job_trains_as_one_process_does(
    speeds: str, shares: str, on: str
) -> None:
    """The same script gives the same model, whatever the shares and the last batch."""
    machine = REHEARSAL if on == "cpu" else accelerator()
    ranks = len(speeds.split(","))
    every = {**machine, "SPEEDS": speeds}
    alone = run("train", 1, script=SCRIPT, every=machine)
    together = run("train", ranks, script=SCRIPT, every=every)
    assert lines(alone, "rank 0 has ") == ["8 of (8,)"]
    assert f"of {shares}" in lines(together, "rank ")[0]
    assert "first call" not in together[0].out
    [expected] = parameters(alone)
    for found in parameters(together):
        for own, wanted in zip(found, expected, strict=True):
            assert own == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_every_rank_knows_all_shares() -> None:
    """Speeds of 3, 2 and 1 split a batch of 8 by largest remainders, alike for all."""
    found = lines(job("shares", 3, SPEEDS="3,2,1"), "rank ")
    assert found == [
        "0 has 4 of (4, 3, 1) split (2, 2, 1)",
        "1 has 3 of (4, 3, 1) split (2, 2, 1)",
        "2 has 1 of (4, 3, 1) split (2, 2, 1)",
    ]


def test_memory_bounds_a_share() -> None:
    """What rank 0 cannot take, rank 1 does."""
    options = json.dumps({"most": 5})
    found = lines(job("shares", SPEEDS="3,1", OPTIONS=options), "rank ")
    assert found[1] == "1 has 3 of (5, 3) split (3, 2)"


def splits(*totals: int, **options: Any) -> str:
    """Return what rank 0, three times as fast as rank 1, says of these batches."""
    environ: Any = {"OPTIONS": json.dumps(options), "SPLIT": json.dumps(totals)}
    return job("shares", SPEEDS="3,1", **environ)[0].out


def test_the_minimum_holds_in_smaller_batches_that_are_large_enough() -> None:
    """Of 6 and 2 the minimum is 2, so also of a batch of 4, and not of one of 3."""
    out = splits(16, 7, 5, 4, 3, 2, minimum=2)
    for words in ("16 (12, 4)", "7 (5, 2)", "5 (3, 2)", "4 (2, 2)", "3 (2, 1)"):
        assert f"split {words}\n" in out
    assert "split 2 (1, 1)\n" in out


def test_a_bound_for_all_holds_in_larger_batches_too() -> None:
    """Each rank takes 5 or less of any batch; of 16 samples 6 are too many."""
    out = splits(10, 9, 16, most=5)
    assert "split 10 (5, 5)\n" in out
    assert "split 9 (5, 4)\n" in out
    assert "PlacementError: a batch of 16 is more than the ranks can take." in out


def test_a_larger_batch_than_that_of_bounds_by_device_is_refused() -> None:
    """A rank knows its own bound, and the others' only by their shares."""
    out = splits(7, 9, most={"cuda:0": 5, "cuda:1": 6})
    assert "split 7 (4, 3)\n" in out
    assert "SessionError: a batch of 9 is larger than the balance's, 8." in out


def test_a_single_process_takes_the_whole_batch_of_any_size() -> None:
    """It needs no speed and no bound, whatever those of other machines are."""
    options = json.dumps({"speeds": {"cuda:9": 0}, "most": 3})
    [alone] = job("shares", 1, OPTIONS=options, SPLIT="[16]")
    assert lines([alone], "rank ") == ["0 has 8 of (8,) split (5,)"]
    assert "split 16 (16,)\n" in alone.out


def all_say(ended: list[Ended], words: str) -> None:
    """Check that every rank has failed with these words."""
    for rank in ended:
        assert rank.code == 1, rank.out
        assert words in rank.out


def test_a_batch_that_the_ranks_cannot_take_fails_on_all() -> None:
    """Too much for the memory of both, or too little for a sample each."""
    all_say(
        job("shares", OPTIONS=json.dumps({"most": 3})),
        "RollCallError: the batch cannot be split among the ranks: a batch of 8 is "
        "more than the ranks can take.",
    )
    all_say(
        job("shares", 3, SPEEDS="1,1,1", BATCH="2"),
        "RollCallError: the batch cannot be split among the ranks: a batch of 2 is "
        "too small for 3 ranks.",
    )


def test_ranks_that_split_different_batches_are_told_so() -> None:
    """The roll call compares the batch as it compares all else."""
    each: Any = {1: {"BATCH": "16"}}
    ended = run("shares", 2, script=SCRIPT, every=REHEARSAL, each=each)
    all_say(ended, "the ranks disagree on balance: rank")
    all_say(ended, "has Balance(batch=16, minimum=1, numbers)")


def test_a_measurement_is_made_by_one_rank() -> None:
    """In a rehearsal it counts multiprocessors: equal cards have equal shares."""
    ended = job("shares", OPTIONS=json.dumps({"speeds": "measure"}))
    assert lines(ended, "rank ")[0].startswith("0 has 4 of (4, 4)")
    out = "".join(rank.out for rank in ended)
    assert out.count("measure() returns multiprocessors") == 1


def adapted(*epochs: list[float | None], **options: Any) -> list[Ended]:
    """Train with these speeds of both ranks in each epoch, rebalancing after it."""
    told: Any = {"EPOCHS": json.dumps(epochs), "OPTIONS": json.dumps(options)}
    ended = job("adapt", BATCH=str(options.get("batch", 8)), **told)
    assert [rank.code for rank in ended] == [0, 0], ended
    return ended


def had(ended: Ended) -> list[int]:
    """Return the shares that a rank has had."""
    return [int(share) for share in re.findall(r"has (\d+)", ended.out)]


def test_shares_adapt_between_epochs_and_are_in_the_log() -> None:
    """Speeds of 3 to 1 in an epoch give 6 and 2 in the next, equal ones 4 and 4."""
    first, second = adapted([3, 1], [1, 1])
    assert had(first) == [4, 6, 4]
    assert had(second) == [4, 2, 4]
    logged = re.findall("a batch of 8 is split among the ranks as (.+)", first.out)
    assert logged == ["4, 4", "6, 2", "4, 4"]
    assert "is split" not in second.out


def test_the_shares_stay_if_a_rank_has_finished_no_step() -> None:
    """Nobody knows how fast it is; the others' speeds alone do not tell the shares."""
    first, second = adapted([3, 1], [1, None], [None, None], [1, 3])
    assert had(first) == [4, 6, 6, 6, 2]
    assert had(second) == [4, 2, 2, 2, 6]


def test_shares_that_adapt_keep_their_bounds() -> None:
    """Of 3 to 1 each gets the minimum, and no more than its own device takes."""
    assert had(adapted([3, 1], minimum=3)[0]) == [4, 5]
    bounds = {"cuda:0": 5, "cuda:1": 4}
    assert had(adapted([3, 1], most=bounds)[0]) == [4, 5]
    assert had(adapted([1, 7], most=bounds)[0]) == [4, 4]


def test_bounds_of_many_samples_are_exact() -> None:
    """2^24 + 1 is no 32-bit float; together the ranks take just this batch."""
    bounds = {"cuda:0": 2**24 + 1, "cuda:1": 2**24}
    first, second = adapted([1, 1], batch=2**25 + 1, most=bounds)
    assert had(first) == [2**24 + 1] * 2
    assert had(second) == [2**24] * 2


def test_a_session_leaves_no_hook_on_the_model() -> None:
    """What weighs and times the steps is gone when the block is left."""
    for rank in adapted([1, 1]):
        assert "left [] False\n" in rank.out


def test_a_first_call_unlike_the_share_is_told_once() -> None:
    """Samples in another dimension than the first are noticed, and can be counted."""
    for rank, share in zip(job("sideways", SPEEDS="3,1"), (6, 2), strict=True):
        assert rank.code == 0, rank.out
        told = f"first call of the model had 5 samples, its share is {share}; unless"
        assert rank.out.count(told) == 1
        assert "counted []" in rank.out
    for rank, share in zip(job("sideways", COUNT="1"), (4, 4), strict=True):
        assert rank.code == 0, rank.out
        assert "first call" not in rank.out
        assert f"counted [{share}, {share}]" in rank.out


def test_without_a_balance_there_is_no_share_and_nothing_is_loaded() -> None:
    """A usual session says how to get one, and imports nothing of what it could do."""
    [alone] = job("without", 1)
    assert "loaded []" in alone.out
    assert "SessionError: this session has no batch to split." in alone.out

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
    all_say(ended, "has Balance(batch=16, minimum=1, speeds)")


def test_a_measurement_is_made_by_one_rank() -> None:
    """In a rehearsal it counts multiprocessors: equal cards have equal shares."""
    ended = job("shares", OPTIONS=json.dumps({"speeds": "measure"}))
    assert lines(ended, "rank ")[0].startswith("0 has 4 of (4, 4)")
    out = "".join(rank.out for rank in ended)
    assert out.count("measure() returns multiprocessors") == 1


def test_shares_adapt_between_epochs_and_are_in_the_log() -> None:
    """Speeds of 3 to 1 after the first epoch give 6 and 2, equal ones 4 and 4."""
    first, second = job("adapt", SPEEDS="3,1")
    assert re.findall("has (.)", first.out) == ["4", "6", "4"]
    assert re.findall("has (.)", second.out) == ["4", "2", "4"]
    logged = re.findall("a batch of 8 is split among the ranks as (.+)", first.out)
    assert logged == ["4, 4", "6, 2", "4, 4"]
    assert "is split" not in second.out


def test_without_a_balance_there_is_no_share_and_nothing_is_loaded() -> None:
    """A usual session says how to get one, and imports nothing of what it could do."""
    [alone] = job("without", 1)
    assert "loaded []" in alone.out
    assert "SessionError: this session has no batch to split." in alone.out

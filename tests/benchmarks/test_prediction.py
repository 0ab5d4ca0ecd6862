"""Predictions for machines that are not here, against rings drawn by hand."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from allreduce import main


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[str]]:
    """Return the words of each strategy's line."""
    assert main(["--machine", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.startswith("prediction, not a measurement")
    assert "Left out" in out
    assert "Sources" in out
    lines = [line.replace(",", "").split() for line in out.splitlines()]
    return {words[0]: words[1:] for words in lines if words and words[0] in NAMES}


NAMES = ("local_rank", "modulo", "scored", "linked")


@pytest.mark.parametrize(
    ("arguments", "local_rank", "linked"),
    [
        # A DGX-1's matrix: 0-1 is one NVLink of 20 GB/s, 0-3 two.
        (
            ["dgx1-v100", "--nproc", "2"],
            "cuda:0 cuda:1 1 NV1 NV1 20",
            "cuda:0 cuda:3 1 NV2 NV2 40",
        ),
        # Here no three close a ring of NVLinks; 1-0-4 has the most of them.
        (
            ["dgx1-v100", "--nproc", "3", "--gpus", "1,6,0,4"],
            "cuda:1 cuda:6 cuda:0 1 NV1 2 SYS SYS 6",
            "cuda:0 cuda:1 cuda:4 1 NV1 1 NV2 1 SYS SYS 6",
        ),
        # Two sockets of four cards: 2 and 3 are on the first one.
        (
            ["rtx4090x8-node", "--nproc", "4", "--gpus", "2,3,4,5,6,7"],
            "cuda:2 cuda:3 cuda:4 cuda:5 2 NODE 4 SYS SYS 6",
            "cuda:4 cuda:5 cuda:6 cuda:7 6 NODE NODE 9",
        ),
        # A bridged pair on each socket; NCCL counts 12 GB/s for each of its NVLinks.
        (
            ["rtx3090x4", "--nproc", "2", "--gpus", "1,2,3"],
            "cuda:1 cuda:2 1 SYS SYS 6",
            "cuda:2 cuda:3 1 NV4 NV4 48",
        ),
    ],
)
def test_a_ring_runs_at_its_slowest_link(
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    local_rank: str,
    linked: str,
) -> None:
    """The predicted bandwidth of a ring is that of its slowest link."""
    found = rows(capsys, *arguments)
    assert " ".join(found["local_rank"]) == local_rank
    assert " ".join(found["linked"]).removesuffix(" the devices of scored") == linked


def test_the_same_devices_are_said_to_be_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A strategy with the devices of another one is printed as the same."""
    found = rows(capsys, "dgx1-v100", "--nproc", "4")
    for name in ("modulo", "scored", "linked"):
        assert " ".join(found[name]).endswith("NV1 20 the devices of local_rank")


def test_a_strategy_that_cannot_place_the_ranks_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A strategy that cannot place five ranks on four cards prints its error."""
    found = rows(capsys, "t4x4", "--nproc", "5")
    assert " ".join(found["linked"]).startswith("5 processes on t4x4 have 4 devices")
    assert " ".join(found["modulo"]).startswith("rank 0 and rank 4 are both placed")


PAGE = Path(__file__).parent.parent.parent / "docs/benchmarks.md"
SHOWN = re.findall(
    r"`python benchmarks/allreduce.py (--machine [^`]*)`.*?```\n(.*?)```",
    PAGE.read_text(),
    re.DOTALL,
)


@pytest.mark.parametrize(("arguments", "output"), SHOWN)
def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], arguments: str, output: str
) -> None:
    """docs/benchmarks.md shows the command's output word for word."""
    assert main(arguments.split()) == 0
    assert capsys.readouterr().out == output


def test_the_page_shows_two_predictions() -> None:
    """docs/benchmarks.md has two examples, so that they are in fact compared."""
    assert len(SHOWN) == 2


def test_an_unknown_machine_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown machine is an error that lists the known ones."""
    assert main(["--machine", "dgx-9"]) == 2
    assert "There are dgx-a100, " in capsys.readouterr().err

"""Recipes of measuring and sharding: all ranks know what one process would."""

from pathlib import Path

import pytest

from recipes.page import on_two_ranks, start_values, trained


def error(samples: int) -> float:
    """Return the mean squared error on the first samples, before any training."""
    given = start_values()
    difference = given.model(given.inputs[:samples]) - given.targets[:samples]
    return float((difference * difference).sum().detach() / samples)


@pytest.mark.parametrize(
    ("title", "name"),
    [("Metrics over ranks", "mean"), ("Evaluation on all ranks", "error")],
)
def test_ranks_with_16_and_15_samples_report_the_mean_of_all_31(
    tmp_path: Path, title: str, name: str
) -> None:
    """The mean over 31 samples is known on both ranks, though they do not halve."""
    assert on_two_ranks(tmp_path, title, name) == [[pytest.approx(error(31))]] * 2


def test_rank_0_evaluates_alone(tmp_path: Path) -> None:
    """Rank 0 has the error on all samples, and rank 1 does not wait in a forward."""
    found = on_two_ranks(
        tmp_path, "Evaluation on rank 0", "error.item() if s.is_main else None"
    )
    assert found == [[pytest.approx(error(32))], [None]]


def test_fsdp_trains_in_a_session(tmp_path: Path) -> None:
    """A step of sharded weights is that of one process, and each rank holds half."""
    given = start_values()
    expected = trained(given.model, [(given.inputs, given.targets)])
    for whole, part in on_two_ranks(
        tmp_path,
        "FSDP2",
        "[number for part in whole.values() for number in part.flatten().tolist()]",
        "list(model[0].weight.to_local().shape)",
    ):
        assert whole == pytest.approx(expected, abs=1e-6)
        assert part == [4, 4]


def test_a_mesh_has_one_axis_within_the_node(tmp_path: Path) -> None:
    """Two ranks of one node are a mesh of 1 x 2, whose groups end with the session."""
    given = start_values()
    halves = [given.model(given.inputs[r::2]).mean().detach() for r in range(2)]
    wanted = ("total.item()", "list(mesh.shape)", "dist.is_initialized()")
    for found in on_two_ranks(tmp_path, "DeviceMesh", *wanted):
        assert found == [pytest.approx(float(sum(halves))), [1, 2], False]

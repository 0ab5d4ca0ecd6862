"""Recipes of processes: workers, jobs one after the other and jobs side by side."""

from pathlib import Path

import pytest
import torch

from recipes.page import (
    in_a_shell,
    on_one_process,
    on_two_ranks,
    reports,
    script,
    start_values,
    titles,
    trained,
)

WEIGHTS = "nn.utils.parameters_to_vector(model.parameters()).tolist()"


def test_spawned_workers_load_each_rank_s_samples(tmp_path: Path) -> None:
    """Rank 0 gets the even numbers' squares and rank 1 the odd ones', in two epochs."""
    found = on_two_ranks(
        tmp_path,
        "DataLoader workers under spawn",
        "[batch.tolist() for batch in batches]",
    )
    assert found == [[[[0, 4], [16, 36]] * 2], [[[1, 9], [25, 49]] * 2]]


def test_a_sweep_returns_the_loss_of_each_rate(tmp_path: Path) -> None:
    """The losses of two ranks add up to twice that of one process in its third step."""
    expected = []
    for rate in (0.1, 0.01):
        given = start_values()
        optimizer = torch.optim.SGD(given.model.parameters(), lr=rate)
        trained(given.model, [(given.inputs, given.targets)] * 2, optimizer)
        difference = given.model(given.inputs) - given.targets
        expected.append(2 * float(difference.square().mean().detach()))
    wanted = ("list(losses.values())", "best")
    losses, best = on_one_process(tmp_path, "A sweep", *wanted)
    assert losses == pytest.approx(expected)
    assert best == (0.1, 0.01)[expected.index(min(expected))]


def test_two_jobs_train_side_by_side(tmp_path: Path) -> None:
    """Of two jobs on one machine each has its own two devices and its own group."""
    wanted = ("s.placement.device.index", WEIGHTS)
    script(tmp_path, "Gradient accumulation", *wanted)
    found = reports(in_a_shell(tmp_path, "Two jobs on one machine"))
    given = start_values()
    expected = trained(given.model, [(given.inputs, given.targets)])
    assert [index for index, _ in found] == [0, 1, 2, 3]
    for _, ended in found:
        assert ended == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("title", [title for title in titles() if title != "A sweep"])
def test_each_recipe_runs_under_python_alone(tmp_path: Path, title: str) -> None:
    """A world of one needs no other script."""
    assert on_one_process(tmp_path, title, "model is not None") == [True]

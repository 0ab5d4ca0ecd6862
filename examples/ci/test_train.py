"""Tests of train.py on any machine: each rank's device, and what it learns."""

import pytest
from train import train

import gpumap
from gpumap.testing import Rehearse, RunRanks, assert_plan


def test_ranks_train_together(
    gpumap_rehearse: Rehearse, gpumap_ranks: RunRanks
) -> None:
    """With gpus=[2, 3] ranks 0 and 1 train on these, and find the slope 3."""
    gpumap_rehearse("rtx3090x4")
    results = gpumap_ranks(train, 50, gpus=[2, 3])
    assert_plan([placement for placement, _ in results], [2, 3])
    assert [slope for _, slope in results] == pytest.approx([3, 3], abs=0.001)


def test_a_third_process_on_two_devices_is_refused(
    gpumap_rehearse: Rehearse, gpumap_ranks: RunRanks
) -> None:
    """Three processes on a machine of two GPUs end before training starts."""
    gpumap_rehearse("rtx3090x2")
    with pytest.raises(gpumap.PlacementError, match="3 processes on rtx3090x2 have 2"):
        gpumap_ranks(train, 50, nprocs=3)


def test_the_job_on_the_cluster() -> None:
    """On two nodes of eight GPUs, rank 8 is the first of node 1, without a process."""
    nodes = [gpumap.machine("dgx-a100")] * 2
    assert_plan(gpumap.plan(nodes, [8, 8]), {0: 0, 7: 7, 8: 0, 15: 7})

"""What assert_plan accepts, and the difference that it tells."""

import pytest
import torch

import gpumap
from gpumap.testing import assert_plan
from helpers.programs import run_python


def eight(gpus: list[gpumap.DeviceRef] | None = None) -> gpumap.Plan:
    """Return a plan of four ranks on a DGX A100."""
    return gpumap.plan([gpumap.machine("dgx-a100")], [4], gpus=gpus)


@pytest.mark.parametrize(
    "expected",
    [
        [6, 2, 4, 0],
        ["cuda:6", "cuda:2", "cuda:4", "cuda:0"],
        ["GPU-a1000006", "GPU-A1000002", "GPU-a1000004", "GPU-a1000000"],
        [torch.device("cuda", 6), 2, "cuda:4", "GPU-a1000000"],
        {3: 0, 0: 6},
        {},
    ],
)
def test_a_plan_as_expected_passes(
    expected: dict[int, gpumap.DeviceRef] | list[gpumap.DeviceRef],
) -> None:
    """A device is named by index, torch's name, or the start of its UUID, as in gpus.

    The UUIDs of the recorded DGX A100 end in the device's index.
    """
    assert_plan(eight([6, 2, 4, 0]), expected)


def test_ranks_elsewhere_are_told_each_in_a_line() -> None:
    """The error has a line for each rank that differs, and none for the others."""
    with pytest.raises(AssertionError) as caught:
        assert_plan(eight(), {0: 0, 1: 3, 2: "GPU-b", 9: 1})
    assert str(caught.value).splitlines() == [
        "another device is expected for 3 of 4 ranks.",
        "rank  expected  is on                   why",
        f"1     3         cuda:1 (GPU-a1000001…)  {eight()[1].why}",
        f"2     GPU-b     cuda:2 (GPU-a1000002…)  {eight()[2].why}",
        "9     1         -                       there are 4 ranks",
    ]


def test_a_list_has_a_device_for_each_rank() -> None:
    """A list that is too short or too long is an error that tells both lengths."""
    with pytest.raises(AssertionError, match=r"^2 ranks are expected, and there are 4"):
        assert_plan(eight(), [0, 1])


def test_of_many_differences_twenty_are_told() -> None:
    """Of 64 ranks that differ, 20 have a line, and the last line counts the others."""
    plan = gpumap.plan([gpumap.machine("dgx-a100")] * 8, [8] * 8)
    with pytest.raises(AssertionError) as caught:
        assert_plan(plan, [8] * 64)
    lines = str(caught.value).splitlines()
    assert lines[0] == "another device is expected for 64 of 64 ranks."
    assert len(lines) == 2 + 20 + 1
    assert lines[-1] == "and 44 more"


def test_the_cpu_is_no_device_with_an_index() -> None:
    """A rank on the CPU is expected as "cpu", and never as device 0."""
    plan = gpumap.plan([gpumap.Node(hostname="n1")], [2])
    assert_plan(plan, ["cpu", torch.device("cpu")])
    with pytest.raises(AssertionError, match="expected for 1 of 1 ranks"):
        assert_plan(plan, {1: 0})


def test_placements_count_by_their_rank() -> None:
    """Placements that ranks returned are told apart by rank, not by their order."""
    first, second, *_ = eight([6, 2, 4, 0])
    assert_plan([second, first], [6, 2])


def test_what_is_no_device_is_not_expected() -> None:
    """An empty text, which every UUID begins with, is refused as gpus refuses it."""
    with pytest.raises(gpumap.DeviceError, match="an empty text is not a device"):
        assert_plan(eight(), {0: ""})


def test_importing_gpumap_testing_does_not_import_torch() -> None:
    """`import gpumap.testing` imports no torch, so that tests of plans stay quick."""
    code = "import sys, gpumap.testing\nsys.exit('torch' in sys.modules)"
    assert run_python("-c", code).returncode == 0

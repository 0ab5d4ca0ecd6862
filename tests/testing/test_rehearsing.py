"""What a rehearsal changes for the length of a block."""

import os

import pytest

import gpumap
from gpumap.testing import rehearse

OUTSIDE = {
    "CUDA_VISIBLE_DEVICES": "1",
    "GPUMAP_GPUS": "7",
    "GPUMAP_LAUNCHER": "torchrun",
    "GPUMAP_REHEARSAL": "rtx3090x2",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "SLURM_PROCID": "5",
}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a mask, a pool, a rehearsal and a launcher's variables."""
    for name, value in OUTSIDE.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("outside")
def test_nothing_else_of_the_environment_counts_in_a_rehearsal() -> None:
    """Under a mask and in a rank of torchrun, a rehearsal has all eight devices.

    The process is the only one there, on device 0.
    """
    with rehearse("dgx-a100") as nodes:
        assert len(gpumap.detect_node().devices) == 8
        assert gpumap.detect_launch().world_size == 1
        with gpumap.session() as opened:
            assert opened.placement.device.index == 0
    assert nodes == [gpumap.machine("dgx-a100")]


@rehearse("dgx-a100")
def changes_all_and_fails() -> None:
    """Set a mask, end the rehearsal, and fail."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "6,2"
    del os.environ["GPUMAP_REHEARSAL"]
    raise ZeroDivisionError


@pytest.mark.usefixtures("outside")
def test_the_environment_is_as_before_afterwards() -> None:
    """After the block, also one that fails, each variable has its value from before."""
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError):
        changes_all_and_fails()
    assert dict(os.environ) == before


def test_variables_that_were_not_set_are_not_set_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mask that the block sets is gone after it, as GPUMAP_REHEARSAL is."""
    monkeypatch.delenv("GPUMAP_REHEARSAL", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with rehearse("dgx-a100"):
        os.environ["CUDA_VISIBLE_DEVICES"] = "6,2"
        indices = [d.physical_index for d in gpumap.detect_node().devices]
        assert indices == [6, 2]
    assert not os.environ.keys() & {"GPUMAP_REHEARSAL", "CUDA_VISIBLE_DEVICES"}


def test_nodes_of_ones_own_are_rehearsed() -> None:
    """A node, or several, is rehearsed as given; a rank has its node's devices."""
    card = gpumap.Device(kind="cuda", index=0, name="RTX 4000", uuid="GPU-4000")
    small = gpumap.Node(hostname="n2", devices=(card,))
    with rehearse(small) as nodes:
        assert nodes == [small]
        assert gpumap.detect_node() == small
    both = [gpumap.machine("rtx3090x2"), small]
    with rehearse(both) as nodes:
        assert nodes == both
        launch = gpumap.Launch(
            launcher="mine",
            rank=2,
            world_size=3,
            local_rank=0,
            local_world_size=1,
            node_rank=1,
        )
        assert gpumap.detect_node(launch=launch) == small


@pytest.mark.usefixtures("outside")
def test_an_unknown_machine_changes_nothing() -> None:
    """An unknown machine is a DeviceError, and the environment stays as it is."""
    before = dict(os.environ)
    with (
        pytest.raises(gpumap.DeviceError, match="no machine 'dgx-9000'"),
        rehearse("dgx-9000"),
    ):
        pass
    assert dict(os.environ) == before


@rehearse("rtx4090x8-sys")
def test_a_rehearsal_stands_above_a_function() -> None:
    """rehearse() above a test lasts as long as the test."""
    assert len(gpumap.detect_node().devices) == 8

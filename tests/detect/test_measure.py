"""How fast each visible device is."""

import subprocess
import sys

import pytest
import torch

import gpumap
from gpumap.detect import measure


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")
def test_on_the_cpu_it_measures_the_cpu() -> None:
    """And a session takes the score for what it is: there is nothing to choose."""
    scores = gpumap.measure()
    assert list(scores) == ["cpu"]
    assert 1e-4 < scores["cpu"] < 100
    with gpumap.session(scores=scores) as s:
        assert s.device.type == "cpu"


def test_a_product_of_matrices_takes_two_operations_for_each_step() -> None:
    """1000 cubed multiplications and as many additions in 1 ms: 2 TFLOP/s."""
    assert measure.teraflops(1000, 1e-3) == pytest.approx(2.0)


def test_in_a_rehearsal_the_multiprocessors_stand_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By UUID, loudly; the scored strategy takes them as they are."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "rtx3090-gtx1080")
    scores = gpumap.measure()
    assert scores == {
        "GPU-30910000-0000-4000-8000-000000000000": 82.0,
        "GPU-30910001-0000-4000-8000-000000000001": 20.0,
    }
    assert "measure() returns multiprocessors" in caplog.text
    plan = gpumap.plan([gpumap.machine("rtx3090-gtx1080")], [2], scores=scores)
    assert [p.device.index for p in plan] == [0, 1]


def test_a_device_that_takes_too_long_is_an_error() -> None:
    """Nobody waits longer than asked for."""
    with pytest.raises(
        gpumap.DeviceError, match=r"could not be measured within 0.01 s"
    ):
        gpumap.measure(timeout=0.01)


def test_a_device_that_fails_is_an_error_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last line of what it said."""
    failed = subprocess.CompletedProcess(
        [sys.executable], 1, "", "Traceback\ntorch.OutOfMemoryError: CUDA out of memory"
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(gpumap.DeviceError) as caught:
        gpumap.measure()
    assert caught.value.seen == "torch.OutOfMemoryError: CUDA out of memory"

"""Scores of the visible devices, as measured."""

import subprocess
import sys

import pytest
import torch

import gpumap
from gpumap.detect import measure


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")
def test_on_the_cpu_it_measures_the_cpu() -> None:
    """On the CPU measure() scores the CPU, and a session accepts that score."""
    scores = gpumap.measure()
    assert list(scores) == ["cpu"]
    assert 1e-4 < scores["cpu"] < 100
    with gpumap.session(scores=scores) as s:
        assert s.device.type == "cpu"


def test_a_product_of_matrices_takes_two_operations_for_each_step() -> None:
    """A product of n x n matrices is 2 n³ operations: n = 1000 in 1 ms is 2 TFLOP/s."""
    assert measure.teraflops(1000, 1e-3) == pytest.approx(2.0)


def test_in_a_rehearsal_the_multiprocessors_stand_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a rehearsal the scores are multiprocessors by UUID, with a warning."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "rtx3090-gtx1080")
    scores = gpumap.measure()
    assert scores == {
        "GPU-30910000-0000-4000-8000-000000000000": 82.0,
        "GPU-30910001-0000-4000-8000-000000000001": 20.0,
    }
    assert "measure() returns multiprocessors" in caplog.text
    plan = gpumap.plan([gpumap.machine("rtx3090-gtx1080")], [2], scores=scores)
    assert [p.device.index for p in plan] == [0, 1]


def test_only_the_devices_that_are_asked_for_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may be in use by somebody; without any, the CPU is measured."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "rtx3090-gtx1080")
    uuid = "GPU-30910001-0000-4000-8000-000000000001"
    assert gpumap.measure(devices=[1]) == {uuid: 20.0}
    monkeypatch.delenv("GPUMAP_REHEARSAL")
    assert list(gpumap.measure(devices=[])) == ["cpu"]


def test_a_device_that_takes_too_long_is_an_error() -> None:
    """A measurement that exceeds its timeout is a DeviceError."""
    with pytest.raises(
        gpumap.DeviceError, match=r"could not be measured within 0.01 s"
    ):
        gpumap.measure(timeout=0.01)


def test_a_device_that_fails_is_an_error_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a measurement fails, the error has the last line of its traceback."""
    failed = subprocess.CompletedProcess(
        [sys.executable], 1, "", "Traceback\ntorch.OutOfMemoryError: CUDA out of memory"
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(gpumap.DeviceError) as caught:
        gpumap.measure()
    assert caught.value.seen == "torch.OutOfMemoryError: CUDA out of memory"

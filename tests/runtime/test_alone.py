"""Single processes on one machine, on the same device or on different ones."""

import subprocess

import pytest

from helpers.programs import start_python

CODE = """
import sys, gpumap
with gpumap.session(gpus=[int(sys.argv[1])]):
    print("in", flush=True)
    sys.stdin.read()
"""


def alone_on(*devices: int) -> list[str]:
    """Open a single-process session on each device, in turn; return their stderr."""
    began: list[subprocess.Popen[str]] = []
    for device in devices:
        process = start_python(
            *("-c", CODE, str(device)),
            environ={"GPUMAP_REHEARSAL": "dgx-a100"},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        began.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
    said = [process.communicate(timeout=60)[1] for process in began]
    assert [process.returncode for process in began] == [0] * len(began), said
    return said


def test_the_second_of_two_on_one_device_says_so() -> None:
    """The second single process on a device warns, and names torchrun and gpus=[…]."""
    first, second = alone_on(2, 2)
    assert "is alone on" not in first
    assert "is alone on cuda:2 (GPU-a1000002…) too: each is rank 0 of 1" in second
    assert "torchrun" in second
    assert "gpus=[…]" in second


@pytest.mark.parametrize("devices", [(0, 1), (3,)])
def test_on_devices_of_their_own_nothing_is_said(devices: tuple[int, ...]) -> None:
    """Single processes on different devices, or a lone one, print no such warning."""
    assert not any("is alone on" in said for said in alone_on(*devices))

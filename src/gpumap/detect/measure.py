"""The speed of each visible device, from a short timed matrix product."""

import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

from gpumap.detect.hardware import detect_node
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.errors import DeviceError
from gpumap.mapping.device_refs import DeviceRef
from gpumap.mapping.devices import Device

__all__ = ["measure"]

log = logging.getLogger(__name__)

# Rows of the square matrices: enough for a product to be long enough to time.
_ROWS = {"cpu": 1024}
_ROWS_ON_ACCELERATORS = 4096
_WARM_UPS, _PRODUCTS = 3, 9


def measure(
    timeout: float = 120.0, *, devices: Sequence[int] | None = None
) -> dict[DeviceRef, float]:
    """Return the speed of each visible device in TFLOP/s, for scores=….

    With devices, only of those with these indices.

    The keys are UUIDs, or {"cpu": …} without an accelerator. Each device in turn
    multiplies square float32 matrices, with torch's current defaults, in another
    process, so that no context is left in this one. Figures differ a little from run to
    run: measure once, and give every rank the same. In a rehearsal the numbers of
    multiprocessors are returned instead.

    Raises:
        DeviceError: A device failed, or did not finish within timeout seconds.
    """
    if wanted := os.environ.get(REHEARSAL):
        log.warning(
            "rehearsal of %s: measure() returns multiprocessors instead of speeds.",
            wanted,
        )
        found = _chosen(devices)
        scores = {_key(d): float(d.multiprocessors or 1) for d in found}
        return scores or {"cpu": 1.0}
    try:
        done = subprocess.run(  # noqa: S603 - this module, by this Python
            # -P: do not import files of the current folder in place of libraries.
            [
                sys.executable,
                "-P",
                "-m",
                __name__,
                json.dumps(devices and list(devices)),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"the devices could not be measured within {timeout:g} s.",
            "",
            "See whether one is busy (nvidia-smi), or give measure(timeout=…) more.",
        ) from None
    if done.returncode != 0:
        raise DeviceError(
            "a device could not be measured.",
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "",
            "See whether its memory is free (nvidia-smi), or hide it with a mask.",
        )
    speeds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {int(key) if key.isdecimal() else key: x for key, x in speeds.items()}


def measured_here(indices: Sequence[int] | None = None) -> dict[DeviceRef, float]:
    """Measure in this process, as measure() does in another."""
    devices = _chosen(indices)
    if not devices:
        return {"cpu": _teraflops(torch.device("cpu"))}
    return {_key(d): _teraflops(torch.device(d.kind, d.index)) for d in devices}


def _chosen(indices: Sequence[int] | None) -> Sequence[Device]:
    devices = detect_node().devices
    return [d for d in devices if indices is None or d.index in indices]


def teraflops(rows: int, seconds: float) -> float:
    """Return the speed of one product of square matrices: 2 n^3 operations."""
    return 2 * rows**3 / seconds / 1e12


def _key(device: Device) -> DeviceRef:
    return device.uuid or device.pci_bus_id or device.index


def _teraflops(device: torch.device) -> float:
    rows = _ROWS.get(device.type, _ROWS_ON_ACCELERATORS)
    a = torch.rand(rows, rows, device=device)
    b = torch.rand(rows, rows, device=device)
    seconds: list[float] = []
    for _ in range(_WARM_UPS + _PRODUCTS):
        _finish(device)
        start = time.perf_counter()
        torch.mm(a, b)
        _finish(device)
        seconds.append(time.perf_counter() - start)
    return teraflops(rows, statistics.median(seconds[_WARM_UPS:]))


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured_here(json.loads(sys.argv[1]))) + "\n")

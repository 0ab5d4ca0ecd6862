"""Which devices are known without torch, and under which numbers."""

import sys

import pytest

from gpumap.detect.rehearsal import machine
from gpumap.detect.without_torch import node_without_torch
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from helpers.nodes import MIG
from helpers.pretended import pretend_nvml

ALONE = Launch(launcher="single process", rank=0, world_size=1)
Patch = pytest.MonkeyPatch


def cards(*names: str) -> Node:
    """Return a node with cards of these names."""
    node = machine("dgx-a100").keeping(range(len(names)))
    devices = tuple(
        device.model_copy(update={"uuid": f"GPU-{n}", "name": name})
        for (n, device), name in zip(enumerate(node.devices), names, strict=True)
    )
    return node.model_copy(update={"devices": devices})


def uuids(environ: dict[str, str]) -> list[str | None] | None:
    """Return the UUIDs of the devices that are known."""
    node = node_without_torch(ALONE, environ)
    return None if node is None else [device.uuid for device in node.devices]


def test_equal_cards_are_numbered_by_nvml_under_the_mask(monkeypatch: Patch) -> None:
    """Of three, the mask 2,0 leaves the last and the first, in this order."""
    pretend_nvml(monkeypatch, cards("A100", "A100", "A100"))

    assert uuids({}) == ["GPU-0", "GPU-1", "GPU-2"]
    assert uuids({"CUDA_VISIBLE_DEVICES": "2,0"}) == ["GPU-2", "GPU-0"]


def test_cuda_may_count_unlike_cards_in_another_order(monkeypatch: Patch) -> None:
    """By default CUDA puts the fastest first; by PCI bus it counts as NVML does."""
    pretend_nvml(monkeypatch, cards("T400", "A100"))

    assert uuids({}) is None
    assert uuids({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ["GPU-0", "GPU-1"]


def test_which_mig_slices_are_visible_is_the_runtimes_to_say(
    monkeypatch: Patch,
) -> None:
    """A node with slices is left to torch."""
    pretend_nvml(monkeypatch, MIG)

    assert uuids({}) is None


def test_without_nvml_torch_is_asked(monkeypatch: Patch) -> None:
    """So it is without nvidia-ml-py, and where NVML finds nothing."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert uuids({}) is None
    pretend_nvml(monkeypatch, Node(hostname="n1"))
    assert uuids({}) is None


def test_a_rehearsal_needs_nobody(monkeypatch: Patch) -> None:
    """The machine is read from its file, under the mask."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    mask = {"GPUMAP_REHEARSAL": "dgx-a100", "CUDA_VISIBLE_DEVICES": "7"}

    assert uuids(mask) == [machine("dgx-a100").devices[7].uuid]

"""The accelerators that torch tells of; where this is tested, there are none."""

import socket
from types import SimpleNamespace

import pytest
import torch

from gpumap.detect.hardware import detect_node
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device

A100 = SimpleNamespace(
    name="NVIDIA A100-SXM4-40GB",
    major=8,
    minor=0,
    total_memory=42505273344,
    multi_processor_count=108,
    uuid="a1000000-0000-4000-8000-000000000000",
    pci_domain_id=0,
    pci_bus_id=7,
    pci_device_id=0,
)


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch tell of two A100: no machine that runs these tests has one."""
    cuda = SimpleNamespace(get_device_properties=lambda _: A100)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda _: cuda)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")
def test_without_an_accelerator_the_node_has_no_devices() -> None:
    """And its own host name."""
    node = detect_node()
    assert node.hostname == socket.gethostname()
    assert node.devices == ()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")
@pytest.mark.parametrize("kind", ["cuda", "cuda:1", "gpu"])
def test_a_kind_that_is_not_there_is_an_error(kind: str) -> None:
    """Which device is for gpus to say, not for device."""
    with pytest.raises(DeviceError) as caught:
        detect_node(kind)
    assert caught.value.happened == f"device={kind!r} was asked for, and there is none."
    assert "gpus=[…]" in caught.value.hint


@pytest.mark.usefixtures("two_cards")
def test_torchs_properties_become_a_device() -> None:
    """Units are bytes; the bus ID is written as nvidia-smi writes it."""
    node = detect_node("cuda", {})
    assert node.devices[0] == Device(
        kind="cuda",
        index=0,
        uuid="GPU-a1000000-0000-4000-8000-000000000000",
        pci_bus_id="00000000:07:00.0",
        name="NVIDIA A100-SXM4-40GB",
        total_memory=42505273344,
        compute_capability=(8, 0),
        multiprocessors=108,
    )


@pytest.mark.usefixtures("two_cards")
@pytest.mark.parametrize(
    ("mask", "physical"),
    [("2,3", [2, 3]), ("GPU-a,GPU-b", [None, None]), ("5", [None, None])],
)
def test_a_mask_of_ordinals_tells_the_physical_indices(
    mask: str, physical: list[int | None]
) -> None:
    """Unless it fits another number of devices: then it was not in force."""
    node = detect_node("auto", {"CUDA_VISIBLE_DEVICES": mask})
    assert [device.physical_index for device in node.devices] == physical

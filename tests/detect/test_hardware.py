"""The accelerators of this host, as detected from torch and NVML."""

import inspect
import json
import socket
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

import pytest
import torch

from gpumap.detect.hardware import detect_node
from gpumap.detect.rehearsal import machine
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Link, Node
from helpers.nodes import MIG
from helpers.pretended import Nvml, pretend_nvml, pretend_torch

A100 = machine("dgx-a100").devices[0].model_copy(update={"physical_index": None})
BARE = ("numa_node", "cpu_affinity")


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide nvidia-ml-py, unless a test provides a fake."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


def card(index: int, **fields: object) -> Device:
    """Return an A100 with the fields that torch alone provides."""
    own = {
        "index": index,
        "uuid": f"GPU-a100000{index}-0000-4000-8000-000000000000",
        "pci_bus_id": f"00000000:{7 + index:02x}:00.0",
        **dict.fromkeys(BARE),
    }
    return A100.model_copy(update=own | fields)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")
def test_without_an_accelerator_the_node_has_no_devices() -> None:
    """Without an accelerator the node has its host name and no devices."""
    node = detect_node()
    assert node.hostname == socket.gethostname()
    assert node.devices == ()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")
@pytest.mark.parametrize("kind", ["cuda", "cuda:1", "gpu"])
def test_a_kind_that_is_not_there_is_an_error(kind: str) -> None:
    """A kind that this machine lacks is an error, which points to gpus=[…]."""
    with pytest.raises(DeviceError) as caught:
        detect_node(kind)
    assert caught.value.happened == f"device={kind!r} was asked for, and there is none."
    assert "gpus=[…]" in caught.value.hint


def test_torchs_properties_become_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is in bytes, and the bus ID is written as nvidia-smi writes it."""
    pretend_torch(monkeypatch, [card(0)])
    assert detect_node("cuda", {}).devices == (
        Device(
            kind="cuda",
            index=0,
            physical_index=0,
            uuid="GPU-a1000000-0000-4000-8000-000000000000",
            pci_bus_id="00000000:07:00.0",
            name="NVIDIA A100-SXM4-40GB",
            total_memory=42505273344,
            compute_capability=(8, 0),
            multiprocessors=108,
        ),
    )


@pytest.mark.parametrize(
    ("environ", "physical"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, [2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, [None, None]),
        ({"CUDA_VISIBLE_DEVICES": "5"}, [None, None]),
        ({}, [1, 0]),
    ],
)
def test_without_nvml_the_mask_or_the_buses_tell_the_physical_indices(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], physical: list[int | None]
) -> None:
    """Without NVML physical indices come from the mask, or else from the bus order.

    A mask with another number of entries than there are devices is ignored.
    """
    pretend_torch(monkeypatch, [card(0, pci_bus_id="00000000:0f:00.0"), card(1)])
    node = detect_node("auto", environ)
    assert [device.physical_index for device in node.devices] == physical


@pytest.mark.parametrize(
    ("order", "physical"), [(None, [None, None]), ("PCI_BUS_ID", [0, 1])]
)
def test_ordinals_of_unlike_cards_are_nvidia_smis_only_in_the_order_of_the_buses(
    monkeypatch: pytest.MonkeyPatch, order: str | None, physical: list[int | None]
) -> None:
    """A mask's ordinals are physical indices of unlike cards only under PCI_BUS_ID.

    CUDA's default order is by speed, so that an ordinal can be another card's.
    """
    pretend_torch(monkeypatch, machine("rtx3090-gtx1080").devices)
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"} | (
        {"CUDA_DEVICE_ORDER": order} if order else {}
    )
    node = detect_node("auto", environ)
    assert [device.physical_index for device in node.devices] == physical


def test_nvml_tells_all_fields_of_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NVML the detected node has all fields and links of its description."""
    node = machine("dgx1-v100")
    devices = [
        device.model_copy(
            update={
                "pci_bus_id": f"00000000:{device.index + 6:02x}:00.0",
                "numa_node": device.index // 4,
                "free_memory": 2**30 * (device.index + 1),
                "utilization": 10 * device.index,
            }
        )
        for device in node.devices
    ]
    node = node.model_copy(update={"devices": tuple(devices), "source": None})
    nvml = pretend_nvml(monkeypatch, node)
    pretend_torch(monkeypatch, devices)
    assert detect_node("cuda", {}) == node.model_copy(
        update={"hostname": socket.gethostname()}
    )
    assert nvml.open == 0


def test_behind_nvswitches_every_pair_has_all_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind NVSwitches every pair has all 12 NVLinks, as nvidia-smi shows (NV12)."""
    node = machine("dgx-a100")
    pretend_nvml(monkeypatch, node, switched=True)
    pretend_torch(monkeypatch, node.devices)
    links = detect_node("cuda", {}).links
    assert [link.nvlinks for link in links] == [12] * 28


@pytest.mark.parametrize(
    ("name", "reaches", "state", "nvlinks"),
    [
        ("hgx-h100", 1, 1, 18),
        ("hgx-h100", 0, 1, 0),
        ("hgx-h100", 1, 0, 0),
        ("dgx-a100", 0, 1, 0),
        # Before compute capability 9.0, the state is not asked for as a field.
        ("dgx-a100", 1, 0, 12),
    ],
)
def test_nvlinks_count_as_nccl_counts_them(
    monkeypatch: pytest.MonkeyPatch, name: str, reaches: int, state: int, nvlinks: int
) -> None:
    """An NVLink counts if it is up and carries peer-to-peer (NCCL, xml.cc)."""
    node = machine(name)
    nvml = pretend_nvml(monkeypatch, node, switched=True)
    nvml.reaches, nvml.state = reaches, state
    pretend_torch(monkeypatch, node.devices)
    assert {link.nvlinks for link in detect_node("cuda", {}).links} == {nvlinks}


def test_torch_and_nvml_are_joined_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of torch and NVML are matched by UUID where their orders differ."""
    fast, slow = (
        device.model_copy(update={"pci_bus_id": bus})
        for device, bus in zip(
            machine("rtx3090-gtx1080").devices,
            ("00000000:65:00.0", "00000000:17:00.0"),
            strict=True,
        )
    )
    by_bus = [d.model_copy(update={"index": n}) for n, d in enumerate((slow, fast))]
    physical = Node(hostname="n1", devices=tuple(by_bus))
    monkeypatch.setattr(
        "helpers.pretended.Nvml.link", lambda *_: machine("rtx3090x2").links[0]
    )
    pretend_nvml(monkeypatch, physical)
    pretend_torch(monkeypatch, [fast, slow])
    first, second = detect_node("cuda", {"CUDA_VISIBLE_DEVICES": "0,1"}).devices
    assert (first.index, first.physical_index, first.name) == (0, 1, fast.name)
    assert (second.index, second.physical_index, second.name) == (1, 0, slow.name)
    pretend_torch(monkeypatch, [fast])
    [only] = detect_node("cuda", {"CUDA_VISIBLE_DEVICES": "0"}).devices
    assert (only.index, only.physical_index) == (0, 1)


@pytest.mark.parametrize("mask", ["MIG-532453fc", "MIG-aa232436"])
def test_a_slice_is_known_with_the_gpu_it_is_of(
    monkeypatch: pytest.MonkeyPatch, mask: str
) -> None:
    """If torch gives a GPU's UUID for a MIG slice, the mask tells which slice it is."""
    [named] = [d for d in MIG.devices if str(d.uuid).startswith(mask)]
    pretend_nvml(monkeypatch, MIG)
    pretend_torch(monkeypatch, [named.model_copy(update={"index": 0})])
    [device] = detect_node("cuda", {"CUDA_VISIBLE_DEVICES": mask}).devices
    assert device == named.model_copy(update={"index": 0})
    assert str(device.mig).startswith("GPU-")


def test_a_slice_is_known_by_its_name_without_nvml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without NVML a name with MIG marks a slice, and the bus ID stands for its GPU."""
    pretend_torch(monkeypatch, [card(0, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb")])
    assert detect_node("cuda", {}).devices[0].mig == "00000000:07:00.0"


LATE = "was changed after the GPU runtime had started"


@pytest.mark.parametrize("nvml", [True, False])
@pytest.mark.parametrize(
    ("mask", "late"),
    [("0", True), ("", True), ("-1,0", True), ("0,1", False), (None, False)],
)
def test_a_mask_that_came_too_late_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mask: str | None,
    late: bool,  # noqa: FBT001 - a column
    nvml: bool,  # noqa: FBT001 - a column
) -> None:
    """A mask that was changed after CUDA had started is warned about."""
    node = machine("rtx3090x2")
    pretend_torch(monkeypatch, node.devices)
    if nvml:
        pretend_nvml(monkeypatch, node)
    detect_node("cuda", {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask})
    assert (LATE in caplog.text) == late


@pytest.mark.parametrize(
    "mask", ["1", str(machine("rtx3090x2").devices[1].uuid), "GPU-30920001"]
)
def test_another_device_in_a_late_mask_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mask: str
) -> None:
    """A late mask that names another device, though as many, is warned about."""
    node = machine("rtx3090x2")
    pretend_nvml(monkeypatch, node)
    pretend_torch(monkeypatch, [node.devices[0]])
    detect_node("cuda", {"CUDA_VISIBLE_DEVICES": "0"})
    assert not caplog.text
    detect_node("cuda", {"CUDA_VISIBLE_DEVICES": mask})
    assert LATE in caplog.text
    assert "torch goes on using cuda:0 (GPU-30920000…)" in caplog.text


def test_a_late_mask_that_names_more_is_said_without_nvml(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without NVML a late mask is noticed if torch counts more devices than CUDA."""
    pretend_torch(monkeypatch, [card(0)], counted=2)
    detect_node("cuda", {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert LATE in caplog.text


@pytest.mark.parametrize("mask", [None, "MIG-0c757cd7", "GPU-0aa11ebd"])
def test_of_slices_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mask: str | None,
) -> None:
    """MIG slices cause no warning of a late mask: how many are visible varies."""
    pretend_nvml(monkeypatch, MIG)
    pretend_torch(monkeypatch, MIG.devices[:1])
    detect_node("cuda", {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask})
    assert not caplog.text


def test_of_slices_as_many_are_seen_as_the_runtime_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a MIG host torch counts GPUs by NVML; CUDA shows a process one slice."""
    pretend_nvml(monkeypatch, MIG)
    pretend_torch(monkeypatch, MIG.devices[:3], counted=1)
    found = detect_node("cuda", {}).devices
    assert [device.uuid for device in found] == [MIG.devices[0].uuid]
    assert not caplog.text


def test_a_gpu_in_mig_mode_without_slices_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A GPU in MIG mode without slices is no device and no warning, as in CUDA."""
    node = machine("rtx3090x2")
    nvml = pretend_nvml(monkeypatch, node)
    nvml.in_mig_mode.append(str(node.devices[1].uuid))
    pretend_torch(monkeypatch, node.devices[:1])
    assert len(detect_node("cuda", {}).devices) == 1
    assert not caplog.text


def test_a_gpu_that_nvml_cannot_open_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A GPU that NVML cannot open is warned about, and the others are detected."""
    node = machine("rtx3090x2")
    pretend_nvml(monkeypatch, node).lost.append(1)
    pretend_torch(monkeypatch, node.devices[:1])
    assert detect_node("cuda", {}).devices[0].cpu_affinity
    assert "NVML cannot open device 1 of" in caplog.text


def test_a_device_that_nvml_does_not_know_keeps_what_torch_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device unknown to NVML has torch's fields only; the others have all."""
    node = machine("dgx-a100")
    pretend_nvml(monkeypatch, node)
    stranger = node.devices[1].model_copy(update={"uuid": "GPU-0"})
    pretend_torch(monkeypatch, [node.devices[0], stranger, node.devices[2]])
    found = detect_node("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-x"})
    assert [d.numa_node for d in found.devices] == [3, None, 1]
    assert found.links == (Link(a=0, b=2, nvlinks=12, pcie="SYS"),)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("HIP_VISIBLE_DEVICES contains more"), AssertionError("Invalid id")],
)
def test_what_torch_cannot_read_is_an_error_with_the_mask(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An error of torch becomes a DeviceError that quotes it and the mask."""
    pretend_torch(monkeypatch, [card(0)])

    def fail(_index: int) -> None:
        raise error

    monkeypatch.setattr(torch.get_device_module("cuda"), "get_device_properties", fail)
    with pytest.raises(DeviceError) as caught:
        detect_node("cuda", {"CUDA_VISIBLE_DEVICES": "7"})
    assert str(error) in caught.value.seen
    assert "CUDA_VISIBLE_DEVICES='7'" in caught.value.seen


def test_an_accelerator_without_properties_is_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An accelerator without device properties (torch.mps) has only kind and index."""
    pretend_torch(monkeypatch, [card(0, kind="mps")])
    monkeypatch.delattr(torch.get_device_module("mps"), "get_device_properties")
    assert detect_node("mps", {}).devices == (Device(kind="mps", index=0),)


def test_the_fake_answers_what_the_real_one_does() -> None:
    """Every function of the fake NVML is in nvidia-ml-py, with as many arguments."""
    spec = PathFinder.find_spec("pynvml")
    if spec is None or spec.loader is None:
        pytest.skip("needs nvidia-ml-py")
    real = module_from_spec(spec)
    spec.loader.exec_module(real)
    for name, fake in vars(Nvml).items():
        if name.startswith("nvml"):
            theirs = inspect.signature(getattr(real, name)).parameters
            ours = list(inspect.signature(fake).parameters)[1:]
            needed = [p for p in theirs.values() if p.default is p.empty]
            assert len(needed) <= len(ours) <= len(theirs), name


def test_nvml_that_does_not_start_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If NVML does not start, the node has what torch provides, and no links."""
    node = machine("rtx3090x2")
    nvml = pretend_nvml(monkeypatch, node)

    def fail() -> None:
        raise nvml.NVMLError

    monkeypatch.setattr(nvml, "nvmlInit", fail)
    pretend_torch(monkeypatch, node.devices)
    assert detect_node("cuda", {}).links == ()


def test_amds_devices_are_told_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD's devices have kind cuda, and UUIDs in the form of ROCR_VISIBLE_DEVICES."""
    text = "33643264-6331-3030-3030-303030303031"  # the bytes of "3d2dc10000000001"
    device = card(0, uuid=f"GPU-{text}", name="AMD Instinct MI300X")
    pretend_torch(monkeypatch, [device], hip="6.4")
    [found] = detect_node("cuda", {"HIP_VISIBLE_DEVICES": "3"}).devices
    assert (found.kind, found.rocm, found.physical_index) == ("cuda", True, 3)
    assert found.uuid == "GPU-3d2dc10000000001"
    assert found.compute_capability is None


@pytest.mark.parametrize(
    ("kind", "mask"), [("xpu", "ZE_AFFINITY_MASK"), ("mtia", "NO_MASK_AT_ALL")]
)
def test_other_accelerators_tell_what_they_can(
    monkeypatch: pytest.MonkeyPatch, kind: str, mask: str
) -> None:
    """Other accelerators have the fields that torch provides; the rest are None."""
    bare = {name: None for name in Device.model_fields if name != "rocm"}
    own = {"kind": kind, "index": 0, "name": "Card", "total_memory": 2**30}
    pretend_torch(monkeypatch, [A100.model_copy(update=bare | own)])
    [found] = detect_node(kind, {mask: "2"}).devices
    assert found.name == "Card"
    assert found.physical_index == (2 if kind == "xpu" else None)
    assert json.loads(found.model_dump_json())["kind"] == kind

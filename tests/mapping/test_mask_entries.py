"""The mask that lists given devices, as each vendor's runtime would read it."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpumap.errors import DeviceError, GpumapError, PlacementError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.mask_entries import mask_naming
from gpumap.mapping.visibility import visible
from helpers.nodes import MIG

OWN = "write own=True (--own on the command line), which gives each rank its own alone."
LISTED = "The devices of this node's ranks, by local rank, are "
NAMES = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}
UUIDS = [f"GPU-{digit}{digit}0{digit}aaaa" for digit in "0123456789abcdef"]


def device(vendor: str, index: int, uuid: str | None = None) -> Device:
    """Return a device with only what its vendor and its index say."""
    amd = vendor == "rocm"
    return Device(kind="cuda" if amd else vendor, rocm=amd, index=index, uuid=uuid)


def full(vendor: str, count: int) -> Node:
    """Return a node as it is without a mask; UUIDs tell its devices apart."""
    cards = (device(vendor, n, UUIDS[n]) for n in range(count))
    return Node(hostname="n1", devices=tuple(cards))


@pytest.mark.parametrize(
    ("vendor", "environ", "indices", "expected"),
    [
        ("cuda", {}, [0, 1], "0,1"),
        ("cuda", {}, [3, 1], "3,1"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "6,4,2"}, [2, 0], "2,6"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": " 6 , 4"}, [1, 0], "4,6"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-bb,GPU-aa"}, [1, 0], "GPU-aa,GPU-bb"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "MIG-b"}, [0], "MIG-b"),
        ("cuda", {"HIP_VISIBLE_DEVICES": "5", "ZE_AFFINITY_MASK": "6"}, [1], "1"),
        ("rocm", {}, [2, 0], "2,0"),
        ("rocm", {"HIP_VISIBLE_DEVICES": "5,5,6"}, [1, 0], "6,5"),
        ("rocm", {"HIP_VISIBLE_DEVICES": "GPU-a1,GPU-a,GPU-b"}, [1], "GPU-b"),
        ("rocm", {"HIP_VISIBLE_DEVICES": "5,6,x,7,GPU-a"}, [1], "6"),
        ("rocm", {"CUDA_VISIBLE_DEVICES": "5,6"}, [1, 0], "6,5"),
        ("rocm", {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "5"}, [0], "5"),
        (
            "rocm",
            {"HIP_VISIBLE_DEVICES": "7,8", "CUDA_VISIBLE_DEVICES": "5,6"},
            [1],
            "8",
        ),
        # HIP's numbers count within what ROCR's mask leaves.
        ("rocm", {"ROCR_VISIBLE_DEVICES": "4,5,6"}, [2, 0], "2,0"),
        (
            "rocm",
            {"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2,1"},
            [1],
            "1",
        ),
        ("xpu", {}, [0, 2], "0,2"),
        ("xpu", {"ZE_AFFINITY_MASK": ""}, [0, 2], "0,2"),
        # The devices come in the node's order, whatever the text's.
        ("xpu", {"ZE_AFFINITY_MASK": "5, 3,3,1"}, [0, 2], "1,5"),
        ("xpu", {"ZE_AFFINITY_MASK": "3,1.0"}, [0], "3"),
        (
            "xpu",
            {
                "ZE_AFFINITY_MASK": "2.1,1.0,1.1,0",
                "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE",
            },
            [1, 2],
            "1.0,1.1,2.1",
        ),
        (
            "xpu",
            {"ZE_AFFINITY_MASK": "1,0", "ZE_FLAT_DEVICE_HIERARCHY": "composite"},
            [1],
            "1",
        ),
        ("npu", {}, [1, 3], "1,3"),
        ("npu", {"ASCEND_RT_VISIBLE_DEVICES": "2,4,7"}, [0, 2], "2,7"),
        ("npu", {"ASCEND_RT_VISIBLE_DEVICES": "2,4x,7"}, [1], "4"),
    ],
)
def test_a_device_is_named_as_the_present_mask_names_it(
    vendor: str, environ: dict[str, str], indices: list[int], expected: str
) -> None:
    """A new mask repeats the entries of the present one, or the indices without one."""
    devices = [device(vendor, index) for index in indices]
    assert mask_naming(devices, environ) == {NAMES[vendor]: expected}


@pytest.mark.parametrize("kind", ["mps", "pretend", "hpu"])
def test_a_kind_whose_driver_reads_no_mask_has_none(kind: str) -> None:
    """Apple's devices, for instance, have no variable that hides or orders them."""
    assert mask_naming([device(kind, 1)], {"CUDA_VISIBLE_DEVICES": "3"}) is None


def test_a_slice_is_named_by_its_own_uuid() -> None:
    """Without a mask a MIG instance is named by its UUID: numbers count whole GPUs."""
    first, *_, last = MIG.devices
    for part in (first, last):
        mask = mask_naming([part], {})
        assert mask is not None
        assert mask == {"CUDA_VISIBLE_DEVICES": part.uuid}
        [seen] = visible(MIG, mask).devices
        assert seen.uuid == part.uuid


def test_a_device_of_physical_index_5_is_not_called_5() -> None:
    """The number that nvidia-smi gives is no entry: the process counts differently."""
    card = device("cuda", 1).model_copy(update={"physical_index": 5})
    assert mask_naming([card], {}) == {"CUDA_VISIBLE_DEVICES": "1"}


SLICE = Device(kind="cuda", index=1, uuid="MIG-b", mig="GPU-b")
WHOLE = Device(kind="cuda", index=0, uuid="GPU-a")
UNTOLD = Device(kind="cuda", index=0, uuid="GPU-c", mig="00000000:10:00.0")


@pytest.mark.parametrize(
    ("devices", "environ", "error", "parts"),
    [
        (
            [WHOLE, device("cuda", 2), WHOLE],
            {},
            PlacementError,
            (
                "CUDA_VISIBLE_DEVICES cannot name cuda:0 (GPU-a…) 2 times, and so many "
                "of this node's ranks are placed on it.",
                f"{LISTED}cuda:0 (GPU-a…), cuda:2, cuda:0 (GPU-a…).",
                f"Give each rank a device of its own, or {OWN}",
            ),
        ),
        (
            [WHOLE, SLICE],
            {},
            PlacementError,
            (
                "CUDA_VISIBLE_DEVICES cannot list 2 devices if cuda:1 (MIG-b…), a MIG "
                "instance, is one of them: of MIG instances a process is sure of one "
                "only.",
                f"{LISTED}cuda:0 (GPU-a…), cuda:1 (MIG-b…).",
                f"Leave it out of gpus=[…], or {OWN}",
            ),
        ),
        (
            [device("xpu", 1), device("xpu", 0)],
            {},
            PlacementError,
            (
                "ZE_AFFINITY_MASK leaves devices in ascending order only, and those of "
                "this node's ranks do not ascend.",
                f"{LISTED}xpu:1, xpu:0.",
                f"List them ascending in gpus=[…], or {OWN}",
            ),
        ),
        (
            [device("npu", 1), device("npu", 0)],
            {},
            PlacementError,
            (
                "ASCEND_RT_VISIBLE_DEVICES leaves devices in ascending order only, and "
                "those of this node's ranks do not ascend.",
                f"{LISTED}npu:1, npu:0.",
                f"List them ascending in gpus=[…], or {OWN}",
            ),
        ),
        (
            [device("cuda", 2)],
            {"CUDA_VISIBLE_DEVICES": "4,5"},
            DeviceError,
            (
                "cuda:2 is not one of the devices that CUDA_VISIBLE_DEVICES='4,5' "
                "leaves.",
                "It names 2, and indices count from 0.",
                "Give the variables that the process had when its devices were "
                "detected.",
            ),
        ),
        (
            [UNTOLD],
            {},
            DeviceError,
            (
                "cuda:0 (GPU-c…) is a MIG instance, and its own UUID is not known.",
                "Its UUID is GPU-c, and CUDA_VISIBLE_DEVICES is not set.",
                "Install the extra, pip install gpumap-torch[nvml], which tells it, or "
                "set CUDA_VISIBLE_DEVICES to its MIG-… before.",
            ),
        ),
        (
            [device("rocm", 0)],
            {"HIP_VISIBLE_DEVICES": "0,GPU-a"},
            DeviceError,
            (
                "the mask '0,GPU-a' has both numbers and UUIDs.",
                "HIP skips entries that name a device again, so they cannot be "
                "counted.",
                "Write numbers alone, or UUIDs alone.",
            ),
        ),
    ],
    ids=["twice", "slices", "xpu", "npu", "beyond", "untold slice", "mixed"],
)
def test_a_mask_that_cannot_be_true_is_refused(
    devices: list[Device],
    environ: dict[str, str],
    error: type[GpumapError],
    parts: tuple[str, str, str],
) -> None:
    """A mask that its runtime would misread is an error that says what to do."""
    with pytest.raises(error) as caught:
        mask_naming(devices, environ)
    assert (caught.value.happened, caught.value.seen, caught.value.hint) == parts


@pytest.mark.parametrize(
    ("vendor", "text"),
    [("cuda", ""), ("cuda", "-1"), ("cuda", "NoDevFiles"), ("npu", ""), ("npu", "x")],
)
def test_a_mask_that_hides_all_leaves_no_device_to_name(vendor: str, text: str) -> None:
    """Under a mask that hides all devices, a device is an error and not made visible.

    CUDA's and CANN's empty masks hide all; HIP's and Level Zero's count as not set.
    """
    with pytest.raises(DeviceError, match=f"{NAMES[vendor]}='{text}' leaves"):
        mask_naming([device(vendor, 0)], {NAMES[vendor]: text})


@st.composite
def masked(draw: st.DrawFn, vendor: str) -> tuple[Node, dict[str, str]]:
    """Return a full node, and masks of its vendor's that leave at least one device."""
    count = draw(st.integers(1, 8))
    numbers = st.integers(0, count - 1)
    once = st.lists(numbers, min_size=1, unique=True)
    uuids = once.map(lambda chosen: ",".join(UUIDS[n][:6] for n in chosen))
    ordinals = once.map(lambda chosen: ",".join(map(str, chosen)))
    repeated = st.lists(numbers, min_size=1).map(lambda xs: ",".join(map(str, xs)))
    ascending = once.map(lambda chosen: ",".join(map(str, sorted(chosen))))
    tiles = st.lists(
        st.tuples(numbers, st.sampled_from(["", ".0", ".1"])), min_size=1
    ).map(lambda entries: ",".join(f"{n}{tile}" for n, tile in entries))
    texts = {
        "cuda": {NAMES["cuda"]: ordinals | uuids},
        "rocm": {
            NAMES["rocm"]: st.just("") | repeated,
            NAMES["cuda"]: repeated,
            "ROCR_VISIBLE_DEVICES": ordinals | uuids,
        },
        "xpu": {
            NAMES["xpu"]: st.just("") | repeated | tiles,
            "ZE_FLAT_DEVICE_HIERARCHY": st.sampled_from(["FLAT", "COMPOSITE"]),
        },
        "npu": {NAMES["npu"]: ascending},
    }
    environ = draw(st.fixed_dictionaries({}, optional=texts[vendor]))
    hip, rocr = environ.get(NAMES["rocm"], ""), environ.get("ROCR_VISIBLE_DEVICES")
    assume(rocr is None or hip.count(",") <= rocr.count(","))
    return full(vendor, count), environ


@pytest.mark.parametrize("vendor", NAMES)
@given(data=st.data())
def test_under_the_new_mask_the_devices_are_0_1_and_so_on(
    vendor: str, data: st.DataObject
) -> None:
    """The runtime leaves the devices chosen, in their order, whatever mask was set."""
    node, environ = data.draw(masked(vendor))
    seen = visible(node, environ).devices
    assume(seen)
    chosen = data.draw(st.lists(st.sampled_from(seen), min_size=1, unique=True))
    if vendor in ("xpu", "npu"):
        chosen.sort(key=lambda device: device.index)
    mask = mask_naming(chosen, environ)
    assert mask is not None
    again = visible(node, environ | mask).devices
    assert [d.uuid for d in again] == [d.uuid for d in chosen], json.dumps(mask)

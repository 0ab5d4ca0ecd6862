"""What a process sees under the masks in its environment, case by case."""

import json

import pytest

from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.visibility import (
    doubt,
    mask_length,
    visible,
    without_foreign_masks,
)
from helpers.cases import rows

CASES = rows("Visibility")
# GPU 0 and GPU 1 are sliced, GPU 2 is whole, GPU 3 is sliced under an old driver.
SLICES = {
    "MIG-a1": ("GPU-aaaa", 0),
    "MIG-a2": ("GPU-aaaa", 0),
    "MIG-b1": ("GPU-bbbb", 1),
    "GPU-cccc": (None, 2),
    "MIG-GPU-dddd/13/0": ("GPU-dddd", 3),
}


def of_kind(kind: str, node: str) -> Node:
    """Return a host with so many devices, or with a named set (mig, uuid)."""
    if node == "mig":
        return Node(
            hostname="n1",
            devices=tuple(
                Device(kind=kind, index=n, physical_index=at, uuid=uuid, mig=whole)
                for n, (uuid, (whole, at)) in enumerate(SLICES.items())
            ),
        )
    uuids = [f"GPU-{place:08}00000000" for place in range(64)]
    if node == "uuid":
        uuids = ["GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb0000"]
    return Node(
        hostname="n1",
        devices=tuple(
            Device(
                kind="cuda" if kind == "rocm" else kind,
                rocm=kind == "rocm",
                index=place,
                physical_index=place,
                uuid=uuids[place],
            )
            for place in range(len(uuids) if node == "uuid" else int(node))
        ),
    )


@pytest.mark.parametrize(("kind", "node", "environ", "expected", "source"), CASES)
def test_a_mask_leaves_what_its_vendor_says(
    kind: str, node: str, environ: str, expected: str, source: str
) -> None:
    """A mask leaves the devices that its vendor's runtime would, or is refused."""
    assert source
    physical, variables = of_kind(kind, node), json.loads(environ)
    if expected.endswith("Error"):
        with pytest.raises(DeviceError) as caught:
            visible(physical, variables)
        assert all(
            f"{n}={text!r}" in str(caught.value) for n, text in variables.items()
        )
        return
    seen = visible(physical, variables)
    devices = seen.devices
    assert bool(seen.hidden_by) == (not devices)
    assert [device.index for device in devices] == list(range(len(devices)))
    told = [
        f"{device.physical_index}/{device.uuid}"
        if device.mig
        else f"{device.physical_index}"
        for device in devices
    ]
    short = [text.replace("/MIG-a", "/a") for text in told]
    assert ",".join(short) == expected


def test_there_are_cases_for_every_vendor() -> None:
    """The table has at least forty cases, and some for each of four vendors."""
    assert len(CASES) >= 40
    assert {kind for kind, *_ in CASES} == {"cuda", "rocm", "xpu", "npu"}


@pytest.mark.parametrize(
    ("kind", "environ", "happened", "seen", "hint"),
    [
        (
            "rocm",
            {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0,1"},
            "HIP_VISIBLE_DEVICES='0,1' lists more devices than "
            "ROCR_VISIBLE_DEVICES='1' leaves.",
            "HIP's list counts within ROCR's, and torch refuses a longer one.",
            "Unset one of them, or let HIP's list count from 0 within ROCR's.",
        ),
        # Intel's driver would end the process.
        (
            "xpu",
            {"ZE_AFFINITY_MASK": "0,a"},
            "ZE_AFFINITY_MASK='0,a' has the entry 'a', which is no number.",
            "Visible on n1: xpu:0 (GPU-00000000…), xpu:1 (GPU-00000001…).",
            "Write device numbers (0,1), or with ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE "
            "card.tile (1.0).",
        ),
        (
            "npu",
            {"ASCEND_RT_VISIBLE_DEVICES": "1,0,1"},
            "ASCEND_RT_VISIBLE_DEVICES='1,0,1' does not ascend.",
            "CANN supports device IDs in ascending order only.",
            "Write 0,1, and order them with gpus=[…].",
        ),
    ],
    ids=["rocm", "xpu", "npu"],
)
def test_a_mask_that_its_vendor_refuses_is_told_what_to_write(
    kind: str, environ: dict[str, str], happened: str, seen: str, hint: str
) -> None:
    """A mask that the vendor's runtime would refuse is an error with a hint."""
    with pytest.raises(DeviceError) as caught:
        visible(of_kind(kind, "2"), environ)
    assert caught.value.args == (happened, seen, hint)


NEITHER = (
    ", which is neither an index nor a UUID: write numbers or UUIDs and commas, "
    "without ranges, blanks or quotes."
)
LOOK = "look for an entry that names no device, or one again."


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("0,1", None),
        ("GPU-00000001,GPU-00000000", None),
        ("", None),
        ("-1", None),
        ("0-2", f" has '0-2'{NEITHER}"),
        ("0, 1", f" has ' 1'{NEITHER}"),
        ('"0"', f" has '\"0\"'{NEITHER}"),
        (
            "NoDevFiles",
            " is how an older Slurm says that this task was given no GPU: ask for some "
            "with --gres=gpu:… where it is started.",
        ),
        ("0,9", f" lists 2 devices, and 1 is visible: {LOOK}"),
        ("9", f" lists 1 device, and 0 are visible: {LOOK}"),
        ("0,0,1", f" lists 3 devices, and 0 are visible: {LOOK}"),
    ],
)
def test_a_mask_that_hardly_means_what_it_says_is_told(
    mask: str, said: str | None
) -> None:
    """A mask with a likely mistake is reported, one that hides all on purpose not."""
    environ = {"CUDA_VISIBLE_DEVICES": mask}
    found = doubt(visible(of_kind("cuda", "4"), environ), environ)
    assert found == (said and f"CUDA_VISIBLE_DEVICES={mask!r}{said}")


def test_masks_of_amds_that_hide_all_together_are_both_named() -> None:
    """If ROCR's and CUDA's masks hide all devices together, both are named.

    Slurm sets both to the same number: gres.conf(5) warns of it.
    """
    environ = {"ROCR_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "2"}
    nothing = visible(of_kind("rocm", "4"), environ)
    assert nothing.visible == (
        "No accelerator is visible on n1, under CUDA_VISIBLE_DEVICES='2', within "
        "ROCR_VISIBLE_DEVICES='2'."
    )
    assert (doubt(nothing, environ) or "").endswith(
        "names no device, or one again. It counts within ROCR_VISIBLE_DEVICES='2'."
    )


def test_a_number_of_the_host_in_a_container_is_told() -> None:
    """A mask of host numbers is reported in a container: its devices count from 0."""
    environ = {"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert doubt(visible(of_kind("cuda", "2"), environ), environ) == (
        "CUDA_VISIBLE_DEVICES='2,3' lists 2 devices, and 0 are visible: look for an "
        "entry that names no device, or one again. NVIDIA_VISIBLE_DEVICES='2,3' has "
        "chosen this container's devices; inside, they count from 0."
    )


@pytest.mark.parametrize(
    ("kind", "environ", "reason"),
    [
        ("cuda", {"CUDA_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "0"}, "CUDA"),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "9", "HIP_VISIBLE_DEVICES": "0"}, "ROCR"),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "9"}, "HIP"),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "9", "HIP_VISIBLE_DEVICES": "9"}, "ROCR"),
        ("rocm", {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "9"}, "CUDA"),
        ("xpu", {"ZE_AFFINITY_MASK": "7", "CUDA_VISIBLE_DEVICES": ""}, "ZE_AFFINITY"),
    ],
)
def test_of_several_masks_the_one_that_left_nothing_is_named(
    kind: str, environ: dict[str, str], reason: str
) -> None:
    """Of the masks that the devices' driver reads, the one that hides all is named."""
    nothing = visible(of_kind(kind, "4"), environ)
    [(name, text)] = nothing.hidden_by
    assert name.startswith(reason)
    assert nothing.visible == (
        f"No accelerator is visible on n1, under {name}={text!r}."
    )


def test_of_a_node_that_shows_nothing_the_reason_stays_as_it_was_read() -> None:
    """For a node that shows no device, the masks read there are kept unchanged."""
    masks = (("HIP_VISIBLE_DEVICES", "1"), ("ROCR_VISIBLE_DEVICES", "1"))
    nothing = Node(hostname="n1", hidden_by=masks)
    environ = {**dict(masks), "CUDA_VISIBLE_DEVICES": "0"}
    assert visible(nothing, environ) == nothing
    assert without_foreign_masks(nothing, environ) == dict(masks)
    assert without_foreign_masks(Node(hostname="n1"), environ) == environ


@pytest.mark.parametrize(
    ("kind", "environ", "own"),
    [
        ("cuda", ["HIP", "ROCR", "ASCEND_RT"], []),
        ("cuda", ["HIP", "CUDA"], ["CUDA"]),
        ("rocm", ["HIP", "ROCR", "CUDA"], ["HIP", "ROCR"]),
        ("rocm", ["ROCR", "CUDA"], ["ROCR", "CUDA"]),
        ("npu", ["CUDA", "ASCEND_RT"], ["ASCEND_RT"]),
        ("mps", ["CUDA", "ASCEND_RT"], []),
    ],
)
def test_masks_of_another_vendor_do_not_count(
    kind: str, environ: list[str], own: list[str]
) -> None:
    """Other vendors' masks are ignored; on AMD, CUDA's counts if HIP's is not set."""
    variables = {f"{name}_VISIBLE_DEVICES": "0" for name in environ}
    left = without_foreign_masks(of_kind(kind, "4"), {**variables, "HOME": "/h"})
    assert left == {f"{name}_VISIBLE_DEVICES": "0" for name in own} | {"HOME": "/h"}


@pytest.mark.parametrize(
    ("kind", "environ", "said"),
    [
        ("rocm", {"ROCR_VISIBLE_DEVICES": "0x2, 1"}, None),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "0"}, None),
        ("rocm", {"HIP_VISIBLE_DEVICES": "9"}, "HIP_VISIBLE_DEVICES='9' lists 1"),
        (
            "rocm",
            {"ROCR_VISIBLE_DEVICES": "2,x", "HIP_VISIBLE_DEVICES": "0"},
            "ROCR_VISIBLE_DEVICES='2,x' has 'x'",
        ),
        ("rocm", {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, None),
        (
            "rocm",
            {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "2,x"},
            "ROCR_VISIBLE_DEVICES='2,x' has 'x'",
        ),
        ("xpu", {"ZE_AFFINITY_MASK": "0.0,0.1"}, "ZE_AFFINITY_MASK='0.0,0.1' lists 2"),
        (
            "xpu",
            {"ZE_AFFINITY_MASK": "0.0,0.1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"},
            None,
        ),
        ("xpu", {"ZE_AFFINITY_MASK": "0, 1"}, None),
        ("npu", {"ASCEND_RT_VISIBLE_DEVICES": "1, 2"}, "has ' 2', which is neither"),
    ],
)
def test_each_vendors_slips_are_its_own(
    kind: str, environ: dict[str, str], said: str | None
) -> None:
    """A mask is judged by its vendor's syntax for blanks, hexadecimal and tiles."""
    found = doubt(visible(of_kind(kind, "4"), environ), environ)
    assert (found is None) == (said is None)
    assert (said or "") in (found or "")


def test_of_slices_one_is_sure() -> None:
    """A mask of two MIG slices is reported: no driver before R570 shows both."""
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-a1,MIG-a2"}
    found = doubt(visible(of_kind("cuda", "mig"), environ), environ)
    assert found == (
        "CUDA_VISIBLE_DEVICES='MIG-a1,MIG-a2' lists 2 devices, and 1 is visible: of "
        "MIG instances a process is sure of one only."
    )


@pytest.mark.parametrize(
    ("mask", "length"),
    [(None, None), ("", 0), ("3", 1), ("2,3", 2), ("2, 3", 2), ("GPU-a1", 1)],
)
def test_the_entries_of_a_mask_are_counted(
    mask: str | None, length: int | None
) -> None:
    """The length of a mask is the number of its entries; None if it is not set."""
    assert mask_length(mask) == length

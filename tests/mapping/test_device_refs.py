"""References to devices: the forms that resolve, and the errors for others."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import DeviceError
from gpumap.mapping.device_refs import DeviceRef, resolve, resolve_all
from gpumap.mapping.devices import Device, Node
from helpers.nodes import MIG, node


@pytest.mark.parametrize(
    "ref",
    [
        *(2, "cuda:2", "GPU-a200n1", "gpu-A200N1", "GPU-a2"),
        *("00000000:12:00.0", "0000:12:00.0", "12:00.0"),
    ],
)
def test_one_device_has_many_names(ref: DeviceRef) -> None:
    """An index, torch's text, a UUID (or its start) and a bus ID name one device."""
    assert resolve(ref, node(4)).index == 2


@dataclass(frozen=True)
class LikeTorchs:
    """A stand-in for torch.device."""

    type: str
    index: int

    def __str__(self) -> str:
        """Return the text that torch gives, such as cuda:2."""
        return f"{self.type}:{self.index}"


def test_a_device_of_torch_is_taken_for_what_it_says() -> None:
    """A torch.device is resolved by its type and its index."""
    assert resolve(LikeTorchs("cuda", 2), node(4)).index == 2
    with pytest.raises(DeviceError, match="there is no device 'xpu:2' on n1"):
        resolve(LikeTorchs("xpu", 2), node(4))


def test_a_start_that_two_uuids_have_names_neither() -> None:
    """The start of a UUID that two devices share is an error."""
    with pytest.raises(DeviceError, match="'GPU-a' names 2 devices on n1"):
        resolve("GPU-a", node(2))


def test_a_slice_is_named_by_its_own_uuid() -> None:
    """A MIG slice is named by its own UUID or its start, not by its GPU's UUID."""
    assert resolve("MIG-532453fc-0faa-5c3c-9709-a3fc2e76083d", MIG).index == 2
    assert resolve("MIG-5", MIG).index == 2
    for several in ("GPU-0aa11ebd", "0000:0f:00.0"):
        with pytest.raises(DeviceError) as caught:
            resolve(several, MIG)
        assert caught.value.happened == f"{several!r} names 3 devices on a100-mig."
        assert caught.value.hint == "Write the slice's own UUID (MIG-…)."
    with pytest.raises(DeviceError) as caught:
        resolve(5, MIG)
    assert caught.value.hint.startswith("Name devices listed above")


def test_physical_numbers_under_a_mask_are_recognised() -> None:
    """gpus=[2, 3] under CUDA_VISIBLE_DEVICES=2,3 tells the user to write [0, 1]."""
    with pytest.raises(DeviceError) as caught:
        resolve_all([2, 3], node(2, first_physical=2))
    assert str(caught.value) == (
        "there is no device 2, 3 on n1.\n"
        "Visible on n1: cuda:0 (GPU-a000n1…) = physical 2, "
        "cuda:1 (GPU-a100n1…) = physical 3.\n"
        "Those are physical numbers; a *_VISIBLE_DEVICES mask renumbers what it leaves "
        "visible from 0: write gpus=[0, 1], or UUIDs."
    )


NAME_LISTED = "Name devices listed above, by index, UUID or PCI bus ID."
ALL = (
    "cuda:0 (GPU-a000n1…), cuda:1 (GPU-a100n1…), cuda:2 (GPU-a200n1…), "
    "cuda:3 (GPU-a300n1…)."
)
GOOD = 'Write an index (2), a UUID ("GPU-5c3…") or a PCI bus ID ("0000:3b:00.0").'


@pytest.mark.parametrize(
    ("refs", "said", "seen", "hint"),
    [
        (
            [0, 7, 9],
            "there is no device 7, 9 on n1.",
            f"Visible on n1: {ALL}",
            NAME_LISTED,
        ),
        (
            ["GPU-zz"],
            "there is no device 'GPU-zz' on n1.",
            f"Visible on n1: {ALL}",
            NAME_LISTED,
        ),
        (
            ["ff:00.0"],
            "there is no device 'ff:00.0' on n1.",
            f"Visible on n1: {ALL}",
            NAME_LISTED,
        ),
        (
            ["GPU-a"],
            "'GPU-a' names 4 devices on n1.",
            f"It fits {ALL}",
            "Write more of the UUID.",
        ),
        ([-1], "-1 is not a device index.", "Indices count from 0.", GOOD),
        ([1.0], "1.0 is not a device.", "Its type is float.", GOOD),
        ([True], "True is not a device.", "Its type is bool.", GOOD),
        ([None], "None is not a device.", "Its type is NoneType.", GOOD),
        ([b"cuda:2"], "b'cuda:2' is not a device.", "Its type is bytes.", GOOD),
        ([" "], "an empty text is not a device.", "Got ' '.", GOOD),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_what_names_no_device_is_an_error(
    refs: list[DeviceRef], said: str, seen: str, hint: str
) -> None:
    """All references that name no device are in one error."""
    with pytest.raises(DeviceError) as caught:
        resolve_all(refs, node(4))
    assert caught.value.args == (said, seen, hint)


MASK_HIDES = (
    "A *_VISIBLE_DEVICES mask hides the others and renumbers these from 0: name "
    "devices listed above, or widen the mask."
)


@pytest.mark.parametrize(
    ("visible", "first_physical", "refs", "hint"),
    [
        (
            *(0, 0, [2, 3]),
            "Leave gpus out to run on the CPU, or pretend a machine with "
            "GPUMAP_REHEARSAL=dgx-a100.",
        ),
        (4, 0, [4], NAME_LISTED),
        (4, 0, ["2"], "An index is a number, not a text: write gpus=[2]."),
        (4, 0, ["4"], NAME_LISTED),
        (4, 0, ["2", "GPU-zz"], NAME_LISTED),
        (2, 2, [7], MASK_HIDES),
        (2, 2, [2, 7], MASK_HIDES),
        (2, 2, ["GPU-zz"], MASK_HIDES),
        (2, 2, [2, "GPU-zz"], MASK_HIDES),
        (
            *(2, 2, ["cuda:2", "cuda:3"]),
            "Those are physical numbers; a *_VISIBLE_DEVICES mask renumbers what it "
            "leaves visible from 0: write gpus=[0, 1], or UUIDs.",
        ),
    ],
)
def test_what_was_probably_meant_is_told(
    visible: int, first_physical: int, refs: list[DeviceRef], hint: str
) -> None:
    """The hint fits the mistake: a text is no index; a mask renumbers devices."""
    with pytest.raises(DeviceError) as caught:
        resolve_all(refs, node(visible, first_physical=first_physical))
    assert caught.value.hint == hint


@pytest.mark.parametrize("ref", ["xpu:2", "cuda:4", "cuda:", "cuda:-1", "cuda:x"])
def test_a_device_of_torch_that_is_not_there_is_told(ref: str) -> None:
    """A torch device of another kind, out of range or malformed is an error."""
    with pytest.raises(DeviceError, match="there is no device"):
        resolve(ref, node(4))


def test_a_list_in_a_list_is_told_the_flat_one() -> None:
    """A list where an index belongs, as in set_device([2, 3]), is an error."""
    with pytest.raises(DeviceError) as caught:
        resolve_all([[2, 3]], node(4))  # type: ignore[list-item]
    assert caught.value.args == (
        "[2, 3] stands where one device belongs.",
        "It is a list of 2.",
        "A pool is one flat list, gpus=[2, 3]; a strategy returns one device.",
    )


def test_a_whole_uuid_wins_over_being_a_prefix_of_another() -> None:
    """A whole UUID names its device, even if another UUID starts with it."""
    cards = [
        Device(kind="cuda", index=i, uuid=u) for i, u in enumerate(["GPU-12", "GPU-1"])
    ]
    assert resolve("GPU-1", Node(hostname="n1", devices=tuple(cards))).index == 1


@given(st.lists(st.one_of(st.integers(), st.text(), st.floats(), st.booleans())))
def test_any_reference_is_a_device_or_a_device_error(refs: list[DeviceRef]) -> None:
    """Any list of references gives devices of the node, or raises DeviceError."""
    n1 = node(3)
    try:
        found = resolve_all(refs, n1)
    except DeviceError:
        return
    assert len(found) == len(refs)
    assert all(device in n1.devices for device in found)

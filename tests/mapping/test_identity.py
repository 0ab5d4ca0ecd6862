"""The identity of a device, case by case; docs/cases.md shows the table."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.mapping.devices import Device, Node
from gpumap.mapping.identity import (
    claimed_as,
    identity_of,
    lasting_name,
    tells,
    unclaimable,
)
from helpers.cases import rows
from helpers.nodes import MIG

CASES = rows("Identity")


@pytest.mark.parametrize(("one", "other", "same", "source"), CASES)
def test_two_ranks_are_on_one_device_where_it_is_certain(
    one: str, other: str, same: str, source: str
) -> None:
    """Equal identities mean one device; a device that cannot be told has none."""
    assert source
    a, b = (
        identity_of(
            Device.model_validate({"kind": "cuda", "index": 0, **facts["device"]}),
            host=facts.get("host"),
            view=facts.get("view"),
            can_share=facts.get("backend") == "gloo",
        )
        for facts in map(json.loads, (one, other))
    )
    assert (a is not None and a == b) == (same == "one device")
    if same == "unknown":
        assert a is None


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"uuid": "GPU-01", "pci_bus_id": "3b:00.0"}, "GPU-01 3b:00.0 k1"),
        ({"pci_bus_id": "3b:00.0"}, "3b:00.0 3b:00.0 k1"),
        ({"index": 1, "physical_index": 3}, "cuda:3 m1"),
        ({"index": 1}, "cuda:1 m1"),
    ],
)
def test_an_identity_is_a_name_and_where_it_counts(
    fields: dict[str, object], key: str
) -> None:
    """An identity is a UUID, bus ID or index, and the host or view where it counts."""
    device = Device.model_validate({"kind": "cuda", "index": 0, **fields})
    found = identity_of(device, host="k1", view="m1", can_share=True)
    assert str(found) == key


@pytest.mark.parametrize(
    ("uuid", "told"),
    [
        ("GPU-5C3A01B2-77AA-4C1E-9D10-3F6A2B8C4D5E", True),
        ("MIG-GPU-5c3a01b2-77aa-4c1e-9d10-3f6a2b8c4d5e/13/0", True),
        ("01010101-0000-0000-0000-000000000000", True),
        ("GPU-00000000-0000-0000-0000-000000000000", False),
        ("GPU-XX", False),
        ("", False),
        (None, False),
    ],
)
def test_a_place_holder_is_no_uuid(uuid: str | None, told: bool) -> None:  # noqa: FBT001 - a column
    """A UUID that is not hexadecimal, or one digit repeated, tells nothing."""
    assert tells(uuid) == told


def test_there_are_cases_of_each_outcome() -> None:
    """The table has cases of each outcome."""
    assert {same for _, _, same, _ in CASES} == {"one device", "two", "unknown"}


def named(**fields: list[str | None]) -> list[str | int]:
    """Return the lasting names of devices with these fields."""
    cards = tuple(
        Device(kind="cuda", index=index, uuid=uuid, pci_bus_id=bus)
        for index, (uuid, bus) in enumerate(
            zip(fields["uuid"], fields["pci_bus_id"], strict=True)
        )
    )
    n1 = Node(hostname="n1", devices=cards)
    return [lasting_name(card, n1) for card in cards]


def test_a_name_that_no_mask_changes_is_the_first_that_tells_the_device() -> None:
    """That is the UUID; else the bus ID; else the index."""
    buses = ["0:3b:00.0", "0:5e:00.0"]
    assert named(uuid=["GPU-1a", "GPU-2b"], pci_bus_id=list(buses)) == [
        "GPU-1a",
        "GPU-2b",
    ]
    assert named(uuid=["GPU-1a", "GPU-1a"], pci_bus_id=list(buses)) == buses
    assert named(uuid=["GPU-XX"], pci_bus_id=[buses[1]]) == [buses[1]]
    assert named(uuid=["GPU-1a", "GPU-1a"], pci_bus_id=[buses[0]] * 2) == [0, 1]
    assert named(uuid=[None], pci_bus_id=[None]) == [0]


BUS = "00000000:3b:00.0"
Fields = Mapping[str, object]
WHOLE: dict[str, list[Fields]] = {
    "NVIDIA": [
        {"uuid": "GPU-1a", "pci_bus_id": BUS, "physical_index": 0},
        {"uuid": "GPU-2b", "pci_bus_id": "00000000:5e:00.0", "physical_index": 1},
    ],
    # A hypervisor may show all its guests' GPUs under one UUID of zeros.
    "without UUIDs": [
        {"uuid": "GPU-00", "pci_bus_id": BUS},
        {"uuid": "GPU-00", "pci_bus_id": "00000000:5e:00.0"},
    ],
    "AMD without UUIDs": [
        {"uuid": "GPU-XX", "pci_bus_id": BUS, "rocm": True},
        {"uuid": "GPU-XX", "pci_bus_id": "00000000:5e:00.0", "rocm": True},
    ],
    "Intel": [
        {"kind": "xpu", "uuid": "8680d56b-0300-0000-2900-000000000000"},
        {"kind": "xpu", "uuid": "8680d56b-0300-0000-3900-000000000000"},
    ],
    "NPUs": [{"kind": "npu", "physical_index": n} for n in range(4)],
}


def seen(*devices: Fields) -> Node:
    """Return a node with these devices, in this order."""
    cards = (
        Device.model_validate({"kind": "cuda", **fields, "index": index})
        for index, fields in enumerate(devices)
    )
    return Node(hostname="n1", devices=tuple(cards))


def claims(node: Node) -> list[str | None]:
    """Return the names that a process claims the devices by that it sees."""
    return [claimed_as(device, node) for device in node.devices]


@pytest.mark.parametrize("vendor", WHOLE)
@given(data=st.data())
def test_processes_with_different_masks_claim_a_device_by_one_name(
    vendor: str, data: st.DataObject
) -> None:
    """Whatever a mask leaves, in whatever order, a device has the name of no other."""
    node = seen(*WHOLE[vendor])
    names = claims(node)
    assert None not in names
    assert len(set(names)) == len(names)
    left = data.draw(st.lists(st.sampled_from(range(len(names))), unique=True))
    assert claims(node.keeping(left)) == [names[place] for place in left]


@pytest.mark.parametrize("place", range(5))
def test_a_slice_is_claimed_by_its_own_uuid(place: int) -> None:
    """Each of five slices of two GPUs is claimed alone, also where it alone is seen."""
    uuid = MIG.devices[place].uuid
    assert uuid is not None
    assert uuid.startswith("MIG-")
    assert claims(MIG)[place] == uuid
    assert claims(MIG.keeping([place])) == [uuid]


def test_torch_that_tells_no_bus_gives_a_device_the_same_name() -> None:
    """Torch 2.6 knows a UUID only, torch 2.13 the bus too, NVML the number as well."""
    old, new = {"uuid": "GPU-1a"}, {"uuid": "GPU-1a", "pci_bus_id": BUS}
    nvml = new | {"physical_index": 3}
    assert claims(seen(old)) == claims(seen(new)) == claims(seen(nvml)) == ["GPU-1a"]


def refusals(*devices: Fields) -> list[str]:
    """Return what is said of each device, none of which can be claimed."""
    node = seen(*devices)
    assert claims(node) == [None] * len(devices)
    return [str(unclaimable(device, node)) for device in node.devices]


def test_a_slice_without_a_uuid_of_its_own_cannot_be_claimed() -> None:
    """Without NVML it has its GPU's UUID or none; others would mean another slice."""
    sliced: dict[str, object] = {"uuid": "GPU-1a", "pci_bus_id": BUS, "mig": BUS}
    for fields in ({"uuid": None}, {"mig": "GPU-1a"}, {"uuid": None, "mig": "GPU-1a"}):
        refusals({**sliced, **fields})
    assert refusals(sliced, sliced)[0] == (
        "cuda:0 (GPU-1a…) on n1 has no name of its own to be claimed by.\n"
        "It is a slice, and its own UUID is not known.\n"
        "Install the extra, pip install gpumap-torch[nvml], which tells it, or write "
        "claim=False."
    )


def test_partitions_with_one_name_cannot_be_claimed() -> None:
    """AMD's partitions of a GPU have its UUID and bus; a mask's numbers may differ."""
    part: dict[str, object] = {"uuid": "GPU-12ab", "pci_bus_id": BUS, "rocm": True}
    other: dict[str, object] = {**part, "uuid": "GPU-34cd"}
    assert claims(seen(part, other, part)) == [None, "GPU-34cd", None]
    first, _ = refusals({**part, "physical_index": 0}, {**part, "physical_index": 1})
    assert first.splitlines()[1:] == [
        "cuda:0 (GPU-12ab…), cuda:1 (GPU-12ab…) all have the name GPU-12ab.",
        "Write claim=False.",
    ]


def test_one_partition_seen_alone_stands_for_its_gpu() -> None:
    """Two jobs with a partition each exclude each other rather than miss each other."""
    part: dict[str, object] = {"uuid": "GPU-12ab", "pci_bus_id": BUS, "rocm": True}
    first, second = {**part, "physical_index": 0}, {**part, "physical_index": 1}
    assert claims(seen(first)) == claims(seen(second)) == ["GPU-12ab"]


def test_a_device_that_nothing_names_cannot_be_claimed() -> None:
    """An index counts under one mask; of a GPU another torch knows more than that."""
    nameless: dict[str, object] = {"kind": "npu"}
    numbered: dict[str, object] = {"kind": "cuda", "physical_index": 1}
    said = refusals(nameless, numbered, {"kind": "xpu", "physical_index": 1})
    assert said[0].splitlines() == [
        "npu:0 on n1 has no name of its own to be claimed by.",
        "Neither its UUID nor its PCI bus ID nor its physical index is known.",
        "Write claim=False.",
    ]

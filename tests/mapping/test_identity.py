"""The identity of a device, case by case; docs/cases.md shows the table."""

import json

import pytest

from gpumap.mapping.devices import Device, Node
from gpumap.mapping.identity import identity_of, lasting_name, tells
from helpers.cases import rows

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

"""Devices, links and nodes as values."""

import pytest

from gpumap.errors import DeviceError
from gpumap.mapping.devices import CPU, Device, Link, Node, Tenant
from helpers.nodes import node


def test_a_node_goes_to_json_and_back() -> None:
    """A node saved as JSON is read back unchanged."""
    n1 = node(2).model_copy(update={"links": (Link(a=0, b=1, nvlinks=4, pcie="SYS"),)})
    assert Node.model_validate_json(n1.model_dump_json()) == n1


def test_values_are_frozen() -> None:
    """The fields of a node cannot be changed."""
    with pytest.raises(Exception, match="frozen"):
        node(1).hostname = "n2"  # type: ignore[misc]


@pytest.mark.parametrize(
    "links",
    [
        [Link(a=0, b=2)],
        [Link(a=1, b=1)],
        [Link(a=0, b=1), Link(a=1, b=0)],
    ],
    ids=["to nowhere", "to itself", "twice"],
)
def test_links_join_two_devices_of_the_node_once(links: list[Link]) -> None:
    """A link to no device or to itself, or two for one pair, is an error."""
    with pytest.raises(DeviceError, match="the links of node n1 do not fit"):
        Node(hostname="n1", devices=node(2).devices, links=tuple(links))


def test_devices_are_in_torchs_order() -> None:
    """A node whose devices[i].index is not i is an error."""
    with pytest.raises(DeviceError, match="not in torch's order"):
        Node(hostname="n1", devices=node(2).devices[::-1])


def test_keeping_counts_devices_and_links_anew() -> None:
    """Devices that are kept are renumbered from 0, and so are their links."""
    whole = node(4).model_copy(
        update={"links": (Link(a=1, b=3, nvlinks=2), Link(a=0, b=1, pcie="SYS"))}
    )
    kept = whole.keeping([3, 1])
    assert [(d.index, d.physical_index) for d in kept.devices] == [(0, 3), (1, 1)]
    assert kept.links == (Link(a=1, b=0, nvlinks=2),)
    assert whole.keeping([2, 0, 1]).links == (Link(a=1, b=2, pcie="SYS"),)


def test_a_device_says_torchs_name_and_a_prefix_that_can_be_pasted() -> None:
    """A device's text is torch's name and the start of its UUID."""
    long = Device(kind="cuda", index=1, uuid="GPU-5c3a01b2-77aa-4f00-8000-000000000001")
    assert str(long) == "cuda:1 (GPU-5c3a01b2…)"
    assert str(CPU) == "cpu"


def test_a_pretended_device_is_the_described_one_to_all_that_compare() -> None:
    """It is equal, has the same hash and the same JSON, and is another object."""
    plain = Device(kind="cuda", index=1, uuid="GPU-5c3a01b2")
    pretended = plain.pretended()
    assert pretended is not plain
    assert pretended == plain
    assert plain == pretended
    assert len({plain, pretended, plain.pretended()}) == 1
    assert pretended.model_dump_json() == plain.model_dump_json()
    assert repr(pretended) == repr(plain)


def test_a_device_is_equal_to_one_with_the_same_fields_only() -> None:
    """A device with another index is another one, and so is what is no device."""
    plain = Device(kind="cuda", index=1)
    assert plain == Device(kind="cuda", index=1, uuid=None)
    assert hash(plain) == hash(Device(kind="cuda", index=1, uuid=None))
    assert plain != Device(kind="cuda", index=2)
    assert plain.pretended() != Device(kind="cuda", index=2).pretended()
    assert plain != Tenant()
    assert plain != "cuda:1"


def test_visible_lists_both_numberings() -> None:
    """Under a mask, both torch's index and the physical number are shown."""
    assert node(2, first_physical=2).visible == (
        "Visible on n1: cuda:0 (GPU-a000n1…) = physical 2, "
        "cuda:1 (GPU-a100n1…) = physical 3."
    )
    assert node(0).visible == "No accelerator is visible on n1."


def test_an_unknown_field_is_an_error_in_our_words() -> None:
    """An unknown field, a typing error perhaps, is a DeviceError."""
    with pytest.raises(DeviceError) as caught:
        Device.model_validate({"kind": "cuda", "index": 0, "memory": 5})
    assert caught.value.happened == "this is not a valid Device."
    assert "memory: Extra inputs are not permitted" in caught.value.seen

"""What tells a device from all others: the table that docs/cases.md shows."""

import json

import pytest

from gpumap.mapping.devices import Device
from gpumap.mapping.identity import identity_of
from helpers.cases import rows

CASES = rows("Identity")


@pytest.mark.parametrize(("one", "other", "same", "source"), CASES)
def test_two_ranks_are_on_one_device_where_it_is_certain(
    one: str, other: str, same: str, source: str
) -> None:
    """What cannot tell them apart for certain, is no identity and refuses nothing."""
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


def test_there_are_cases_of_each_outcome() -> None:
    """And of each vendor."""
    assert {same for _, _, same, _ in CASES} == {"one device", "two", "unknown"}

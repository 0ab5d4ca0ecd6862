"""Whether the devices that a task sees are its own: the table in docs/cases.md."""

import json

import pytest

from gpumap.detect.launchers import detect_launch, launched_on
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.visibility import visible
from helpers.cases import rows

CASES = rows("Devices of a task's own")


def eight(vendor: str) -> Node:
    """Return a node of eight devices of a vendor."""
    kind = "cuda" if vendor == "rocm" else vendor
    return Node(
        hostname="n1",
        devices=tuple(
            Device(kind=kind, index=n, physical_index=n, rocm=vendor == "rocm")
            for n in range(8)
        ),
    )


@pytest.mark.parametrize(
    ("environment", "vendor", "whose", "local_rank", "source"), CASES
)
def test_a_task_has_devices_of_its_own_where_its_mask_says_so(
    environment: str, vendor: str, whose: str, local_rank: str, source: str
) -> None:
    """Each case of docs/cases.md has the owner and the local rank of its row."""
    assert source
    environ = json.loads(environment)
    node = visible(eight(vendor), environ)
    launch = detect_launch(environ, node)
    assert launch.devices_bound == (whose == "own")
    assert launch.local_rank == (None if local_rank == "not told" else int(local_rank))
    assert launched_on(node, detect_launch(environ), environ) == launch


def test_there_are_cases_of_each_outcome() -> None:
    """The table has cases of both outcomes and of three vendors."""
    assert {whose for _, _, whose, _, _ in CASES} == {"own", "counted"}
    assert {vendor for _, vendor, *_ in CASES} >= {"cuda", "rocm", "xpu"}

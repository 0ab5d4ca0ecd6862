"""torch's own reading of CUDA_VISIBLE_DEVICES, against gpumap's."""

import re
from itertools import takewhile

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gpumap.mapping.devices import Device, Node
from gpumap.mapping.masks import cuda_visible

# 64, which torch assumes where it cannot count the devices.
UUIDS = [f"GPU-{place:02x}{'0' * 6}-4000" for place in range(64)]
NODE = Node(
    hostname="n1",
    devices=tuple(
        Device(kind="cuda", index=place, uuid=uuid) for place, uuid in enumerate(UUIDS)
    ),
)
PLACE_OF = {uuid: place for place, uuid in enumerate(UUIDS)}

entries = st.one_of(
    st.integers(-2, 70).map(str),
    st.sampled_from([*UUIDS[:5], "GPU-03", "GPU-0", "GPU-zz", "GPU-", "MIG-a"]),
    st.text("0123456789+-gGPU x;'\"", max_size=6),
)


def counted_by_torch(mask: str) -> list[int]:
    """Return the indices of the node's devices that torch selects by a mask."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", mask)
        parsed = torch.cuda._parse_visible_devices()  # noqa: SLF001 - torch's own parser is what it is compared with
    if parsed and isinstance(parsed[0], str):
        return list(torch.cuda._transform_uuid_to_ordinals(parsed, UUIDS))  # noqa: SLF001 - torch's own parser is what it is compared with
    ordinals = [ordinal for ordinal in parsed if isinstance(ordinal, int)]
    return list(takewhile(lambda ordinal: ordinal < len(UUIDS), ordinals))


@given(st.lists(entries, max_size=6).map(",".join))
@example("0, 1")
@example("GPU-03, GPU-04")
@example("-0")
def test_gpumap_reads_a_mask_as_torch_does(mask: str) -> None:
    """By every mask that torch can parse, gpumap and torch select the same devices."""
    parts = [part.strip() for part in mask.split(",")]
    # A lone sign is a ValueError in torch's int().
    assume(not any(re.match(r"[+-](?![0-9])", part) for part in parts))
    # torch empties the list for a repeated entry after the first invalid one, too.
    sure = {*UUIDS, *map(str, range(len(UUIDS)))}
    assume(len(set(parts)) == len(parts) or sure.issuperset(parts))
    assume(not mask.startswith("MIG-"))
    ordinals = [re.match(r"[+-]?\d+", part) for part in parts]
    numbers = [int(match[0]) for match in ordinals if match]
    assume(len(set(numbers)) == len(numbers) or max(numbers) < len(UUIDS))
    expected = counted_by_torch(mask)
    seen = [PLACE_OF[str(d.uuid)] for d in cuda_visible(mask, NODE).devices]
    assert seen == expected

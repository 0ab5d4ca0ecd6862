"""What CUDA_VISIBLE_DEVICES leaves visible."""

import pytest
from nodes import node

from gpumap.mapping.visibility import cuda_visible, mask_length, mask_ordinals

# What torch 2.13's torch.cuda._parse_visible_devices returned on a machine without a
# GPU, cut at the four devices of this node as its _device_count_nvml does.
TORCH = {
    "2,3": [2, 3],
    "3,2": [3, 2],
    " 2 , 3 ": [2, 3],
    "2,3,": [2, 3],
    "": [],
    "-1": [],
    "none": [],
    "all": [],
    "0,0": [],
    "0-3": [0],
    "0;1": [0],
    "[2,3]": [],
    "1gpu2,2ampere": [1, 2],
    "0,-1,1": [0],
    "0,9,1": [0],
    "3,1": [3, 1],
    "GPU-a1,1": [1],
    "1,GPU-a1": [1],
    "GPU-a3,GPU-a0": [3, 0],
    "GPU-a3,GPU-a3": [],
    "GPU-zz,GPU-a0": [],
    "GPU-a": [],
    "MIG-x": [],
}


@pytest.mark.parametrize(("mask", "expected"), TORCH.items())
def test_masks_mean_what_torch_makes_of_them(mask: str, expected: list[int]) -> None:
    """The rules of the CUDA programming guide, case by case."""
    visible = cuda_visible(mask, node(4)).devices
    assert [device.physical_index for device in visible] == expected
    assert [device.index for device in visible] == list(range(len(expected)))


def test_no_mask_hides_nothing() -> None:
    """Unset and empty differ: empty hides all."""
    assert len(cuda_visible(None, node(4)).devices) == 4


@pytest.mark.parametrize(
    ("mask", "length", "ordinals"),
    [
        (None, None, None),
        ("", 0, None),
        ("3", 1, [3]),
        ("2, 3", 2, [2, 3]),
        ("GPU-a1", 1, None),
    ],
)
def test_a_mask_is_counted_and_read(
    mask: str | None, length: int | None, ordinals: list[int] | None
) -> None:
    """One entry for several local ranks is how bound devices are recognised."""
    assert mask_length(mask) == length
    assert mask_ordinals(mask) == ordinals

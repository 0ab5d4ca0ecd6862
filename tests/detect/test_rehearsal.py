"""Machines that one does not have."""

from pathlib import Path

import pytest

from gpumap.detect.launchers import detect_launch
from gpumap.detect.rehearsal import machine, rehearsed_node
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Link
from gpumap.mapping.launch import Launch

ALONE = detect_launch({})


def test_dgx_a100_has_eight_a100_all_linked_by_12_nvlinks() -> None:
    """As its nvidia-smi topo -m shows: NV12 everywhere, NUMA nodes 3, 1, 7, 5."""
    node = machine("dgx-a100")
    assert [d.name for d in node.devices] == ["NVIDIA A100-SXM4-40GB"] * 8
    assert {link.nvlinks for link in node.links} == {12}
    assert len(node.links) == 8 * 7 // 2
    assert [d.numa_node for d in node.devices] == [3, 3, 1, 1, 7, 7, 5, 5]


def test_rtx3090x4_is_two_nvlinked_pairs() -> None:
    """Four links inside a pair, across sockets between the pairs."""
    node = machine("rtx3090x4")
    assert [d.name for d in node.devices] == ["NVIDIA GeForce RTX 3090"] * 4
    assert [link for link in node.links if link.nvlinks] == [
        Link(a=0, b=1, nvlinks=4),
        Link(a=2, b=3, nvlinks=4),
    ]
    assert [link.pcie for link in node.links if not link.nvlinks] == ["SYS"] * 4


@pytest.mark.parametrize("name", ["dgx-a100", "rtx3090x4"])
def test_a_machines_uuids_differ_early(name: str) -> None:
    """So that the printed prefix is a reference."""
    starts = {str(device.uuid)[:12] for device in machine(name).devices}
    assert len(starts) == len(machine(name).devices)


def test_an_unknown_machine_lists_those_there_are() -> None:
    """The hint says how to name a file."""
    with pytest.raises(DeviceError) as caught:
        machine("dgx-9000")
    assert caught.value.happened == "there is no machine 'dgx-9000'."
    assert caught.value.seen == "There are dgx-a100, rtx3090x4."


def test_rehearsal_honours_the_mask() -> None:
    """Two devices are left, counted from 0."""
    node = rehearsed_node("dgx-a100", ALONE, {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert [(d.index, d.physical_index) for d in node.devices] == [(0, 2), (1, 3)]
    assert node.links == (Link(a=0, b=1, nvlinks=12),)


def test_a_file_describes_one_node_or_several(tmp_path: Path) -> None:
    """Of several, node_rank picks one."""
    one = machine("rtx3090x4").model_copy(update={"hostname": "first"})
    two = one.model_copy(update={"hostname": "second"})
    path = tmp_path / "nodes.json"
    path.write_text(one.model_dump_json())
    assert rehearsed_node(str(path), ALONE, {}) == one
    path.write_text(f"[{one.model_dump_json()}, {two.model_dump_json()}]")
    me = Launch(launcher="torchrun", rank=1, world_size=2, node_rank=1, num_nodes=2)
    assert rehearsed_node(str(path), me, {}).hostname == "second"
    lost = Launch(launcher="torch variables", rank=1, world_size=2)
    with pytest.raises(DeviceError, match="describes 2 nodes; this is node_rank None"):
        rehearsed_node(str(path), lost, {})


@pytest.mark.parametrize(
    "content", ["", "{}", '{"hostname": 1}', "[1]", "5", "[" * 100_000, None]
)
def test_a_file_that_describes_no_machine_is_an_error(
    tmp_path: Path, content: str | None
) -> None:
    """Missing, empty or something else: a DeviceError in every case."""
    path = tmp_path / "machine.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DeviceError):
        rehearsed_node(str(path), ALONE, {})

"""Rehearsals of machines: those that gpumap ships, and those of a file."""

import json
import os
from pathlib import Path

import pytest

from gpumap.detect.launchers import detect_launch
from gpumap.detect.rehearsal import machine, rehearsed_node
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Link
from gpumap.mapping.launch import Launch
from gpumap.mapping.topology import parse_topology

ALONE = detect_launch({})
TOPOLOGIES = Path(__file__).parent.parent / "data/topologies"
MACHINES = [
    ("dgx1-p100", "dgx1-p100", "Tesla P100-SXM2-16GB"),
    ("dgx1-v100", "dgx1-v100", "Tesla V100-SXM2-16GB"),
    ("hgx-h100", "h100x8-nv18-9nics", "NVIDIA H100 80GB HBM3"),
    ("h100x4-nv6", "h100x4-nv6-nics", "NVIDIA H100 80GB HBM3"),
    ("rtx4090x8-sys", "rtx4090x8-all-sys", "NVIDIA GeForce RTX 4090"),
    ("rtx4090x8-node", "rtx4090x8-node-sys", "NVIDIA GeForce RTX 4090"),
    ("rtx8000x4", "rtx8000x4-nvlink-pairs", "Quadro RTX 8000"),
    ("t4x4", "t4x4", "Tesla T4"),
    ("rtx3090x2", "rtx3090x2-blank-numa", "NVIDIA GeForce RTX 3090"),
    ("rtx3090-gtx1080", "rtx3090-gtx1080-phb", "NVIDIA GeForce RTX 3090"),
]


def test_dgx_a100_has_eight_a100_all_linked_by_12_nvlinks() -> None:
    """dgx-a100 has NV12 everywhere and NUMA nodes 3, 1, 7, 5, as nvidia-smi shows."""
    node = machine("dgx-a100")
    assert [d.name for d in node.devices] == ["NVIDIA A100-SXM4-40GB"] * 8
    assert {link.nvlinks for link in node.links} == {12}
    assert len(node.links) == 8 * 7 // 2
    assert [d.numa_node for d in node.devices] == [3, 3, 1, 1, 7, 7, 5, 5]


def test_rtx3090x4_is_two_nvlinked_pairs() -> None:
    """rtx3090x4 has four NVLinks inside each pair, and SYS between the pairs."""
    node = machine("rtx3090x4")
    assert [d.name for d in node.devices] == ["NVIDIA GeForce RTX 3090"] * 4
    assert [link for link in node.links if link.nvlinks] == [
        Link(a=0, b=1, nvlinks=4),
        Link(a=2, b=3, nvlinks=4),
    ]
    assert [link.pcie for link in node.links if not link.nvlinks] == ["SYS"] * 4


@pytest.mark.parametrize(("name", "matrix", "card"), MACHINES)
def test_a_machine_is_linked_as_its_owner_printed_it(
    name: str, matrix: str, card: str
) -> None:
    """A machine has the links, NUMA nodes and CPUs of its published matrix."""
    node = machine(name)
    published = parse_topology((TOPOLOGIES / f"{matrix}.txt").read_text())
    links = [link.model_copy(update={"pcie": None}) for link in node.links]
    assert links == [x.model_copy(update={"pcie": None}) for x in published.links]
    paths = [
        (x.pcie, link.pcie) for x, link in zip(published.links, node.links, strict=True)
    ]
    assert all(there in (None, here) for there, here in paths)
    for mine, theirs in zip(node.devices, published.devices, strict=True):
        assert mine.numa_node == theirs.numa_node
        assert mine.cpu_affinity == theirs.cpu_affinity
    assert node.devices[0].name == card
    assert node.hostname == name
    assert node.source


def test_the_dgx_1s_tell_the_path_beside_the_nvlinks() -> None:
    """The two DGX-1 differ in their PCIe switches, as in go-gpuallocator's tests."""
    v100, p100 = machine("dgx1-v100"), machine("dgx1-p100")
    close = [[(x.a, x.b) for x in n.links if x.pcie == "PIX"] for n in (v100, p100)]
    assert close[0] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert close[1] == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_a_mixed_machine_names_both_cards() -> None:
    """rtx3090-gtx1080 has a card with 82 multiprocessors and one with 20."""
    fast, slow = machine("rtx3090-gtx1080").devices
    assert (fast.multiprocessors, slow.multiprocessors) == (82, 20)
    assert slow.name == "NVIDIA GeForce GTX 1080"


@pytest.mark.parametrize("name", ["dgx-a100", "rtx3090x4", *(m[0] for m in MACHINES)])
def test_a_machines_uuids_differ_early(name: str) -> None:
    """The printed prefix of a UUID, 12 characters, is unique in each machine."""
    starts = {str(device.uuid)[:12] for device in machine(name).devices}
    assert len(starts) == len(machine(name).devices)


def test_an_unknown_machine_lists_those_there_are() -> None:
    """An unknown machine is an error that lists the known ones."""
    with pytest.raises(DeviceError) as caught:
        machine("dgx-9000")
    assert caught.value.happened == "there is no machine 'dgx-9000'."
    assert caught.value.seen == (
        "There are dgx-a100, dgx1-p100, dgx1-v100, h100x4-nv6, hgx-h100, "
        "rtx3090-gtx1080, rtx3090x2, rtx3090x4, rtx4090x8-node, rtx4090x8-sys, "
        "rtx8000x4, t4x4."
    )


def test_rehearsal_honours_the_mask() -> None:
    """A rehearsal under a mask has the masked devices only, indexed from 0."""
    node = rehearsed_node("dgx-a100", ALONE, {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert [(d.index, d.physical_index) for d in node.devices] == [(0, 2), (1, 3)]
    assert node.links == (Link(a=0, b=1, nvlinks=12),)


def test_a_file_describes_one_node_or_several(tmp_path: Path) -> None:
    """A file holds one node, or a list from which node_rank selects one."""
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
    """A file that is missing, empty or no description is a DeviceError."""
    path = tmp_path / "machine.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DeviceError):
        rehearsed_node(str(path), ALONE, {})


def test_one_uuid_for_two_devices_is_told_when_the_file_is_read(tmp_path: Path) -> None:
    """Two devices with one UUID are an error; two without a UUID are not."""
    node = json.loads(machine("rtx3090x2").model_dump_json())
    node["devices"][1]["uuid"] = node["devices"][0]["uuid"]
    path = tmp_path / "twice.json"
    path.write_text(json.dumps([node]))
    with pytest.raises(DeviceError) as caught:
        rehearsed_node(str(path), ALONE, {})
    assert caught.value.happened == (
        f"{path} gives several devices of rtx3090x2 one UUID, "
        f"{node['devices'][0]['uuid']}."
    )
    assert caught.value.seen.startswith("They are cuda:0 (GPU-30920000…), cuda:1")
    for device in node["devices"]:
        device["uuid"] = None
    path.write_text(json.dumps(node))
    assert len(rehearsed_node(str(path), ALONE, {}).devices) == 2


def test_a_pipe_is_no_description(tmp_path: Path) -> None:
    """A named pipe is refused, since reading it could block and would drain it."""
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    with pytest.raises(DeviceError) as caught:
        rehearsed_node(str(path), ALONE, {})
    assert caught.value.seen == "It is no regular file."


def test_uuids_that_tell_nothing_may_be_alike(tmp_path: Path) -> None:
    """AMD's placeholder UUID may repeat, as may a GPU's UUID on its MIG slices."""
    for alike in (
        {"rocm": True, "uuid": "GPU-XX"},
        {"uuid": "GPU-5c3a01b2", "mig": "0000:3b:00.0"},
    ):
        devices = [{"kind": "cuda", "index": n, **alike} for n in range(2)]
        path = tmp_path / "alike.json"
        path.write_text(json.dumps({"hostname": "n1", "devices": devices}))
        assert len(rehearsed_node(str(path), ALONE, {}).devices) == 2

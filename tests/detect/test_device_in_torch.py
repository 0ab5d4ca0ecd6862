"""A device where torch wants one."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch

from gpumap.detect.rehearsal import machine, rehearsed_node, rehearsed_nodes
from gpumap.mapping.devices import CPU, Device, Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.pool import place

SECOND = Launch(
    launcher="torchrun", rank=1, world_size=2, local_rank=1, local_world_size=2
)


@pytest.mark.parametrize(
    ("kind", "index", "name"),
    [("cuda", 1, "cuda:1"), ("cuda", 0, "cuda:0"), ("xpu", 3, "xpu:3")],
)
def test_a_devices_torch_is_the_torch_device_of_kind_and_index(
    kind: str, index: int, name: str
) -> None:
    """It has an index, also the first: "cuda" alone would be the current device."""
    assert Device(kind=kind, index=index).torch == torch.device(name)


def test_the_cpu_has_no_index() -> None:
    """Its torch.device is the one that tensors on the CPU have."""
    assert torch.zeros(1).device == CPU.torch


def test_torch_takes_the_cpu_for_a_device_of_a_rehearsal() -> None:
    """The machine by itself is a description; pretended, it trains on the CPU."""
    cpu, cuda1 = torch.device("cpu"), torch.device("cuda:1")
    assert machine("t4x4").devices[1].torch == cuda1
    assert [d.torch for d in rehearsed_node("t4x4", None, {}).devices] == [cpu] * 4
    masked = rehearsed_nodes("t4x4", {"CUDA_VISIBLE_DEVICES": "3,1"})[0].devices
    assert [(d.physical_index, d.torch) for d in masked] == [(3, cpu), (1, cpu)]


@pytest.mark.parametrize(
    "way",
    [
        copy.copy,
        copy.deepcopy,
        lambda node: pickle.loads(pickle.dumps(node)),  # noqa: S301 - our own
        lambda node: node.keeping([0, 1]),
        Node.model_validate,
        lambda node: Node(hostname="n1", devices=node.devices),
        lambda node: Node(
            hostname="n1", devices=(CPU, place(SECOND, node, gpus=[3, 1]).device)
        ),
    ],
    ids=["copy", "deepcopy", "pickle", "keeping", "validate", "new node", "place"],
)
def test_a_pretended_device_stays_one(way: Callable[[Node], Node]) -> None:
    """Copies of it, and placements on it, are pretended too."""
    node = rehearsed_node("t4x4", None, {})
    assert way(node).devices[1].torch == torch.device("cpu")


def test_a_description_that_was_saved_in_a_rehearsal_is_a_description() -> None:
    """Read again, it is no rehearsal: which machine is pretended, the user says."""
    saved = rehearsed_node("t4x4", None, {}).model_dump_json()
    assert Node.model_validate_json(saved).devices[1].torch == torch.device("cuda:1")


def loaded(where: object) -> torch.Tensor:
    """Return a tensor that was saved and is loaded onto a device."""
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    tensor: torch.Tensor = torch.load(file, map_location=where)  # type: ignore[arg-type]
    return tensor


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (torch.device, r"got \(Device\)"),
        (loaded, "'Device' object is not callable"),
        (torch.nn.Linear(1, 1).to, r"got \(Device\)"),
        (lambda d: torch.zeros(1, device=d), "must be torch.device, not Device"),
    ],
    ids=["torch.device", "map_location", "to", "device="],
)
def test_torch_takes_a_devices_torch_and_not_the_device(
    use: Callable[[object], object], says: str
) -> None:
    """Only its own objects, strings and numbers are devices to torch."""
    use(CPU.torch)
    with pytest.raises(TypeError, match=says):
        use(CPU)

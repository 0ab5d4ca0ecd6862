"""The CPUs of a node's placements, worked out by hand."""

from typing import Any

import pytest

from gpumap.detect.rehearsal import machine
from gpumap.errors import LaunchError, PlacementError
from gpumap.mapping.bound import bound, doubt_of_cores, refuse_unknown_neighbours
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.cpus import cpu_list
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.policy import Bind
from gpumap.mapping.pool import place
from helpers.nodes import launch

A100 = machine("dgx-a100")
V100 = machine("dgx1-v100")


def placed(node: Node, count: int) -> list[Placement]:
    """Return the placements of the ranks of a node, by local rank."""
    return [place(launch(rank, count), node) for rank in range(count)]


@pytest.mark.parametrize(
    ("how", "allowed", "expected"),
    [
        ("numa", None, ["48-63,176-191"] * 2 + ["16-31,144-159"]),
        (
            "exclusive",
            None,
            ["48-55,176-183", "56-63,184-191", "16-31,144-159"],
        ),
        ("numa", range(50), ["48-49"] * 2 + ["16-31"]),
        ("exclusive", range(50), ["48", "49", "16-31"]),
        ("exclusive", range(40), ["", "", "16-31"]),
    ],
)
def test_ranks_get_the_cpus_of_their_devices_nodes(
    how: Bind, allowed: range | None, expected: list[str]
) -> None:
    """A DGX A100 has GPUs 0 and 1 beside CPUs 48-63,176-191, GPU 2 beside 16-31,…."""
    before = placed(A100, 3)
    found = bound(before, A100, how, allowed)
    assert [cpu_list(one.cpus or ()) for one in found] == expected
    assert [one.model_copy(update={"cpus": None}) for one in found] == before


@pytest.mark.parametrize("how", ["numa", "exclusive"])
def test_a_rank_has_no_cpus_where_none_are_told(how: Bind) -> None:
    """A node whose CPUs nobody tells gives an empty share, which is not None."""
    bare = Node(hostname="n1", devices=(Device(kind="cuda", index=0),))
    assert [one.cpus for one in bound(placed(bare, 1), bare, how)] == [()]


def test_a_way_to_bind_that_does_not_exist_is_refused() -> None:
    """A misspelt way to bind is not taken for "numa"."""
    wrong: Any = "NUMA"
    with pytest.raises(PlacementError, match="bind='NUMA' is unknown"):
        bound(placed(A100, 1), A100, wrong)


def test_dealing_cpus_whose_cores_are_not_known_is_doubted() -> None:
    """Of a DGX-1 the CPUs beside its GPUs are told, and not which are one core's."""
    doubt = (
        "which of the CPUs 0-19,40-59 are hyper-threads of one core is not known: "
        'bind="exclusive" counts each as a core, and two ranks may share one.'
    )
    assert doubt_of_cores(placed(V100, 2), V100, "exclusive") == doubt
    few = doubt_of_cores(placed(V100, 2), V100, "exclusive", range(4))
    assert few == doubt.replace("0-19,40-59", "0-3")


def test_where_no_core_can_be_parted_there_is_no_doubt() -> None:
    """That is so with known cores, with one rank a NUMA node, and without dealing."""
    cores = CpuTopology(cores=tuple((n, n + 40) for n in range(40)))
    told = V100.model_copy(update={"cpus": cores})
    assert doubt_of_cores(placed(told, 8), told, "exclusive") is None
    assert doubt_of_cores(placed(V100, 1), V100, "exclusive") is None
    assert doubt_of_cores(placed(V100, 8), V100, "numa") is None


def test_dealing_needs_the_number_of_processes() -> None:
    """Without it a rank could not know which part of the CPUs is its own."""
    with pytest.raises(LaunchError) as caught:
        refuse_unknown_neighbours(Launch(launcher="mine", rank=0, world_size=2))
    assert str(caught.value).splitlines()[1:] == [
        "mine: local_rank=None, local_world_size=None.",
        "Set LOCAL_RANK and LOCAL_WORLD_SIZE for each process, or start with "
        'torchrun; or write bind="numa".',
    ]
    assert caught.value.variables == ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    refuse_unknown_neighbours(Launch(launcher="mine", rank=0, world_size=1))
    refuse_unknown_neighbours(launch(1, 2))

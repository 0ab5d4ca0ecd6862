"""Lists of CPUs, and the CPUs beside a device."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import DeviceError
from gpumap.mapping.cpu_topology import CpuTopology, NumaNode, cores_of
from gpumap.mapping.cpus import (
    cpu_list,
    cpus_beside,
    near_cpus,
    no_cpus,
    parse_cpu_list,
)
from gpumap.mapping.devices import Device
from helpers.cpus import machine


def card(**fields: Any) -> Device:
    """Return a device of which these fields are known."""
    return Device(kind="cuda", index=0, **fields)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        ("\n", ()),
        ("0\n", (0,)),
        ("0-3,8,10-11", (0, 1, 2, 3, 8, 10, 11)),
        ("4,6,9,15,17\n", (4, 6, 9, 15, 17)),
        ("5-5", (5,)),
        ("3,1-2,1", (1, 2, 3)),
    ],
)
def test_the_kernels_lists_are_read(text: str, cpus: tuple[int, ...]) -> None:
    """A list of numbers and ranges becomes its CPUs, ascending, each once."""
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    "text", ["a", "1,", ",1", "1-", "-1", "3-1", "1--2", "0-7:1/2", "1 2", "0x1", "²"]
)
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    """Any other text is an error that shows the text and the right form."""
    with pytest.raises(DeviceError) as caught:
        parse_cpu_list(text)
    assert caught.value.args == (
        f"{text!r} is not a list of CPUs.",
        "",
        'Write numbers and ascending ranges: "0-3,8,10-11".',
    )


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        ((), ""),
        ((7,), "7"),
        ((0, 1, 2, 3, 8), "0-3,8"),
        ((11, 10, 0, 2, 0), "0,2,10-11"),
    ],
)
def test_cpus_are_listed_as_the_kernel_does(cpus: tuple[int, ...], text: str) -> None:
    """CPUs in any order are written as ascending numbers and ranges."""
    assert cpu_list(cpus) == text


@given(st.sets(st.integers(0, 300)))
def test_a_list_reads_back_as_its_cpus(cpus: set[int]) -> None:
    """What cpu_list() writes, parse_cpu_list() reads as the same CPUs."""
    assert parse_cpu_list(cpu_list(cpus)) == tuple(sorted(cpus))


@given(st.text(alphabet="0123,- \n"))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    """Any text is read as a list, or raises DeviceError."""
    try:
        found = parse_cpu_list(text)
    except DeviceError:
        return
    assert list(found) == sorted(set(found))


@pytest.mark.parametrize(
    ("name", "index", "cpus"),
    [
        ("two-sockets", 1, "0-23,48-71"),
        ("two-sockets", 2, "24-47,72-95"),
        ("dgx-a100", 0, "48-63,176-191"),
        ("dgx-a100", 7, "80-95,208-223"),
        ("polaris", 0, "24-31,56-63"),
        ("gb200", 1, "0-71"),
        ("gb200", 2, "72-143"),
    ],
)
def test_the_cpus_beside_a_gpu_are_those_that_nvidia_smi_prints(
    name: str, index: int, cpus: str
) -> None:
    """From NUMA nodes alone follow the CPU affinities that nvidia-smi topo -m gives."""
    there = machine(name)
    found = cpus_beside(there.devices[index], there.topology, there.cpus)
    assert cpu_list(found) == cpus


ONE = CpuTopology(nodes=(NumaNode(index=0, cpus=(0, 1, 2, 3)),))
TWO = CpuTopology(nodes=(NumaNode(index=0, cpus=(0, 1)), NumaNode(index=8, cpus=(2,))))


@pytest.mark.parametrize(
    ("device", "topology", "cpus"),
    [
        (card(), ONE, (0, 1, 2, 3)),
        (card(), TWO, ()),
        (card(numa_node=8), TWO, (2,)),
        (card(numa_node=8, cpu_affinity=(0, 1)), TWO, (2,)),
        (card(numa_node=5, cpu_affinity=(0, 1)), TWO, (0, 1)),
        (card(numa_node=5), TWO, ()),
        (card(cpu_affinity=(4, 6)), CpuTopology(), (4, 6)),
        (card(numa_node=0), CpuTopology(), ()),
    ],
)
def test_what_is_told_of_a_device_says_which_cpus_are_beside_it(
    device: Device, topology: CpuTopology, cpus: tuple[int, ...]
) -> None:
    """The device's NUMA node counts, then its own CPUs, then the only node there is."""
    assert near_cpus(device, topology) == cpus


def test_a_node_of_memory_alone_has_the_cpus_at_the_least_distance() -> None:
    """Without CPUs in a GPU's own node, all nodes at the least distance are beside."""

    def near(to_0: int, to_1: int, *own: int) -> tuple[int, ...]:
        rows = ((10, 40, to_0), (40, 10, to_1), (to_0, to_1, 10))
        cpus: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3), ())
        nodes = (
            NumaNode(index=n, cpus=cpus[n], distances=row) for n, row in enumerate(rows)
        )
        device = card(numa_node=2, cpu_affinity=own or None)
        return near_cpus(device, CpuTopology(nodes=tuple(nodes)))

    assert near(80, 120) == (0, 1)
    assert near(120, 80) == (2, 3)
    assert near(20, 20) == (0, 1, 2, 3)
    assert near(120, 80, 1) == (1,)
    alone = CpuTopology(nodes=(NumaNode(index=2, distances=(10,)),))
    assert near_cpus(card(numa_node=2), alone) == ()
    untold = CpuTopology(nodes=(*ONE.nodes, NumaNode(index=2)))
    assert near_cpus(card(numa_node=2), untold) == (0, 1, 2, 3)


def test_cpus_that_are_not_allowed_are_left_out() -> None:
    """Of the CPUs beside a device those remain that the cpuset has, ascending."""
    there = machine("two-sockets")
    last = there.devices[3]
    assert cpus_beside(last, there.topology, [73, 40, 41, 0]) == (40, 41, 73)
    assert cpus_beside(last, there.topology, range(24)) == ()


def test_a_device_that_is_not_told_of_is_named() -> None:
    """Where the system does not tell what is beside a device, the error says so."""
    hint = (
        "Leave bind out, or bind the ranks with the launcher (srun --cpu-bind, "
        "mpirun --bind-to)."
    )
    assert no_cpus(card(), TWO, [0]).args[:3] == (
        "the system does not tell which CPUs are beside cuda:0.",
        "Its NUMA node is not told; the CPUs of 2 NUMA nodes are known.",
        hint,
    )
    assert no_cpus(card(numa_node=5), CpuTopology(), [0]).args[:3] == (
        "the system does not tell which CPUs are beside cuda:0.",
        "Its NUMA node is 5; the CPUs of 0 NUMA nodes are known.",
        hint,
    )


def test_a_cpuset_without_the_devices_cpus_is_named() -> None:
    """Where the cpuset has no CPU beside a device, the error shows both lists."""
    there = machine("two-sockets")
    found = no_cpus(there.devices[3], there.topology, range(24))
    assert found.args[:3] == (
        "no CPU beside cuda:3 is left to this process.",
        "CPUs 24-47,72-95 are beside it; the cgroup allows 0-23.",
        "Ask the launcher for CPUs beside the device, or write "
        'strategy="closest", which takes devices beside the CPUs that there are.',
    )
    assert "the cgroup allows none." in str(no_cpus(card(), ONE, []))


def test_cores_are_cut_to_the_cpus_asked_for() -> None:
    """A core has its hyper-threads together; what is unknown is a core by itself."""
    cores = CpuTopology(cores=((0, 4), (1, 5), (2, 6)))
    assert cores_of([6, 5, 1, 4, 9], cores) == [(4,), (1, 5), (6,), (9,)]
    assert cores_of([], cores) == []


def test_distances_that_do_not_fit_the_nodes_are_refused() -> None:
    """A node with another number of distances than there are nodes is an error."""
    wrong = (NumaNode(index=3, distances=(10, 21)),)
    with pytest.raises(DeviceError) as caught:
        CpuTopology(nodes=wrong)
    assert caught.value.args == (
        "NUMA node 3 has 2 distances.",
        "The host has 1 NUMA node.",
        "Give it one to each node, in the order of nodes, or none.",
    )


def test_a_topology_survives_its_json() -> None:
    """A topology that is written to JSON reads back the same."""
    there = machine("gb200").topology
    assert CpuTopology.model_validate_json(there.model_dump_json()) == there

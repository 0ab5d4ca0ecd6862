"""CPUs as the kernel's files tell them: trees of real machines, and this kernel."""

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from gpumap.detect.cpus import (
    allowed_cpus,
    bound_cpus,
    near_of_pci,
    read_topology,
    with_cpus,
)
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.cpus import cpu_list, cpus_beside, parse_cpu_list
from gpumap.mapping.devices import Device, Node
from helpers.cpus import MACHINES, Machine, machine
from helpers.programs import run_python

ONLINE = Path("/sys/devices/system/cpu/online")
LINUX = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="sched_setaffinity is Linux's"
)


def write(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder, with the new line that the kernel ends them with."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def tree(there: Machine, root: Path) -> Path:
    """Write what /sys of a machine says of its CPUs, nodes and GPUs."""
    cpu, node, pci = (
        f"sys/{x}" for x in ("devices/system/cpu", "devices/system/node", "bus/pci")
    )
    files = {f"{cpu}/online": cpu_list(there.cpus), f"{node}/possible": "0-63"}
    for core in there.cores:
        for thread in core:
            name = f"{cpu}/cpu{thread}/topology/thread_siblings_list"
            files[name] = ",".join(map(str, core))
    for (index, cpus), row in zip(there.nodes.items(), there.distances, strict=True):
        files[f"{node}/node{index}/cpulist"] = cpus
        files[f"{node}/node{index}/distance"] = " ".join(map(str, row))
    for place, numa_node in enumerate(there.gpus):
        folder = f"{pci}/devices/0000:{16 + place:02x}:00.0"
        files[f"{folder}/numa_node"] = str(numa_node)
        files[f"{folder}/local_cpulist"] = there.nodes[numa_node]
    return write(root, files)


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_read_from_its_files(name: str, tmp_path: Path) -> None:
    """Nodes, distances and cores are those of the table that the files come from."""
    there = machine(name)
    assert read_topology(tree(there, tmp_path)) == there.topology


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("two-sockets", ["0-23,48-71"] * 2 + ["24-47,72-95"] * 2),
        ("polaris", ["24-31,56-63", "16-23,48-55", "8-15,40-47", "0-7,32-39"]),
        ("gb200", ["0-71", "0-71", "72-143", "72-143"]),
    ],
)
def test_devices_without_nvml_get_their_cpus_from_the_kernel(
    name: str, beside: list[str], tmp_path: Path
) -> None:
    """Devices known by PCI bus ID alone get the CPUs that nvidia-smi topo -m prints."""
    there = machine(name)
    root = tree(there, tmp_path)
    bare = [d.model_copy(update={"numa_node": None}) for d in there.devices]
    node = with_cpus(Node(hostname="n1", devices=tuple(bare)), root)
    assert node.cpus == there.topology
    found = [cpus_beside(device, node.cpus, there.cpus) for device in node.devices]
    assert [cpu_list(cpus) for cpus in found] == beside
    assert [device.numa_node for device in node.devices] == there.gpus


def test_what_nvml_told_of_a_device_stands(tmp_path: Path) -> None:
    """A device whose node or CPUs are known, or that has no bus ID, stays as it is."""
    root = tree(machine("two-sockets"), tmp_path)
    told = (
        Device(kind="cuda", index=0, pci_bus_id="00000000:10:00.0", numa_node=1),
        Device(kind="cuda", index=1, pci_bus_id="00000000:10:00.0", cpu_affinity=(7,)),
        Device(kind="cuda", index=2),
    )
    node = Node(hostname="n1", devices=told)
    assert with_cpus(node, root).devices == told


@pytest.mark.parametrize(
    ("folder", "numa_node", "cpus", "expected"),
    [
        ("0000:10:00.0", "1", "24-25", (1, (24, 25))),
        ("0000:10:00.0", "2", "", (2, None)),
        ("0000:10:00.0", "-1", "0-95", (None, None)),
        ("0000:10:00.0", "", "0-95", (None, None)),
        ("10000:10:00.0", "0", "0-1", (None, None)),
    ],
)
def test_a_node_of_minus_one_tells_nothing(
    folder: str,
    numa_node: str,
    cpus: str,
    expected: tuple[int | None, tuple[int, ...] | None],
    tmp_path: Path,
) -> None:
    """A PCI device's node of -1 is not told, nor are its CPUs, which are all online."""
    place = f"sys/bus/pci/devices/{folder}"
    files = {f"{place}/numa_node": numa_node, f"{place}/local_cpulist": cpus}
    root = write(tmp_path, files)
    assert near_of_pci("00000000:10:00.0", root) == expected


def test_pci_bus_ids_are_found_in_the_kernels_form(tmp_path: Path) -> None:
    """NVML's domains have eight digits, the kernel's four or more, in small letters."""
    for place in ("0000:c1:00.0", "10000:e1:00.0"):
        write(tmp_path, {f"sys/bus/pci/devices/{place}/numa_node": "3"})
    for bus in ("00000000:C1:00.0", "0000:c1:00.0", "00010000:e1:00.0"):
        assert near_of_pci(bus, tmp_path) == (3, None)
    for bus in ("", "c1:00.0", "no bus"):
        assert near_of_pci(bus, tmp_path) == (None, None)


def test_cpus_that_are_offline_are_left_out(tmp_path: Path) -> None:
    """A CPU that is not online is in no node and in no core."""
    root = tree(machine("two-sockets"), tmp_path)
    write(root, {"sys/devices/system/cpu/online": "0-70"})
    found = read_topology(root)
    assert [cpu_list(node.cpus) for node in found.nodes] == ["0-23,48-70", "24-47"]
    assert found.cores[22:26] == ((22, 70), (23,), (24,), (25,))
    assert len(found.cores) == 48


def test_files_that_are_missing_or_odd_tell_nothing(tmp_path: Path) -> None:
    """Without /sys, or with distances that do not fit, there is less, but no error."""
    assert read_topology(tmp_path / "nowhere") == CpuTopology()
    write(
        tmp_path,
        {
            "sys/devices/system/node/node0/cpulist": "0-1",
            "sys/devices/system/node/node0/distance": "10 21 21",
            "sys/devices/system/node/node1/cpulist": "what?",
            "sys/devices/system/node/node1/distance": "21 ten",
            "sys/devices/system/cpu/cpu0/online": "1",
        },
    )
    found = read_topology(tmp_path)
    assert [(node.cpus, node.distances) for node in found.nodes] == [
        ((0, 1), ()),
        ((), ()),
    ]
    assert found.cores == ((0,),)


V1 = "31 23 0:28 / /cg rw - tmpfs tmpfs rw\n34 31 0:31 {begin} /cg/cpuset rw - cgroup "
V1 += "cgroup rw,cpuset\n35 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory"
V2 = "26 21 0:23 {begin} /cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_AT, V2_AT = "cpuset.effective_cpus", "cpuset.cpus.effective"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        # v2: a leaf with the controller, or the nearest cgroup above that has it.
        (
            "0::/job/step",
            V2.format(begin="/"),
            {f"cg/{V2_AT}": "0-95", f"cg/job/step/{V2_AT}": "24-31"},
            "24-31",
        ),
        (
            "0::/job/step",
            V2.format(begin="/"),
            {f"cg/{V2_AT}": "0-95", f"cg/job/{V2_AT}": "0-3,48-51"},
            "0-3,48-51",
        ),
        ("0::/job/step", V2.format(begin="/"), {f"cg/{V2_AT}": "0-94"}, "0-94"),
        # v2 in a container with a cgroup namespace, and in one without.
        ("0::/", V2.format(begin="/"), {f"cg/{V2_AT}": "8-15"}, "8-15"),
        ("0::/kube/a", V2.format(begin="/kube/a"), {f"cg/{V2_AT}": "8-15"}, "8-15"),
        ("0::/../b", V2.format(begin="/"), {f"cg/{V2_AT}": "8-15"}, "8-15"),
        ("0::/b", V2.format(begin="/kube/a"), {f"cg/{V2_AT}": "8-15"}, "8-15"),
        # v1: the line of the cpuset counts, whatever the other controllers say.
        (
            "4:memory:/m\n3:cpuset:/slurm/job",
            V1.format(begin="/"),
            {
                f"cg/cpuset/{V1_AT}": "0-95",
                f"cg/cpuset/m/{V1_AT}": "9",
                f"cg/cpuset/slurm/job/{V1_AT}": "24-35",
            },
            "24-35",
        ),
        (
            "3:cpu,cpuset:/docker/a",
            V1.format(begin="/docker/a"),
            {f"cg/cpuset/{V1_AT}": "4-7"},
            "4-7",
        ),
        # v1: a cpuset that was never written has no CPUs, and uses its parent's.
        (
            "3:cpuset:/a/b",
            V1.format(begin="/"),
            {f"cg/cpuset/a/b/{V1_AT}": "", f"cg/cpuset/a/{V1_AT}": "5"},
            "5",
        ),
        # Both: v1 has the cpuset, v2 none.
        (
            "3:cpuset:/a\n0::/user.slice",
            f"{V1.format(begin='/')}\n{V2.format(begin='/')}",
            {f"cg/cpuset/a/{V1_AT}": "6-7", f"cg/{V2_AT}": "0-95"},
            "6-7",
        ),
        # No cpuset at all.
        ("0::/", V2.format(begin="/"), {}, "0-95"),
        ("4:memory:/m", V1.format(begin="/"), {f"cg/memory/m/{V1_AT}": "9"}, "0-95"),
    ],
)
def test_the_cgroups_cpuset_is_what_a_process_may_use(
    cgroup: str, mounts: str, files: dict[str, str], expected: str, tmp_path: Path
) -> None:
    """The nearest cpuset above a process counts; without one, all online CPUs do."""
    root = tree(machine("two-sockets"), tmp_path)
    write(root, {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts, **files})
    assert cpu_list(allowed_cpus(root)) == expected


def test_a_cpuset_smaller_than_the_node_leaves_what_both_have(tmp_path: Path) -> None:
    """Of a device's NUMA node the CPUs in the cpuset remain, maybe none."""
    root = tree(machine("two-sockets"), tmp_path)
    files = {"proc/self/cgroup": "0::/a", "proc/self/mountinfo": V2.format(begin="/")}
    write(root, {**files, f"cg/a/{V2_AT}": "20-27,72"})
    allowed = allowed_cpus(root)
    first, *_, last = machine("two-sockets").devices
    topology = read_topology(root)
    assert cpus_beside(first, topology, allowed) == (20, 21, 22, 23)
    assert cpus_beside(last, topology, allowed) == (24, 25, 26, 27, 72)
    write(root, {f"cg/a/{V2_AT}": "20"})
    assert cpus_beside(last, topology, allowed_cpus(root)) == ()


@LINUX
def test_without_any_file_the_cpus_are_those_of_this_thread(tmp_path: Path) -> None:
    """Without /proc and /sys what may be used is what is used already."""
    assert allowed_cpus(tmp_path) == bound_cpus()
    assert set(bound_cpus()) == os.sched_getaffinity(0)


# Asked for all CPUs that could be, the kernel gives those of the cpuset.
ASK = """
import os
from gpumap.detect.cpus import allowed_cpus, bound_cpus
allowed = allowed_cpus()
os.sched_setaffinity(0, {allowed[-1]})
print(*bound_cpus(), "of", *allowed_cpus())
os.sched_setaffinity(0, range(8192))
print(*sorted(os.sched_getaffinity(0)))
"""


def check(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Check a run of ASK against the kernel; return the CPUs that the kernel gave."""
    assert done.returncode == 0, done.stderr
    bound, given = done.stdout.splitlines()
    assert bound == f"{given.split()[-1]} of {given}"
    return given.split()


@LINUX
def test_this_kernel_allows_what_its_files_say() -> None:
    """What a process may use is what the kernel gives it, however it was bound."""
    assert check(run_python("-c", ASK))


@pytest.fixture
def cpuset_of_one() -> Generator[tuple[Path, int], None, None]:
    """Make a cpuset with the last of this process's CPUs."""
    top = Path("/sys/fs/cgroup/cpuset")
    cpus = allowed_cpus()
    if len(cpus) < 2 or not os.access(top / "cpuset.cpus", os.W_OK):
        pytest.skip("needs two CPUs, and a cpuset of cgroup v1 that may be written")
    folder = top / f"gpumap-test-{os.getpid()}"
    folder.mkdir()
    try:
        for name, text in (
            ("cpuset.mems", (top / "cpuset.mems").read_text()),
            ("cpuset.cpus", str(cpus[-1])),
        ):
            (folder / name).write_text(text)
        yield folder, cpus[-1]
    finally:
        folder.rmdir()


def test_this_kernel_allows_no_cpu_outside_a_cpuset(
    cpuset_of_one: tuple[Path, int],
) -> None:
    """In a cpuset with one CPU that one may be used, as the kernel agrees."""
    folder, cpu = cpuset_of_one
    enter = f"open({str(folder / 'tasks')!r}, 'w').write('0')"
    assert check(run_python("-c", enter + ASK)) == [str(cpu)]


@pytest.mark.skipif(not ONLINE.exists(), reason="no /sys to read")
def test_every_online_cpu_of_this_host_has_a_core() -> None:
    """The cores of this host are its online CPUs, each once, as Python counts them."""
    found = read_topology()
    cpus = [cpu for core in found.cores for cpu in core]
    assert len(set(cpus)) == len(cpus) == os.cpu_count()
    assert sorted(cpus) == list(parse_cpu_list(ONLINE.read_text()))

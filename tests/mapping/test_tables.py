"""Placements, devices and links as text."""

from gpumap.detect.rehearsal import machine
from gpumap.mapping.devices import Device, Link, Node, Tenant
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.tables import (
    device_table,
    link_name,
    link_table,
    placement_table,
)
from helpers.nodes import MIG, node


def test_a_link_table_is_what_nvidia_smi_prints() -> None:
    """A link table is the matrix of nvidia-smi, without its CPU column."""
    assert link_table(machine("rtx8000x4")).splitlines() == [
        "links   cuda:0  cuda:1  cuda:2  cuda:3",
        "cuda:0  X       NODE    SYS     NV2",
        "cuda:1  NODE    X       NV2     SYS",
        "cuda:2  SYS     NV2     X       NODE",
        "cuda:3  NV2     SYS     NODE    X",
    ]


def test_a_link_that_is_not_known_is_a_question_mark() -> None:
    """An unknown link is shown as a question mark."""
    n1 = node(3).model_copy(update={"links": (Link(a=0, b=2, xgmi=True),)})
    assert link_table(n1).splitlines()[1].split() == ["cuda:0", "X", "?", "XGMI"]
    assert link_name(Link(a=0, b=1)) == "?"


def test_a_place_that_the_launcher_does_not_tell_is_a_question_mark() -> None:
    """An unknown node rank or local rank is "?"; a card without a name is blank."""
    me = Launch(launcher="mine", rank=1, world_size=2)
    placed = Placement(
        launch=me, device=Device(kind="cuda", index=0), strategy="modulo", why="so"
    )
    assert placement_table([placed], lambda node_rank: f"n{node_rank}").split("\n") == [
        "rank  node  host  local_rank  device  name  why",
        "1     ?     n0    ?           cuda:0        so",
    ]


def test_devices_are_told_in_both_numberings() -> None:
    """A device table has both numbers, sizes in GiB, and no column of blanks only."""
    cards = (
        Device(kind="cuda", index=0, physical_index=3, total_memory=42505273344),
        Device(
            kind="cuda", index=1, physical_index=1, free_memory=2**30, utilization=0
        ),
    )
    assert device_table(Node(hostname="n1", devices=cards)).splitlines() == [
        "device  physical  memory    free     busy",
        "cuda:0  3         39.6 GiB",
        "cuda:1  1                   1.0 GiB  0 %",
    ]


def test_a_device_is_told_with_its_cpus_and_with_who_uses_it() -> None:
    """CPUs are ranges, as the kernel writes them; a tenant is a user and a process."""
    card = Device(
        kind="cuda",
        index=0,
        cpu_affinity=(0, 1, 2, 8),
        tenants=(Tenant(pid=7, user="ann", command="train.py"),),
    )
    assert device_table(Node(hostname="n1", devices=(card,))).splitlines() == [
        "device  CPUs   used by",
        "cuda:0  0-2,8  ann, pid 7 (train.py)",
    ]


def test_a_claim_is_told_from_a_use_and_an_idle_device_from_an_unknown_one() -> None:
    """Nobody uses a device without tenants; blank is one that was not asked about."""
    ann, bob = Tenant(pid=7, user="ann"), Tenant(pid=8, user="bob", claims=True)
    cards = (
        Device(kind="cuda", index=0, tenants=(ann, bob)),
        Device(kind="cuda", index=1, tenants=()),
        Device(kind="cuda", index=2, cpu_affinity=()),
    )
    assert device_table(Node(hostname="n1", devices=cards)).splitlines() == [
        "device  used by",
        "cuda:0  ann, pid 7; bob, pid 8 (claim)",
        "cuda:1  nobody",
        "cuda:2",
    ]


def test_a_slice_is_shown_with_its_gpu() -> None:
    """The last column of a MIG slice's row is the UUID of its GPU."""
    rows = device_table(MIG).splitlines()
    assert rows[0].endswith("slice of")
    assert rows[5].endswith("GPU-08279800-1cbe-a71d-f3e6-8f67e15ae54a")

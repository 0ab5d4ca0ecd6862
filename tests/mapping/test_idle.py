"""The strategy "idle": which devices are taken, and what is said if too few are."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import DeviceError, PlacementError
from gpumap.mapping.devices import Device, Node, Tenant
from gpumap.mapping.idle import idlest
from helpers.nodes import MIG, launch, node

GIB = 2**30
ANN = Tenant(pid=41, user="ann", command="python train.py", since="2026-11-28 14:02:11")
BOB = Tenant(pid=42, user="bob", since="2026-11-28 15:00:00", claims=True)


def used(one: Node, *tenants: tuple[Tenant, ...] | None, free: int = 3) -> Node:
    """Return the node with these tenants of its devices, and GiB free on each."""
    devices = tuple(
        device.model_copy(update={"tenants": mine, "free_memory": free * GIB})
        for device, mine in zip(one.devices, tenants, strict=True)
    )
    return one.model_copy(update={"devices": devices})


def with_free(*free: int | None) -> Node:
    """Return a node of idle devices with this much free memory, in GiB."""
    one = node(len(free))
    devices = tuple(
        device.model_copy(
            update={"tenants": (), "free_memory": None if x is None else x * GIB}
        )
        for device, x in zip(one.devices, free, strict=True)
    )
    return one.model_copy(update={"devices": devices})


def chosen(one: Node, count: int) -> list[int]:
    """Return the indices that are taken of all devices of a node."""
    found = idlest(launch(0, count), one.devices, one, count)
    return [device.index for device in found]


def test_the_devices_with_most_free_memory_are_taken_first() -> None:
    """Ranks get devices in the order of free memory; equal ones in that of indices."""
    assert chosen(with_free(5, 9, 7, 9), 4) == [1, 3, 2, 0]
    assert chosen(with_free(5, 9, 7, 9), 2) == [1, 3]


def test_a_device_that_is_described_without_free_memory_has_all_of_it_free() -> None:
    """Where no free memory is told, the total is free: here 1, 2 and 3 GiB."""
    assert chosen(with_free(None, None, None), 3) == [2, 1, 0]


def test_a_device_with_a_tenant_is_not_taken() -> None:
    """Neither a device in use nor one that is claimed is taken, whatever is free."""
    one = used(node(4), (ANN,), (), (BOB,), ())
    assert chosen(one, 2) == [1, 3]


def test_only_devices_of_the_pool_are_taken() -> None:
    """A device outside the pool is not taken, though it has more free memory."""
    one = with_free(5, 9, 7)
    pool = (one.devices[2], one.devices[0])
    assert idlest(launch(0, 2), pool, one, 2) == pool


@pytest.mark.parametrize(
    ("pool", "count", "taken"),
    [
        ([0, 0], 2, [0, 0]),
        ([1, 1, 0], 2, [0, 1]),
        ([1, 1, 0], 3, [0, 1, 1]),
        ([0, 2, 0, 2], 4, [2, 0, 2, 0]),
    ],
)
def test_a_device_that_the_pool_lists_twice_is_taken_twice_after_the_others(
    pool: list[int], count: int, taken: list[int]
) -> None:
    """Devices 0 and 1 have 5 GiB free, device 2 has 9."""
    one = with_free(5, 5, 9)
    devices = [one.devices[index] for index in pool]
    found = idlest(launch(0, count), devices, one, count)
    assert [device.index for device in found] == taken


def test_slices_are_taken_of_different_gpus_first() -> None:
    """Of MIG slices on GPUs a, a, a, b, b, two ranks get one on a and one on b."""
    one = used(MIG, (ANN,), (), (), (), ())
    assert chosen(one, 2) == [1, 3]
    assert chosen(one, 4) == [1, 3, 2, 4]


def test_too_few_idle_devices_are_an_error_that_names_their_users() -> None:
    """The error says how many were wanted, who has the others, since when."""
    with pytest.raises(PlacementError) as caught:
        chosen(used(node(3), (ANN,), (), (BOB,)), 2)
    assert str(caught.value).splitlines() == [
        'strategy "idle" wants 2 devices on n1, and 1 of 3 is idle.',
        "cuda:0 (GPU-a000n1…) is used by ann, pid 41 (python train.py), since "
        "2026-11-28 14:02:11; cuda:2 (GPU-a200n1…) is claimed by bob, pid 42, since "
        "2026-11-28 15:00:00.",
        "Start 1 on each node (torchrun --nproc-per-node 1), wait, or take devices "
        'whatever runs on them, with another strategy, for instance "local_rank".',
    ]


def test_without_any_idle_device_no_number_of_processes_is_advised() -> None:
    """If none is idle the error does not advise to start 0 processes."""
    with pytest.raises(PlacementError) as caught:
        chosen(used(node(1), (ANN, BOB)), 1)
    assert caught.value.happened == (
        'strategy "idle" wants 1 device on n1, and 0 of 1 are idle.'
    )
    assert " 14:02:11 and claimed by bob" in caught.value.seen
    assert caught.value.hint.startswith("Wait, or take devices")


def test_of_many_tenants_three_are_named() -> None:
    """A crowded device is told with three of its tenants and the number of others."""
    crowd = tuple(Tenant(pid=pid, user="ann") for pid in range(5))
    with pytest.raises(PlacementError) as caught:
        chosen(used(node(1), crowd), 1)
    assert caught.value.seen.endswith(
        "used by ann, pid 1 and used by ann, pid 2, and 2 more."
    )


def test_a_tenant_that_does_not_show_is_told_by_the_memory() -> None:
    """Of a process in another container, the free memory is all that is known."""
    one = used(node(4), (), (), (), (Tenant(),), free=1)
    with pytest.raises(PlacementError) as caught:
        chosen(one, 4)
    assert caught.value.seen == (
        "cuda:3 (GPU-a300n1…) is used by a process that does not show, perhaps in "
        "another container: 1.0 of 4.0 GiB are free."
    )


def test_more_processes_than_devices_are_an_error_though_all_are_idle() -> None:
    """If the node has too few devices, the error lists those that are there."""
    with pytest.raises(PlacementError) as caught:
        chosen(with_free(1, 1), 3)
    assert caught.value.happened.endswith("and 2 of 2 are idle.")
    assert caught.value.seen.startswith("Visible on n1: cuda:0")


def test_a_device_whose_tenants_are_unknown_is_an_error_that_names_the_extra() -> None:
    """Without NVML nobody can tell what is idle; the error says what to install."""
    with pytest.raises(DeviceError) as caught:
        chosen(used(node(2), (), None), 1)
    assert caught.value.happened == "who uses cuda:1 (GPU-a100n1…) on n1 is not known."
    assert "pip install gpumap-torch[nvml]" in caught.value.hint
    assert caught.value.hint.endswith(
        "A device that is described can be given its tenants: () for none."
    )


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Draw a node whose devices have any tenants and any free memory."""
    facts = st.tuples(
        st.sampled_from([(), (ANN,), (BOB,), (Tenant(),)]), st.integers(0, 4)
    )
    return Node(
        hostname="n1",
        devices=tuple(
            Device(kind="cuda", index=index, tenants=tenants, free_memory=free)
            for index, (tenants, free) in enumerate(draw(st.lists(facts, max_size=9)))
        ),
    )


@given(nodes(), st.integers(1, 9))
def test_what_is_taken_is_idle_and_no_idle_device_has_more_free_memory(
    one: Node, count: int
) -> None:
    """Taken devices are idle, differ and are sorted; left ones have no more memory."""
    idle = [device for device in one.devices if device.tenants == ()]
    if len(idle) < count:
        with pytest.raises(PlacementError):
            chosen(one, count)
        return
    taken = chosen(one, count)
    left = [device.index for device in idle if device.index not in taken]
    free = [one.devices[index].free_memory or 0 for index in taken + left]
    assert len(set(taken)) == count
    assert set(taken) <= {device.index for device in idle}
    assert free[:count] == sorted(free[:count], reverse=True)
    assert all(x <= free[count - 1] for x in free[count:])
    assert taken == chosen(Node.model_validate_json(one.model_dump_json()), count)


@given(nodes(), st.randoms(use_true_random=False))
def test_the_order_of_the_pool_does_not_matter(one: Node, random: Random) -> None:
    """The same devices in another order are taken in the same order."""
    idle = [device for device in one.devices if device.tenants == ()]
    pool = list(one.devices)
    random.shuffle(pool)
    count = len(idle)
    assert [d.index for d in idlest(launch(0, 1), pool, one, count)] == [
        d.index for d in idlest(launch(0, 1), one.devices, one, count)
    ]

"""The variables that tell a rank to a script, rule by rule."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import DeviceError, GpumapError, LaunchError, PlacementError
from gpumap.mapping.devices import CPU, Device
from gpumap.mapping.environment import RUN, environment
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.visibility import visible
from helpers.nodes import node

OWN = "write own=True (--own on the command line), which gives each rank its own alone."
LISTED = "The devices of this node's ranks, by local rank, are "
SECOND = Launch(
    launcher="Slurm",
    rank=6,
    world_size=7,
    local_rank=1,
    local_world_size=2,
    node_rank=2,
    num_nodes=3,
    master_addr="n1",
    master_port=29500,
)
"""The second of two ranks on the last of three uneven nodes."""
UNTOLD = Launch(
    launcher="torch variables",
    rank=1,
    world_size=2,
    master_addr="n1",
    master_port=29500,
)
"""A rank of which only env:// tells."""
CARDS = [Device(kind="cuda", index=index) for index in range(4)]
APPLES = [Device(kind="mps", index=index) for index in range(2)]


def exports(
    launch: Launch,
    device: Device,
    devices: Sequence[Device] = (),
    *,
    own: bool = False,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables of a rank that is placed on a device."""
    placed = Placement(launch=launch, device=device, strategy="explicit", why="")
    return environment(placed, launch, devices=devices, own=own, environ=environ or {})


def test_a_rank_of_several_nodes_gets_all_that_its_launcher_tells() -> None:
    """Every number and the address are the launcher's; the mask lists the node's."""
    assert exports(SECOND, CARDS[2], [CARDS[3], CARDS[2]]) == {
        "RANK": "6",
        "WORLD_SIZE": "7",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "2",
        "NODE_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
        "CUDA_VISIBLE_DEVICES": "3,2",
        "GPUMAP_RUN": "6/7 Slurm",
    }


def test_what_the_launcher_does_not_tell_is_not_made_up() -> None:
    """Of a rank that is known by env:// alone, no local or node number is set."""
    assert exports(UNTOLD, CARDS[2], own=True) == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
        "CUDA_VISIBLE_DEVICES": "2",
        "GPUMAP_RUN": "1/2 torch variables",
        "GPUMAP_LOCAL_RANK": "",
    }
    assert "LOCAL_RANK" not in exports(UNTOLD, CPU)


def test_its_own_device_alone_is_device_0() -> None:
    """With own the mask has one device, LOCAL_RANK is 0, and the node's size stays."""
    found = exports(SECOND, CARDS[2], own=True)
    assert found["CUDA_VISIBLE_DEVICES"] == "2"
    assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("0", "2")
    assert exports(SECOND, CARDS[2], [CARDS[2]] * 2, own=True) == found


def test_a_task_bound_to_its_own_devices_names_only_its_own() -> None:
    """Where the launcher binds tasks to devices, no mask of all of them is possible."""
    bound = SECOND.model_copy(update={"devices_bound": True})
    found = exports(bound, CARDS[0], environ={"CUDA_VISIBLE_DEVICES": "5"})
    assert found["CUDA_VISIBLE_DEVICES"] == "5"
    assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("0", "2")


@pytest.mark.parametrize("own", [False, True])
def test_on_the_cpu_there_is_no_mask(*, own: bool) -> None:
    """A rank on the CPU keeps its local rank, and every mask as it is."""
    found = exports(SECOND, CPU, own=own, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert found["LOCAL_RANK"] == "1"
    assert not [name for name in found if "DEVICES" in name or "MASK" in name]


def test_the_only_process_of_a_node_needs_no_list() -> None:
    """One process on its node is local rank 0, and its device the node's list."""
    alone = Launch(launcher="Flux", rank=1, world_size=2, local_world_size=1)
    far = alone.model_copy(update={"master_addr": "n1", "master_port": 1})
    found = exports(far, CARDS[3])
    assert (found["LOCAL_RANK"], found["CUDA_VISIBLE_DEVICES"]) == ("0", "3")
    single = Launch(launcher="single process", rank=0, world_size=1)
    assert exports(single, CARDS[3]) == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "CUDA_VISIBLE_DEVICES": "3",
        "GPUMAP_RUN": "0/1 single process",
    }


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"master_addr": "n7", "master_port": 29501}, ("127.0.0.1", "29501")),
        ({"master_addr": "::1", "master_port": 29501}, ("::1", "29501")),
        (
            {"master_addr": "n7", "master_port": 29501, "launcher": "torchrun"},
            ("n7", "29501"),
        ),
        ({"master_port": 29501}, ("127.0.0.1", "29501")),
        ({"master_addr": "n7", "world_size": 1}, (None, None)),
        ({"master_port": 29501, "world_size": 1}, ("127.0.0.1", "29501")),
    ],
)
def test_the_address_is_loopback_on_one_node(
    changed: dict[str, object], expected: tuple[str | None, str | None]
) -> None:
    """On one node it is loopback, where the ranks meet, whatever name was set.

    torchrun's stays: its agent listens there. A world of one that has no port meets
    nobody, and gets neither.
    """
    fields = {"launcher": "Open MPI", "rank": 0, "world_size": 2, **changed}
    size = fields["world_size"]
    launch = Launch.model_validate({**fields, "local_world_size": size})
    found = exports(launch, CPU)
    assert (found.get("MASTER_ADDR"), found.get("MASTER_PORT")) == expected


@pytest.mark.parametrize("rank", [0, 1])
def test_a_kind_without_masks_is_true_where_local_ranks_are_indices(rank: int) -> None:
    """Apple's devices have no mask; local rank n on device n needs none."""
    here = SECOND.model_copy(update={"rank": 5 + rank, "local_rank": rank})
    found = exports(here, APPLES[rank])
    assert found["LOCAL_RANK"] == f"{rank}"
    assert set(found) == {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("NODE_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", RUN),
    }


RENUMBER = (
    "Devices of the kind mps have no mask that would renumber them.",
    "Leave gpus=[…] and own out, so that each local rank has the device of its own "
    "number; or let the script ask gpumap.session() for its device.",
)
GIVE = f"Give devices=[…], those of all ranks on this node, by local rank; or {OWN}"


@pytest.mark.parametrize(
    ("launch", "device", "devices", "own", "error", "parts"),
    [
        (
            SECOND,
            CARDS[1],
            [],
            False,
            PlacementError,
            (
                "rank 6 is placed on cuda:1, and devices does not have that for its "
                "local rank, 1.",
                f"{LISTED}not given.",
                GIVE,
            ),
        ),
        (
            SECOND,
            CARDS[1],
            [CARDS[1], CARDS[0]],
            False,
            PlacementError,
            (
                "rank 6 is placed on cuda:1, and devices does not have that for its "
                "local rank, 1.",
                f"{LISTED}cuda:1, cuda:0.",
                GIVE,
            ),
        ),
        (
            SECOND,
            CARDS[1],
            [CARDS[1]],
            False,
            PlacementError,
            (
                "rank 6 is placed on cuda:1, and devices does not have that for its "
                "local rank, 1.",
                f"{LISTED}cuda:1.",
                GIVE,
            ),
        ),
        (
            SECOND,
            CARDS[1],
            [CARDS[1], CARDS[1]],
            False,
            PlacementError,
            (
                "CUDA_VISIBLE_DEVICES cannot name cuda:1 2 times, and so many of this "
                "node's ranks are placed on it.",
                f"{LISTED}cuda:1, cuda:1.",
                f"Give each rank a device of its own, or {OWN}",
            ),
        ),
        (
            SECOND,
            APPLES[0],
            APPLES,
            False,
            PlacementError,
            (
                "rank 6 is placed on mps:0, and a script that takes LOCAL_RANK for it "
                "would take mps:1.",
                *RENUMBER,
            ),
        ),
        (
            SECOND,
            APPLES[1],
            APPLES,
            True,
            PlacementError,
            (
                "rank 6 is placed on mps:1, and a script that takes LOCAL_RANK for it "
                "would take mps:0.",
                *RENUMBER,
            ),
        ),
        (
            SECOND.model_copy(update={"master_port": None}),
            CPU,
            [],
            False,
            LaunchError,
            (
                "rank 6 of 7 does not know where to meet the others: MASTER_PORT not "
                "set.",
                "Slurm: master_addr=n1, master_port=None.",
                "Set MASTER_PORT to the same value on every rank: rank 0's host, and a "
                "port free there, for instance 29500. torchrun sets them.",
            ),
        ),
    ],
    ids=["none", "other", "short", "twice", "mps", "mps own", "port"],
)
def test_what_cannot_be_true_is_an_error_that_says_what_to_do(
    launch: Launch,
    device: Device,
    devices: list[Device],
    own: bool,  # noqa: FBT001 - a column of the table
    error: type[GpumapError],
    parts: tuple[str, str, str],
) -> None:
    """Variables that would lead a script to another device are an error instead."""
    with pytest.raises(error) as caught:
        exports(launch, device, devices, own=own)
    assert (caught.value.happened, caught.value.seen, caught.value.hint) == parts


def test_an_error_names_the_rank_and_the_variables() -> None:
    """Errors carry the rank, or the variables to set, as attributes."""
    with pytest.raises(PlacementError) as placement:
        exports(SECOND, CARDS[1])
    assert placement.value.ranks == (6,)
    with pytest.raises(LaunchError) as launch:
        exports(SECOND.model_copy(update={"master_addr": None}), CPU)
    assert launch.value.variables == ("MASTER_ADDR",)


def test_a_rank_that_is_told_no_local_rank_has_its_device_alone() -> None:
    """cuda:0 is then this rank's, whatever the others of its node take."""
    found = exports(UNTOLD, CARDS[1], CARDS)
    assert (found["CUDA_VISIBLE_DEVICES"], found["LOCAL_RANK"]) == ("1", "0")
    assert found["GPUMAP_LOCAL_RANK"] == ""


def test_the_mask_that_is_set_now_says_what_indices_mean() -> None:
    """The entries are those of the mask that numbers the devices now."""
    environ = {"CUDA_VISIBLE_DEVICES": "7,GPU-a", "HOME": "/h"}
    with pytest.raises(DeviceError, match="cuda:2 is not one of the devices that CUDA"):
        exports(SECOND, CARDS[2], [CARDS[0], CARDS[2]], environ=environ)
    environ = {"CUDA_VISIBLE_DEVICES": "7,6,5"}
    found = exports(SECOND, CARDS[0], [CARDS[2], CARDS[0]], environ=environ)
    assert found["CUDA_VISIBLE_DEVICES"] == "5,7"


@given(order=st.permutations(range(8)), size=st.integers(1, 8), own=st.booleans())
def test_every_ranks_own_device_is_at_its_local_rank(
    order: list[int], size: int, *, own: bool
) -> None:
    """On every rank of a node, cuda:LOCAL_RANK under the mask is the rank's device."""
    full = node(8)
    devices = [full.devices[index] for index in order[:size]]
    masks: set[str] = set()
    for local_rank, device in enumerate(devices):
        here = Launch(
            launcher="torchrun",
            rank=local_rank,
            world_size=size,
            local_rank=local_rank,
            local_world_size=size,
            master_port=29500,
        )
        found = exports(here, device, devices, own=own)
        seen = visible(full, found).devices[int(found["LOCAL_RANK"])]
        assert seen.uuid == device.uuid
        masks.add(found["CUDA_VISIBLE_DEVICES"])
    assert len(masks) == (size if own else 1)

"""Which strategies are measured together: those that use the same devices."""

from collections.abc import Sequence

import pytest
from parts.agenda import Word, agenda
from parts.links import choice_of
from parts.options import Options

import gpumap


def words(options: Options, node: gpumap.Node, count: int) -> list[Word]:
    """Return the Word that each rank of one node would send."""
    launches = [
        gpumap.Launch(
            launcher="torchrun",
            rank=rank,
            world_size=count,
            local_rank=rank,
            local_world_size=count,
            node_rank=0,
            num_nodes=1,
        )
        for rank in range(count)
    ]
    return [
        Word(
            node=node,
            node_rank=0,
            placements={
                name: gpumap.place(launch, node, choice_of(name, options).strategy)
                for name in options.strategies
            },
            refused={},
        )
        for launch in launches
    ]


@pytest.mark.parametrize(
    ("ranks", "ways"),
    [
        # linked takes 0 and 3, with two NVLinks; the others 0 and 1, with one.
        (2, ["local_rank, modulo", "linked"]),
        # Of three, linked takes 0, 2 and 3; of all four there is no better set.
        (3, ["local_rank, modulo", "linked"]),
        (4, ["local_rank, modulo, linked"]),
    ],
)
def test_strategies_on_the_same_devices_are_measured_once(
    ranks: int, ways: Sequence[str]
) -> None:
    """Strategies that use the same devices of a DGX-1 share one table."""
    options = Options(strategies=("local_rank", "modulo", "linked"))
    said = words(options, gpumap.machine("dgx1-v100"), ranks)
    found = agenda(options, said, "nccl", "cuda")
    assert [way.name for way in found.ways] == ways


def test_hosts_tell_nodes_apart_where_the_launcher_does_not() -> None:
    """If the launcher, such as Open MPI, gives no node ranks, each host is a node."""
    options = Options(strategies=("local_rank",))
    machine = gpumap.machine("dgx1-v100")
    said = [
        word.model_copy(
            update={
                "node_rank": None,
                "node": machine.model_copy(update={"hostname": f"host{rank}"}),
            }
        )
        for rank, word in enumerate(words(options, machine, 2))
    ]
    [way] = agenda(options, said, "nccl", "cuda").ways
    [seating] = way.seatings
    assert seating.hosts == {0: "host0", 1: "host1"}
    assert [p.launch.node_rank for p in seating.placements] == [0, 1]
    assert seating.links == ()  # one device on each


def test_a_device_shared_where_no_rank_sees_it_is_left_out() -> None:
    """A strategy that puts two ranks of a node on one device is left out."""
    options = Options(strategies=("local_rank", "modulo"))
    machine = gpumap.machine("rtx3090x2")
    first, second = words(options, machine, 2)
    third = second.model_copy(
        update={
            "placements": {**second.placements, "modulo": first.placements["modulo"]}
        }
    )
    found = agenda(options, [first, third], "nccl", "cuda")
    assert found.refused == {"modulo": "two ranks share a device"}
    assert [way.name for way in found.ways] == ["local_rank"]


def test_a_strategy_that_not_every_rank_was_asked_for_is_left_out() -> None:
    """A strategy that rank 0 asks for and another rank does not know is left out."""
    options = Options(strategies=("local_rank", "modulo"))
    first, second = words(options, gpumap.machine("rtx3090x2"), 2)
    known = {"local_rank": second.placements["local_rank"]}
    second = second.model_copy(update={"placements": known})
    found = agenda(options, [first, second], "nccl", "cuda")
    assert found.refused == {"modulo": "not every rank was asked for it"}


def test_the_limits_of_accelerators_are_those_of_their_links() -> None:
    """A limit is that of the links: one NVLink of a V100 carries 20 GB/s, two 40."""
    options = Options(strategies=("local_rank", "linked"))
    found = agenda(
        options, words(options, gpumap.machine("dgx1-v100"), 2), "nccl", "cuda"
    )
    assert found.limits == {
        "a ring over NV1, by its class": 20.0,
        "a ring over NV2, by its class": 40.0,
    }


def test_on_a_cpu_all_strategies_use_the_same_device() -> None:
    """On a CPU all strategies are measured once, since they use the same device."""
    options = Options(strategies=("local_rank", "linked"))
    found = agenda(
        options, words(options, gpumap.machine("dgx1-v100"), 2), "gloo", "cpu"
    )
    assert len(found.ways) == 1
    assert [seating.strategies for seating in found.ways[0].seatings] == [
        ("local_rank",),
        ("linked",),
    ]
    assert set(found.limits) == {"memory copy", "loopback TCP"}

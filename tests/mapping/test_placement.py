"""The placement of one rank: strategies, pools and errors."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import DeviceError, LaunchError, PlacementError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.diagnostics import idle_devices
from gpumap.mapping.launch import Launch
from gpumap.mapping.plan import plan
from gpumap.mapping.policy import Gpus, Policy, Strategy
from gpumap.mapping.pool import Pool, place
from gpumap.notes import notes_of
from helpers.nodes import MIG, launch, node

if TYPE_CHECKING:
    from gpumap.mapping.device_refs import DeviceRef


def indices(
    n1: Node, processes: int, strategy: Strategy | None, **how: Any
) -> list[int]:
    """Return the device index of each local rank of one node."""
    return [
        place(launch(local_rank, processes), n1, strategy, **how).device.index
        for local_rank in range(processes)
    ]


def test_one_machine_explicit_ids() -> None:
    """With gpus=[2, 3], local rank 0 is on device 2 and local rank 1 on device 3."""
    assert indices(node(4), 2, "explicit", gpus=[2, 3]) == [2, 3]
    assert indices(node(4), 2, None, gpus=[3, 1]) == [3, 1]


def test_without_a_word_the_local_rank_is_the_index() -> None:
    """By default the device index is the local rank, as torchrun's users expect."""
    assert indices(node(4), 4, None) == [0, 1, 2, 3]
    assert place(launch(0, 1), node(1)).why == "local_rank: pool[local_rank]"


def test_rank_modulo_count() -> None:
    """The strategy "modulo" gives pool[rank % len(pool)], by the global rank."""
    fifth = launch(1, 4, node_rank=1)
    assert fifth.rank == 5
    assert place(fifth, node(4), "modulo").device.index == 1
    assert place(fifth, node(4), "modulo", gpus=[3, 2, 1]).device.index == 1


def test_scores_place_the_best_first() -> None:
    """Scores 100, 90, 80, 110 place local ranks 0 to 3 on devices 3, 0, 1, 2."""
    scores: dict[DeviceRef, float] = {0: 100, 1: 90, 2: 80, 3: 110}
    assert indices(node(4), 4, "scored", scores=scores) == [3, 0, 1, 2]
    assert indices(node(4), 4, None, scores=scores) == [3, 0, 1, 2]


def test_equal_scores_go_by_index_whatever_the_pools_order() -> None:
    """Devices of equal score are ordered by index, so that all ranks agree."""
    scores: dict[DeviceRef, float] = {0: 1, 1: 2, 2: 2}
    assert indices(node(3), 3, "scored", gpus=[2, 1, 0], scores=scores) == [1, 2, 0]


def test_scores_can_be_a_property_or_a_function() -> None:
    """Scores can be a property of the devices, or a function.

    Device i of node() has (i + 1) GiB and 100 - i multiprocessors.
    """
    assert indices(node(3), 3, "scored", scores="memory") == [2, 1, 0]
    assert indices(node(3), 3, "scored", scores="multiprocessors") == [0, 1, 2]
    assert indices(node(3), 3, "scored", scores=lambda d: -abs(d.index - 1)) == [
        1,
        0,
        2,
    ]


def test_a_users_own_function_maps() -> None:
    """A user's function can be the strategy, and may return any reference."""

    def zigzag(me: Launch, here: Node) -> int:
        local_rank = me.local_rank or 0
        last = len(here.devices) - 1
        return last - local_rank // 2 if local_rank % 2 else local_rank // 2

    assert indices(node(4), 4, zigzag) == [0, 3, 1, 2]
    assert place(launch(0, 4), node(4), zigzag).strategy == "zigzag"
    by_uuid = place(launch(0, 1), node(4), lambda _, here: here.devices[2])
    assert by_uuid.device.index == 2

    def always(index: int, _me: Launch, _here: Node) -> int:
        return index

    assert place(launch(0, 1), node(4), partial(always, 3)).strategy == "partial"


@pytest.mark.parametrize(
    ("fields", "index"),
    [
        ({"index": 3, "uuid": "GPU-a100n1", "free_memory": 5}, 1),
        ({"index": 2, "free_memory": 5}, 2),
    ],
)
def test_a_function_may_return_a_device_that_was_read_at_another_time(
    fields: dict[str, object], index: int
) -> None:
    """A device that a function returns is found by its UUID, or else by its index."""
    other = Device.model_validate({"kind": "cuda", **fields})
    placed = place(launch(0, 1), node(4), lambda *_: other)
    assert placed.device == node(4).devices[index]


def test_a_function_stays_within_gpus() -> None:
    """A function that returns a device outside gpus is an error."""
    with pytest.raises(PlacementError) as caught:
        place(launch(0, 2), node(4), lambda me, _: me.local_rank or 0, gpus=[2, 3])
    assert str(caught.value) == (
        'strategy "<lambda>" gave cuda:0 (GPU-a000n1…) for rank 0, which is not in '
        "gpus.\n"
        "The pool on n1 is cuda:2 (GPU-a200n1…), cuda:3 (GPU-a300n1…).\n"
        "Return one of these, or add it to gpus=[…]."
    )
    assert caught.value.ranks == (0,)


def test_a_different_list_on_each_node() -> None:
    """The argument gpus may map host names or node ranks to lists."""
    by_host: Gpus = {"n1": [0, 1], "n2": [2, 3]}
    by_rank: Gpus = {0: [0, 1], 1: [2, 3]}
    for gpus in (by_host, by_rank):
        first = place(launch(1, 2, node_rank=0), node(4, "n1"), gpus=gpus)
        second = place(launch(1, 2, node_rank=1), node(4, "n2.lab.org"), gpus=gpus)
        assert (first.device.index, second.device.index) == (1, 3)


def test_a_node_without_a_list_is_an_error() -> None:
    """The error for a node without a list names the node and the lists there are."""
    with pytest.raises(PlacementError) as caught:
        place(launch(0, 1, node_rank=2), node(4, "n3"), gpus={"n1": [0], "n2": [1]})
    assert caught.value.args == (
        "gpus has no list for node n3 (node_rank 2).",
        "It has lists for 'n1', 'n2'.",
        "Add gpus['n3'] or gpus[2].",
        (),
    )


def test_more_processes_than_devices_is_an_error_on_every_rank() -> None:
    """With more processes than devices, every rank raises, even one with a device."""
    for local_rank in range(4):
        with pytest.raises(PlacementError) as caught:
            place(launch(local_rank, 4), node(4), gpus=[2, 3])
        assert str(caught.value) == (
            "4 processes on n1 have 2 devices: local rank 2 and up would have none.\n"
            'strategy "explicit" gives gpus[local_rank]; the pool is '
            "cuda:2 (GPU-a200n1…), cuda:3 (GPU-a300n1…).\n"
            "Start 2 on each node (torchrun --nproc-per-node 2), or list 4 devices in "
            "gpus=[…]. To share one on purpose, list it more than once, with "
            'oversubscribe=True and backend="gloo".'
        )
        assert caught.value.ranks == (0, 1, 2, 3)


def test_fewer_processes_than_devices_named_is_said_with_the_command() -> None:
    """If devices stay idle, the command that would use all is shown."""
    pool = node(4).devices[:3]
    assert idle_devices(launch(0, 2), pool, node(4)) == (
        "2 of 3 devices on n1 will be used. To use all: torchrun --nproc-per-node 3"
    )
    assert idle_devices(launch(0, 3), pool, node(4)) is None


def test_an_index_never_contains_the_node_rank() -> None:
    """An index that counts node_rank in is out of range on the second node."""

    def usual_answer(me: Launch, here: Node) -> int:
        return (me.local_rank or 0) + (me.node_rank or 0) * len(here.devices)

    assert place(launch(1, 4, node_rank=0), node(4), usual_answer).device.index == 1
    with pytest.raises(DeviceError) as caught:
        place(launch(1, 4, node_rank=1), node(4, "n2"), usual_answer)
    assert str(caught.value) == (
        'strategy "usual_answer" gave 5 for rank 5 (node_rank 1, local_rank 1): there '
        "is no device 5 on n2.\n"
        "Visible on n2: cuda:0 (GPU-a000n2…), cuda:1 (GPU-a100n2…), "
        "cuda:2 (GPU-a200n2…), cuda:3 (GPU-a300n2…).\n"
        "A device index counts on its own node: it contains neither node_rank nor the "
        "global rank. Return launch.local_rank, or any index listed."
    )


def test_a_function_that_returns_a_list_is_an_error() -> None:
    """A function that returns a list instead of one device is an error."""
    with pytest.raises(DeviceError, match=r"gave \[0, 1\] for rank 0"):
        place(launch(0, 1), node(4), lambda *_: [0, 1])  # type: ignore[arg-type]


def test_no_launcher_is_one_process() -> None:
    """Without a launcher, the only process is on the first visible GPU."""
    alone = Launch(launcher="single process", rank=0, world_size=1)
    assert place(alone, node(1)).device.index == 0
    assert place(alone, node(8)).device.index == 0


def test_without_an_accelerator_a_rank_trains_on_the_cpu() -> None:
    """Without an accelerator a rank is on the CPU, even without a local rank."""
    me = Launch(launcher="torch variables", rank=1, world_size=2)
    placed = place(me, node(0))
    assert placed.device.kind == "cpu"
    assert placed.why == "no accelerator is visible on n1"


def test_naming_gpus_where_there_is_none_is_an_error() -> None:
    """Naming gpus on a host without any is an error, never a run on the CPU."""
    with pytest.raises(DeviceError, match="there is no device 2, 3 on n1") as caught:
        place(launch(0, 2), node(0), gpus=[2, 3])
    assert "GPUMAP_REHEARSAL=dgx-a100" in caught.value.hint


def test_bound_devices_are_the_first_of_the_tasks_own() -> None:
    """A task with bound devices takes the first, whatever its local rank."""
    for visible in (1, 2):
        mine = place(launch(3, 8, devices_bound=True), node(visible))
        assert mine.device.index == 0
        assert mine.why == "torchrun gave this process its own device"


def test_a_missing_local_rank_is_an_error_that_names_the_variable() -> None:
    """A missing local rank is an error; it is never derived from the global rank."""
    me = Launch(launcher="torch variables", rank=1, world_size=2)
    with pytest.raises(LaunchError) as caught:
        place(me, node(2))
    assert caught.value.variables == ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert place(me, node(2), "modulo").device.index == 1


@pytest.mark.parametrize("strategy", ["local_rank", "linked"])
def test_one_device_needs_no_local_rank(strategy: Strategy) -> None:
    """A rank that sees one device needs no local rank, as in Ray's actors and pods.

    Whether two ranks see the same one is compared in the roll call.
    """
    me = Launch(launcher="torch variables", rank=1, world_size=2)
    placed = place(me, node(1), strategy)
    assert placed.device.index == 0
    assert placed.why.startswith("it is the only device in reach; torch variables")
    conflict(me, node(1), Policy.of(strategy, None, None, oversubscribe=False))
    with pytest.raises(PlacementError, match="local rank 1 and up would have none"):
        place(me.model_copy(update={"local_rank": 1}), node(1))


def finds_nothing(launch: Launch, node: Node) -> Device:
    """Return the local rank's device, if it is among the first three."""
    return next(d for d in node.devices[:3] if d.index == launch.local_rank)


def test_a_function_whose_next_finds_nothing_does_not_end_a_loop() -> None:
    """StopIteration from a user's function becomes a PlacementError.

    Otherwise it would end list(plan) early, without an error.
    """
    ranks = plan([node(8)], [8], strategy=finds_nothing)
    with pytest.raises(PlacementError) as caught:
        list(ranks)
    assert caught.value.args == (
        "finds_nothing raised StopIteration for rank 3 (node_rank 0, local_rank 3).",
        "A next(…) in it found nothing.",
        "Give next() a default, or return a value in every case.",
        (),
    )
    with pytest.raises(PlacementError, match="raised StopIteration for cuda:0"):
        place(launch(0, 1), node(4), scores=lambda _: next(iter([])))


def test_an_error_of_a_users_function_says_for_which_rank() -> None:
    """An error from a user's function keeps its type, and gpumap notes the rank."""

    def looks_up(launch: Launch, _node: Node) -> int:
        return {0: 1}[launch.rank]

    with pytest.raises(KeyError) as caught:
        place(launch(1, 2), node(2), looks_up)
    assert caught.value.__notes__ == [
        "gpumap: raised by looks_up for rank 1 (node_rank 0, local_rank 1)"
    ]


VISIBLE = (
    "Visible on n1: cuda:0 (GPU-a000n1…), cuda:1 (GPU-a100n1…), cuda:2 (GPU-a200n1…), "
    "cuda:3 (GPU-a300n1…)."
)
IN_ORDER = "Write a list, in the order of the local ranks: gpus="
ONCE = (
    "List each device once. Sharing one needs oversubscribe=True and a backend that "
    "can (gloo)."
)
TOGETHER = 'strategy "scored" and scores=… belong together.'
HOW_TO_SCORE = 'Write strategy="scored", scores={0: 100, 1: 90}, or scores="memory".'
FINITE = "A score is a finite number; the highest is placed first."
# What was given, then the three parts of the error.
WRONG: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"strategy": "fastest"},
        "strategy 'fastest' is unknown.",
        "There are 'local_rank', 'explicit', 'modulo', 'scored', 'linked', 'idle', "
        "'closest'.",
        "Write one of these names, or a function (launch, node) -> device.",
    ),
    (
        {"strategy": "explicit"},
        'strategy "explicit" needs a list of devices.',
        "gpus is None.",
        "Add gpus=[…], for instance gpus=[2, 3].",
    ),
    (
        {"gpus": []},
        "gpus=[] leaves no device to train on.",
        VISIBLE,
        "List at least one, or leave gpus out to use all that are visible.",
    ),
    (
        {"gpus": 2},
        "gpus=2 is not a list of devices.",
        "Its type is int.",
        f"{IN_ORDER}[2].",
    ),
    (
        {"gpus": True},
        "gpus=True is not a list of devices.",
        "Its type is bool.",
        f"{IN_ORDER}[2, 3].",
    ),
    (
        {"gpus": "2,3"},
        "gpus='2,3' is not a list of devices.",
        "Its type is str.",
        f"{IN_ORDER}[2, 3].",
    ),
    (
        {"gpus": {0, 1}},
        "gpus={0, 1} is not a list of devices.",
        "Its type is set.",
        f"{IN_ORDER}[2, 3].",
    ),
    (
        {"gpus": {}},
        "gpus={} is not a list of devices.",
        "Its type is dict.",
        f"{IN_ORDER}[2, 3].",
    ),
    (
        {"gpus": [1, 0, 0]},
        "cuda:0 (GPU-a000n1…) is listed twice in gpus on n1.",
        "gpus=[1, 0, 0] has 3 entries for 2 devices.",
        ONCE,
    ),
    (
        {"gpus": [0, "GPU-a0"]},
        "cuda:0 (GPU-a000n1…) is listed twice in gpus on n1.",
        "gpus=[0, 'GPU-a0'] has 2 entries for 1 device.",
        ONCE,
    ),
    (
        {"strategy": "scored"},
        TOGETHER,
        "strategy is 'scored', scores is None.",
        HOW_TO_SCORE,
    ),
    (
        {"strategy": "modulo", "scores": {0: 1}},
        TOGETHER,
        "strategy is 'modulo', scores is {0: 1}.",
        HOW_TO_SCORE,
    ),
    (
        {"scores": {0: 1, 1: 1}},
        "cuda:2 (GPU-a200n1…), cuda:3 (GPU-a300n1…) has no score.",
        "scores={0: 1, 1: 1} covers 2 of 4 devices in the pool.",
        "Add a score for each, or name the pool with gpus=[…].",
    ),
    *(
        (
            {"scores": {0: score}, "gpus": [0]},
            f"{score!r} is not a score.",
            f"scores={{0: {score!r}}}.",
            FINITE,
        )
        for score in (float("nan"), True, 10**400, "9")
    ),
    (
        {"scores": {0: 1, "GPU-a000n1": 2}, "gpus": [0]},
        "a device has two scores.",
        "scores={0: 1, 'GPU-a000n1': 2} names 1 device.",
        "Name each device once, by index or by UUID.",
    ),
    (
        {"scores": "speed"},
        "scores='speed' is not understood.",
        "",
        'Write {device: number}, "memory", "multiprocessors" or a function.',
    ),
    (
        {"oversubscribe": "no"},
        "oversubscribe='no' is neither True nor False.",
        "Its type is str.",
        "Write oversubscribe=True where two ranks may share a device.",
    ),
]


@pytest.mark.parametrize(
    ("how", "happened", "seen", "hint"),
    WRONG,
    # mutmut names cases by their ids, and finds those in ASCII alone.
    ids=lambda value: "" if isinstance(value, str) else str(value)[:40],
)
def test_wrong_input_is_told_what_to_write(
    how: dict[str, Any], happened: str, seen: str, hint: str
) -> None:
    """The error for a wrong argument says what is wrong, what was seen, what to do."""
    with pytest.raises((PlacementError, DeviceError)) as caught:
        place(launch(0, 1), node(4), **how)
    assert caught.value.args[:3] == (happened, seen, hint)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"gpus": [-1]}, "-1 is not a device index."),
        ({"gpus": [1.0]}, "1.0 is not a device."),
        ({"gpus": [True]}, "True is not a device."),
        ({"gpus": [[0, 1]]}, "[0, 1] stands where one device belongs."),
        ({"scores": {7: 1}}, "there is no device 7 on n1."),
    ],
)
def test_a_device_that_is_none_is_an_error_wherever_it_is_named(
    how: dict[str, Any], said: str
) -> None:
    """A reference that names no device is an error, in gpus and in scores."""
    with pytest.raises(DeviceError) as caught:
        place(launch(0, 1), node(4), **how)
    assert caught.value.happened == said


@pytest.mark.parametrize("scores", ["memory", {0: 1.0}, {"cpu": 1.0, 0: 1.0}])
def test_scores_of_devices_where_there_is_none_are_an_error(scores: Any) -> None:
    """On a host without devices, scores of anything but the CPU are an error."""
    placed = place(launch(0, 1), node(0), scores={"cpu": 1.0})
    assert placed.device.kind == "cpu"
    with pytest.raises(DeviceError) as caught:
        place(launch(0, 1), node(0), scores=scores)
    assert caught.value.args == (
        'strategy "scored" has no device to choose from.',
        "No accelerator is visible on n1.",
        "Start where an accelerator is visible, or with GPUMAP_REHEARSAL=dgx-a100.",
    )


@pytest.mark.parametrize(
    ("processes", "gpus", "instead"),
    [
        (2, [3], "list one for each process, gpus=[3, 3]"),
        (8, [0, 1, 3], "list one for each process, gpus=[0, 1, 3, 0, 1, 3, 0, 1]"),
        (9, [0, 1, 3], "list 9 devices in gpus=[…]"),
    ],
)
def test_who_shares_on_purpose_is_told_the_list(
    processes: int, gpus: list[int], instead: str
) -> None:
    """With oversubscribe=True the hint shows the list to write, if it has at most 8."""
    here = launch(0, processes, world_size=2 * processes)
    with pytest.raises(PlacementError) as caught:
        place(here, node(4), gpus=gpus, oversubscribe=True)
    count = len(gpus)
    devices = "device" if count == 1 else "devices"
    assert caught.value.happened == (
        f"{processes} processes on n1 have {count} {devices}: local rank {count} and "
        "up would have none."
    )
    assert caught.value.hint == (
        f"Start {count} on each node (torchrun --nproc-per-node {count}), or {instead}."
    )
    assert caught.value.ranks == ()


def test_the_last_device_is_for_the_last_local_rank() -> None:
    """A local rank beyond the last device is an error, even without a local size."""
    me = Launch(launcher="torch variables", rank=3, world_size=4, local_rank=1)
    assert place(me, node(2)).device.index == 1
    with pytest.raises(PlacementError, match="2 processes on n1 have 1 device: "):
        place(me, node(1))


def conflict(me: Launch, n1: Node, policy: Policy, *, can_share: bool = False) -> None:
    """Check that no two ranks of this node share a device."""
    pool = Pool.of(policy, n1, me)
    pool.refuse_conflicts(me, "gloo" if can_share else "nccl")


def test_two_ranks_on_one_device_are_named_with_what_would_fix_it() -> None:
    """Two ranks on one device are an error, the same on every rank, with a hint."""
    policy = Policy.of("modulo", None, None, oversubscribe=False)
    for local_rank in range(4):
        with pytest.raises(PlacementError) as caught:
            conflict(launch(local_rank, 4), node(2), policy)
        assert str(caught.value) == (
            "rank 0 and rank 2 are both placed on cuda:0 (GPU-a000n1…) on host n1.\n"
            'strategy "modulo" gives pool[rank % 2] for 4 local ranks.\n'
            "Start 2 processes per node (torchrun --nproc-per-node 2), or list 4 "
            "devices in gpus=[…]."
        )
        assert caught.value.ranks == (0, 2)


def test_a_conflict_on_an_uneven_second_node_is_found_there() -> None:
    """A conflict on the second of two uneven nodes names its global ranks."""
    policy = Policy.of("modulo", None, None, oversubscribe=False)
    me = launch(1, 3, node_rank=1, rank=5, world_size=7)
    with pytest.raises(PlacementError, match="rank 4 and rank 6 are both placed"):
        conflict(me, node(2), policy)


def test_cyclic_ranks_that_meet_are_found_where_the_launcher_lists_them() -> None:
    """Conflicts of cyclic ranks are found if the launcher lists the node's ranks."""
    cyclic = launch(1, 2, rank=2, world_size=4).model_copy(
        update={"launcher": "Slurm", "node_ranks": (0, 2)}
    )
    policy = Policy.of("modulo", None, None, oversubscribe=False)
    with pytest.raises(PlacementError) as caught:
        conflict(cyclic, node(2), policy)
    assert caught.value.happened == (
        "rank 0 and rank 2 are both placed on cuda:0 (GPU-a000n1…) on host n1."
    )
    assert 'strategy="local_rank"' in caught.value.hint


def test_a_function_that_gives_all_ranks_one_device_is_a_conflict() -> None:
    """A function that returns one device for all ranks is a conflict."""
    policy = Policy.of(lambda *_: 0, None, None, oversubscribe=False)
    with pytest.raises(PlacementError, match="rank 0 and rank 1 are both placed"):
        conflict(launch(1, 2), node(2), policy)


@pytest.mark.parametrize("local_rank", [0, 1])
def test_slices_of_one_gpu_are_refused_for_nccl_alone(local_rank: int) -> None:
    """Two ranks on MIG slices of one GPU are refused for NCCL, not for gloo."""
    policy = Policy.of(None, None, None, oversubscribe=False)
    conflict(launch(local_rank, 2), MIG, policy, can_share=True)
    with pytest.raises(PlacementError) as caught:
        conflict(launch(local_rank, 2), MIG, policy)
    assert caught.value.ranks == (0, 1)
    assert str(caught.value) == (
        "rank 0 and rank 1 are on MIG slices of one GPU, "
        "GPU-0aa11ebd-627f-af3f-1a0d-4e1fd92fd7b0, on host a100-mig.\n"
        "NCCL refuses two ranks on one GPU, slices of it included.\n"
        "Give each rank a slice of a GPU of its own, of which there are 2: "
        'gpus=[0, 3]; or choose backend="gloo".'
    )


def test_of_slices_only_one_of_each_gpu_can_be_idle() -> None:
    """All MIG slices of one GPU count as one device that may be idle."""
    pair = [MIG.devices[0], MIG.devices[3]]
    assert idle_devices(launch(0, 2), pair, MIG) is None
    told = idle_devices(launch(0, 1), MIG.devices, MIG)
    assert told == (
        "1 of 2 devices on a100-mig will be used. "
        "To use all: torchrun --nproc-per-node 2"
    )


def test_slices_of_two_gpus_go_together() -> None:
    """Ranks on MIG slices of two GPUs are no conflict; UUIDs may be shortened."""
    gpus = ["MIG-703f", "MIG-3b12da37-7fa2-596c-8655-62dab88f0b64"]
    policy = Policy.of(None, gpus, None, oversubscribe=False)
    conflict(launch(1, 2), MIG, policy)
    assert place(launch(1, 2), MIG, gpus=gpus).device.physical_index == 1


def test_more_ranks_than_devices_is_a_conflict_in_any_distribution() -> None:
    """More local ranks than devices is a conflict, even if the ranks are unknown."""
    me = launch(0, 4, rank=0, world_size=8).model_copy(update={"node_ranks": None})
    policy = Policy.of("modulo", None, None, oversubscribe=False)
    with pytest.raises(
        PlacementError, match="4 local ranks share 2 devices on host n1"
    ):
        conflict(me, node(2), policy)


def test_sharing_is_for_backends_that_can() -> None:
    """With oversubscribe=True, sharing a device is an error for NCCL, not for gloo."""
    policy = Policy.of("modulo", None, None, oversubscribe=True)
    conflict(launch(3, 4), node(2), policy, can_share=True)
    with pytest.raises(PlacementError, match="cannot run two ranks on one device"):
        conflict(launch(3, 4), node(2), policy, can_share=False)
    twice = Policy.of("explicit", [0, 0], None, oversubscribe=True)
    conflict(launch(1, 2), node(2), twice, can_share=True)


def test_bound_tasks_are_left_to_the_roll_call() -> None:
    """Tasks with bound devices are compared in the roll call, not before."""
    policy = Policy.of(None, None, None, oversubscribe=False)
    conflict(launch(1, 2, devices_bound=True), node(1), policy)


@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from(["local_rank", "explicit", "modulo"]),
    st.randoms(use_true_random=False),
)
def test_a_placement_that_passes_uses_no_device_twice(
    devices: int, processes: int, strategy: Any, random: Any
) -> None:
    """Every rank is placed on its own device of the pool, or every rank is refused."""
    gpus = random.sample(range(devices), random.randint(1, devices))
    policy = Policy.of(strategy, gpus, None, oversubscribe=False)
    placed: list[Device] = []
    refused = 0
    for local_rank in range(processes):
        me = launch(local_rank, processes)
        try:
            conflict(me, node(devices), policy)
            placed.append(place(me, node(devices), strategy, gpus=gpus).device)
        except PlacementError:
            refused += 1
    if refused:
        assert refused == processes
        assert processes > len(gpus)
    else:
        assert [d.index for d in placed] == gpus[:processes]


@dataclass(frozen=True)
class FrozenError(Exception):
    """An error on which add_note fails, since it is frozen."""

    code: int


def test_an_error_of_a_users_function_says_for_whom_it_was_called() -> None:
    """An error from a user's function notes the rank, even if the error is frozen."""

    def choose(_launch: Launch, _node: Node) -> int:
        raise FrozenError(3)

    with pytest.raises(FrozenError) as caught:
        place(launch(1, 2), node(2), choose)
    assert notes_of(caught.value) == [
        "gpumap: raised by choose for rank 1 (node_rank 0, local_rank 1)"
    ]

"""The devices that a policy allows on one node, and how ranks share them out."""

from collections import Counter
from typing import Any

import pytest

from gpumap.detect.rehearsal import machine
from gpumap.errors import DeviceError, LaunchError, PlacementError
from gpumap.mapping.devices import Device, Node, Tenant
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Policy, pool_named
from gpumap.mapping.pool import Pool, can_share
from gpumap.mapping.visibility import mask_of
from helpers.nodes import launch, node


def pool(n1: Node, me: Launch, **asked: Any) -> Pool:
    """Return the pool of a policy with these arguments."""
    wanted = {"strategy": None, "gpus": None, "scores": None, "oversubscribe": False}
    return Pool.of(Policy.of(**(wanted | asked)), n1, me)


def test_a_users_scores_are_asked_once_for_each_device() -> None:
    """To place, check and warn, a user's function scores each device only once."""
    asked: Counter[int] = Counter()

    def score(device: Device) -> float:
        asked[device.index] += 1
        return device.index

    me = launch(0, 4)
    dealt = pool(node(4), me, scores=score)
    assert [dealt.place(one).device.index for one in me.neighbours] == [3, 2, 1, 0]
    dealt.refuse_conflicts(me, "nccl")
    dealt.warnings(me)
    assert asked == {0: 1, 1: 1, 2: 1, 3: 1}
    assert dealt.scores == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}
    assert pool(node(4), me).scores == {}


def test_idle_devices_and_doubts_are_those_of_the_policy() -> None:
    """Idle devices and warnings concern the policy's pool, not the whole node."""
    n1, me = machine("rtx8000x4"), launch(0, 2)
    dealt = pool(n1, me, gpus=[1, 0, 2])
    assert dealt.idle(me) == (
        "2 of 3 devices on rtx8000x4 will be used. "
        "To use all: torchrun --nproc-per-node 3"
    )
    [sentence] = dealt.warnings(me)
    assert sentence.startswith("cuda:1, cuda:0 reach each other through NODE at best")
    assert "write gpus=[1, 2]," in sentence
    assert pool(n1, me, gpus=[0, 3]).warnings(me) == []
    on_cpu = pool(Node(hostname="n1"), me)
    assert (on_cpu.idle(me), on_cpu.warnings(me)) == (None, [])
    [blind] = pool(node(3), me, strategy="linked").warnings(me)
    assert blind.startswith('strategy "linked" knows no link of n1')


def test_the_devices_of_a_node_are_known_as_far_as_its_ranks_are() -> None:
    """The devices in use on a node are known as far as its ranks are known."""
    me = Launch(
        launcher="Open MPI", rank=4, world_size=8, local_rank=0, local_world_size=2
    )
    assert [d.index for d in pool(node(4), me).devices_here(me)] == [0, 1]
    by_rank = pool(node(4), me, strategy="modulo")
    assert [d.index for d in by_rank.devices_here(me)] == [0]
    bound = me.model_copy(update={"devices_bound": True})
    assert [d.index for d in pool(node(4), bound).devices_here(bound)] == [0]
    known = launch(0, 3, node_rank=0)
    modulo = pool(node(4), known, strategy="modulo")
    assert [d.index for d in modulo.devices_here(known)] == [0, 1, 2]


def test_sharing_is_refused_in_words_that_fit_the_backend() -> None:
    """A refusal to share suggests oversubscribe=True for gloo, not for NCCL."""
    me = launch(0, 2)
    both = pool(node(2), me, strategy=lambda *_: 1)
    ends = {"nccl": '"local_rank".', "gloo": "share with oversubscribe=True."}
    for backend, end in ends.items():
        with pytest.raises(PlacementError) as caught:
            both.refuse_conflicts(me, backend)
        assert caught.value.happened == (
            "rank 0 and rank 1 are both placed on cuda:1 (GPU-a100n1…) on host n1."
        )
        assert caught.value.hint.startswith("Give each local rank a device of its own")
        assert caught.value.hint.endswith(end)
        assert caught.value.ranks == (0, 1)
    shared = pool(node(2), me, gpus=[1, 1], oversubscribe=True)
    shared.refuse_conflicts(me, "gloo")
    with pytest.raises(PlacementError) as caught:
        shared.refuse_conflicts(me, "cuda:nccl,cpu:gloo")
    assert caught.value.args == (
        "oversubscribe=True, and the backend cannot run two ranks on one device.",
        "NCCL and its kin want a device for each rank, MIG slices of one GPU included.",
        'Leave it out, or choose backend="gloo". From NCCL 2.30 on, '
        "NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks share a GPU.",
        (),
    )
    told = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    shared.refuse_conflicts(me, "nccl", told)
    assert [can_share(name, told) for name in ("nccl", "hccl")] == [True, False]
    assert [can_share(name) for name in ("gloo", "mpi", "nccl", "xccl", "hccl")] == [
        *[True, True],
        *[False, False, False],
    ]


def test_a_local_rank_that_nobody_tells_is_asked_for() -> None:
    """A choice of several devices without a local rank is a LaunchError."""
    lost = Launch(launcher="mine", rank=1, world_size=4)
    with pytest.raises(LaunchError) as caught:
        pool(node(4), lost).place(lost)
    assert caught.value.args == (
        "which GPU rank 1 trains on depends on its local rank, and the launcher does "
        "not say it.",
        "mine: rank=1, world_size=4, no local_rank.",
        "Set LOCAL_RANK and LOCAL_WORLD_SIZE for each process, or start with torchrun, "
        "which does; or pass launch=gpumap.Launch(…) with local_rank and "
        "local_world_size.",
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    )
    alone = Launch(launcher="mine", rank=0, world_size=1)
    assert pool(node(4), alone).place(alone).device.index == 0


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (4, "A device index counts on its own node: it contains neither node_rank nor"),
        ("GPU-nope", "Return an index, a UUID or a PCI bus ID of a device listed."),
    ],
)
def test_a_function_that_names_no_device_is_told_for_whom(
    answer: int | str, hint: str
) -> None:
    """If a function returns no device, the error has its value and the rank."""
    me = launch(1, 2, node_rank=0)
    with pytest.raises(DeviceError) as caught:
        pool(node(4), me, strategy=lambda *_: answer).place(me)
    assert caught.value.happened.startswith(
        f'strategy "<lambda>" gave {answer!r} for rank 1 (node_rank 0, local_rank 1): '
        "there is no device"
    )
    assert caught.value.hint.startswith(hint)


def test_the_environment_names_the_pool_of_a_session_that_names_none() -> None:
    """GPUMAP_GPUS names the pool, unless the session's own list does."""
    assert pool_named(None, {"GPUMAP_GPUS": "2, GPU-5c"}) == [2, "GPU-5c"]
    assert pool_named([1], {"GPUMAP_GPUS": "2"}) == [1]
    assert pool_named(None, {"GPUMAP_GPUS": ""}) is None
    assert pool_named(None, {}) is None
    with pytest.raises(DeviceError) as caught:
        pool_named(None, {"GPUMAP_GPUS": "2,,3"})
    assert caught.value.args == (
        "'2,,3' has an empty entry.",
        "",
        "Write 2,3 or GPU-5c3a,GPU-77.",
    )


def test_the_mask_of_a_node_is_the_last_to_act() -> None:
    """The mask of a node is the last one applied: on AMD HIP's, within ROCR's."""
    amd = Device(kind="cuda", index=0, rocm=True)
    environ = {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}
    assert mask_of(Node(hostname="n1", devices=(amd,)), environ) == (
        "HIP_VISIBLE_DEVICES",
        "0",
    )
    assert mask_of(node(1), environ) is None
    assert mask_of(node(1), {"CUDA_VISIBLE_DEVICES": "3"}) == (
        "CUDA_VISIBLE_DEVICES",
        "3",
    )


def test_a_pool_that_was_dealt_is_by_local_rank_whatever_the_strategy() -> None:
    """What one rank has decided for its node counts, also for a user's function."""
    n1, me = node(4), launch(1, 2)
    for strategy in ("modulo", lambda _, __: 0, "local_rank"):
        asked = Policy.of(strategy, None, None, oversubscribe=False)
        dealt = Pool.dealt(asked, n1, me, [3, "GPU-a2"])
        assert dealt.place(me).device.index == 2
        assert [d.index for d in dealt.devices_here(me)] == [3, 2]
        assert len(dealt.allowed) == 4
        assert str(dealt.idle(me)).startswith("2 of 4 devices")
    asked = Policy.of("modulo", None, None, oversubscribe=False)
    assert Pool.dealt(asked, Node(hostname="n1"), me, []).place(me).device.kind == "cpu"


def test_a_device_that_was_dealt_and_is_not_visible_is_an_error() -> None:
    """Ranks of a node with different masks are told which device is missing."""
    asked = Policy.of("modulo", None, None, oversubscribe=False)
    with pytest.raises(DeviceError, match="there is no device 'GPU-ff' on n1"):
        Pool.dealt(asked, node(2), launch(0, 2), ["GPU-ff"])


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        ({"strategy": "modulo"}, "never"),
        ({"scores": "memory"}, "never"),
        ({"scores": {0: 1}}, "never"),
        ({"scores": lambda _: 1}, "maybe"),
        ({"strategy": lambda _, __: 0}, "maybe"),
        ({"strategy": "idle"}, "maybe"),
        ({"strategy": "closest"}, "maybe"),
    ],
)
def test_what_may_change_while_ranks_look_is_known(
    asked: dict[str, Any], changes: str
) -> None:
    """Functions may read anything; numbers and properties stay."""
    wanted = {"strategy": None, "gpus": None, "scores": None, "oversubscribe": False}
    assert Policy.of(**(wanted | asked)).varies is (changes == "maybe")


def test_closest_needs_the_cpus_of_every_process_of_the_node() -> None:
    """Without them, or with those of another number of processes, it says so."""
    cards = tuple(
        Device(kind="cuda", index=n, cpu_affinity=(2 * n, 2 * n + 1)) for n in range(2)
    )
    n1, me = Node(hostname="n1", devices=cards), launch(0, 2)
    bound = me.model_copy(update={"node_cpus": ((2, 3), (0, 1))})
    assert [d.index for d in pool(n1, bound, strategy="closest").devices] == [1, 0]
    short = me.model_copy(update={"node_cpus": ((2, 3),)})
    for missing in (me, short):
        with pytest.raises(LaunchError, match='strategy "closest" depends on the CPUs'):
            pool(n1, missing, strategy="closest")


def test_idle_wants_a_device_for_each_process_of_the_node() -> None:
    """Two processes get the two that nothing runs on, most free memory first."""
    cards = tuple(
        Device(kind="cuda", index=n, free_memory=n, tenants=tenants)
        for n, tenants in enumerate([(), (Tenant(pid=1),), (), ()])
    )
    dealt = pool(Node(hostname="n1", devices=cards), launch(0, 2), strategy="idle")
    assert [d.index for d in dealt.devices] == [3, 2]
    unknown = launch(0, 2).model_copy(update={"local_world_size": None})
    with pytest.raises(LaunchError, match='strategy "idle" depends on the number'):
        pool(Node(hostname="n1", devices=cards), unknown, strategy="idle")

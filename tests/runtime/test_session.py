"""Sessions in real processes, over gloo on the CPU."""

import copy
import inspect
import json
import multiprocessing
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gpumap
from gpumap.errors import DeviceError, SessionError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Policy
from gpumap.mapping.pool import Pool
from gpumap.runtime.local_setup import prepare
from gpumap.runtime.placed import Decided
from gpumap.runtime.session_options import SessionOptions
from helpers import spawnjobs
from helpers.jobs import WORKER, Ended, finish, free_port, run, start
from helpers.pretended import pretend_torch
from helpers.programs import run_python

REHEARSAL = {"GPUMAP_REHEARSAL": "dgx-a100"}


def test_a_process_of_multiprocessing_with_an_address_and_no_rank_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child of multiprocessing with a MASTER_ADDR and no RANK is refused.

    Two of mp.spawn's processes would each be rank 0 of 1 on the first device.
    """
    context = multiprocessing.get_context("spawn")
    results = context.Queue()

    def result(group: str = "alone") -> Any:
        process = context.Process(target=spawnjobs.opens_alone, args=(results, group))
        process.start()
        found = results.get(timeout=60)
        process.join()
        return found

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29841")
    refusal = result()
    assert refusal.startswith("this process has an address to meet others at, and no")
    assert "gpumap.spawn(function, …)" in refusal
    # A group that exists already tells the rank.
    assert result("in a group") == 1
    monkeypatch.setenv("GPUMAP_LAUNCHER", "none")
    assert result() == 1
    monkeypatch.delenv("GPUMAP_LAUNCHER")
    monkeypatch.delenv("MASTER_PORT")
    assert result() == 1


def ended_well(ended: list[Ended]) -> list[str]:
    """Return the outputs of ranks that all ended with code 0."""
    assert [rank.code for rank in ended] == [0] * len(ended), ended
    return [rank.out for rank in ended]


def all_failed(ended: list[Ended]) -> list[str]:
    """Return the outputs of ranks that all ended with an uncaught exception."""
    assert [rank.code for rank in ended] == [1] * len(ended), ended
    return [rank.out for rank in ended]


def test_two_ranks_train_by_torchs_own_variables() -> None:
    """Gradients are averaged: inputs 0 and 1, four rows each, give 2."""
    for rank, out in enumerate(ended_well(run("train"))):
        assert f"rank={rank} world=2 device=cpu mapped=cpu:0" in out
        assert "grad=[[2.0, 2.0]]" in out
        assert "initialized = False" in out


def test_gloo_on_the_cpu_by_env_needs_no_local_rank() -> None:
    """On the CPU the variables of torch's env:// are enough, without LOCAL_RANK."""
    bare = {"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}
    for out in ended_well(run("train", every=bare)):
        assert "grad=[[2.0, 2.0]]" in out


def test_without_variables_it_is_a_single_process_and_no_port() -> None:
    """A single process is wrapped in DDP too, and only gloo listens, on loopback."""
    [alone] = finish([start("alone", {})])
    assert "world 1 DistributedDataParallel" in ended_well([alone])[0]
    assert re.search(r"listens \['127\.0\.0\.1:\d+'\]", alone.out)


def test_one_gpu_and_one_process() -> None:
    """A single process whose mask has one GPU is on cuda:0 (in rehearsal)."""
    [one] = finish([start("train", {**REHEARSAL, "CUDA_VISIBLE_DEVICES": "5"})])
    assert "world=1 device=cpu mapped=cuda:0" in ended_well([one])[0]
    assert "rehearsal of dgx-a100: no GPU is used" in one.out


def test_the_options_of_a_session_are_the_same_wherever_they_are_declared() -> None:
    """session(), ddp_session() and SessionOptions declare the same options.

    Only ddp_session() has balance, since it wraps the model whose gradients it weighs.
    """
    options = [
        (n, p.default) for n, p in inspect.signature(gpumap.session).parameters.items()
    ]
    of_ddp = inspect.signature(gpumap.ddp_session).parameters.items()
    assert [(name, p.default) for name, p in of_ddp][1:-2] == options
    declared = inspect.signature(SessionOptions).parameters.items()
    assert [(name, p.default) for name, p in declared][:-2] == options


def test_under_torchrun_the_agents_store_is_used() -> None:
    """Under torchrun two ranks meet and get the devices of their explicit gpus."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    environ = {**REHEARSAL, "GPUS": "2,3"}
    done = run_python(*torchrun, str(WORKER), "explicit", environ=environ)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"mapped cuda:(\d)", done.stdout)) == ["2", "3"]


def test_more_processes_than_devices_fail_on_every_rank() -> None:
    """More processes than devices are a PlacementError on every rank."""
    for out in all_failed(run("explicit", 3, every={**REHEARSAL, "GPUS": "2,3"})):
        assert "PlacementError: 3 processes on dgx-a100 have 2 devices" in out


def test_two_ranks_on_one_device_fail_on_every_rank() -> None:
    """Two ranks on one device are a PlacementError on every rank."""
    every = {**REHEARSAL, "CUDA_VISIBLE_DEVICES": "2,3"}
    for out in all_failed(run("modulo", 4, every=every)):
        assert "PlacementError: rank 0 and rank 2 are both placed on cuda:0" in out


def test_physical_numbers_under_a_mask_fail_on_every_rank() -> None:
    """Physical numbers in gpus under a mask are an error that says what to write."""
    every = {**REHEARSAL, "CUDA_VISIBLE_DEVICES": "2,3", "GPUS": "2,3"}
    for out in all_failed(run("explicit", every=every)):
        assert "DeviceError: there is no device 2, 3 on dgx-a100." in out
        assert "write gpus=[0, 1]" in out


def test_fewer_processes_than_devices_named_warn_with_the_command() -> None:
    """If gpus has more devices than there are processes, local rank 0 alone warns."""
    outs = ended_well(run("explicit", every={**REHEARSAL, "GPUS": "1,2,3"}))
    said = "To use all: torchrun --nproc-per-node 3"
    assert [said in out for out in outs] == [True, False]


def test_world_size_is_never_counted_from_gpus() -> None:
    """One process with eight visible GPUs is a world of one."""
    [alone] = finish([start("train", REHEARSAL)])
    assert "rank=0 world=1 device=cpu mapped=cuda:0" in ended_well([alone])[0]


def test_two_ranks_may_share_a_device_where_the_backend_can() -> None:
    """Two ranks may share a device with oversubscribe=True and gloo."""
    every = {**REHEARSAL, "CUDA_VISIBLE_DEVICES": "4"}
    for out in ended_well(run("shared", every=every)):
        assert "mapped cuda:0 (GPU-a1000004…)" in out


def test_a_missing_port_is_named_on_every_rank_at_once() -> None:
    """A missing MASTER_PORT, or address and port, is a LaunchError on every rank."""
    for out in all_failed(run("train", every={"MASTER_PORT": ""})):
        assert "LaunchError" in out
        assert "MASTER_PORT not set" in out
    bare = dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"), "")
    for out in all_failed(run("train", every=bare)):
        assert "MASTER_ADDR and MASTER_PORT not set" in out


def test_one_machine_listens_on_loopback_only() -> None:
    """On one machine the store and gloo listen on loopback only."""
    port = free_port()
    outs = ended_well(run("listening", port=port))
    found = [re.findall(r"'([\d.]+):(\d+)'", out) for out in outs]
    assert {host for rank in found for host, _ in rank} == {"127.0.0.1"}
    assert [str(port) in dict(map(reversed, rank)) for rank in found] == [True, False]


def test_forty_sessions_in_a_row_with_one_rank_behind() -> None:
    """Forty sessions in a row work on one MASTER_PORT; plain torch fails in a dozen."""
    for out in ended_well(run("forty", limit=110)):
        assert "sessions ok" in out


@pytest.mark.parametrize("case", ["buffers", "unused", "no_sync", "after"])
def test_ddp_does_what_it_does_by_itself(case: str) -> None:
    """Buffers, options and no_sync pass through; afterwards m.module is the model."""
    outs = ended_well(run(case))
    expected = {
        "buffers": ["mean at start [0.0, 0.0]", "mean at start [0.0, 0.0]"],
        "unused": ["unused ok True", "unused ok True"],
        "no_sync": ["own [[0.0, 0.0]]", "own [[4.0, 4.0]]"],
        "after": ["said the session is over, and with it the wrapped model."] * 2,
    }
    for out, text in zip(outs, expected[case], strict=True):
        assert text in out
    if case == "no_sync":
        assert all("mean [[2.0, 2.0]]" in out for out in outs)


def test_session_is_for_everything_but_ddp() -> None:
    """session() gives a device, a rank, a store and a group, without a model."""
    for out in ended_well(run("session_only")):
        assert "sum 1.0 device cpu" in out


def test_a_group_that_exists_is_used_and_left_standing() -> None:
    """A session uses a process group that exists already, and leaves it open."""
    for rank, out in enumerate(ended_well(run("own_group"))):
        assert out.count(f"rank {rank}\n") == 2
        assert "left standing" in out


def test_nothing_is_left_behind() -> None:
    """A second session leaves no thread, socket or excepthook behind."""
    for out in ended_well(run("nothing_left")):
        assert "threads +0 sockets +0 hook back True" in out


def test_exit_codes_are_zero() -> None:
    """All ranks exit with 0 in three jobs in a row; benchmarks/exits.py runs 60."""
    for _ in range(3):
        ended_well(run("train"))


def test_rehearsal_checks_the_same_as_the_machine_would() -> None:
    """A rehearsal refuses oversubscribe=True with NCCL, as a real machine would."""
    for out in all_failed(run("shared_nccl", every=REHEARSAL)):
        assert "PlacementError: oversubscribe=True, and the backend cannot" in out


def test_different_lists_on_two_pretended_nodes() -> None:
    """gpus={0: [1], 1: [3]} places each node's rank, even if their UUIDs are equal."""
    each = {
        rank: {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": str(rank)}
        for rank in (0, 1)
    }
    outs = ended_well(run("per_node", every=REHEARSAL, each=each))
    assert "mapped cuda:1" in outs[0]
    assert "mapped cuda:3" in outs[1]


@pytest.mark.parametrize("backend", ["ucc", "xccl", "mpi", "xyz", "cpu:gloo,xpu:xccl"])
def test_a_backend_that_this_torch_lacks_is_told_before_the_ranks_meet(
    backend: str,
) -> None:
    """A backend that this torch lacks is an error that lists those it has."""
    with (
        pytest.raises(SessionError) as caught,
        gpumap.session(backend=backend, device="cpu"),
    ):
        pass
    missing = backend.rpartition(":")[2]
    assert caught.value.happened == f"backend={backend!r}: this torch has no {missing}."
    assert "has gloo" in caught.value.seen


@pytest.mark.parametrize("backend", ["nccl", "NCCL", "cuda:gloo", "cuda:nccl"])
def test_a_backend_of_other_devices_is_told_before_the_ranks_meet(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL, or gloo for GPUs alone, is refused on the CPU in gpumap's words."""
    monkeypatch.setattr(dist, "is_backend_available", lambda _: True)
    with (
        pytest.raises(SessionError) as caught,
        gpumap.session(backend=backend, device="cpu"),
    ):
        pass
    assert caught.value.happened == f"backend={backend!r} does not serve cpu devices."
    assert caught.value.seen == "It serves cuda; this rank is to train on cpu."
    assert "Leave backend out, and torch's own for cpu is taken." in caught.value.hint


def test_a_rehearsal_needs_no_torch_that_knows_its_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Devices of a plug-in that is not installed, torch_npu, can be rehearsed."""
    npu = {"kind": "npu", "name": "Ascend910B", "total_memory": 2**36}
    devices = [{**npu, "index": n, "physical_index": n} for n in range(2)]
    file = tmp_path / "npu.json"
    file.write_text(json.dumps({"hostname": "a1", "devices": devices}))
    monkeypatch.setenv("GPUMAP_REHEARSAL", str(file))
    with gpumap.session(gpus=[1]) as s:
        assert str(s.placement.device) == "npu:1"


@pytest.mark.parametrize(
    "use",
    [
        copy.deepcopy,
        copy.copy,
        pickle.dumps,
        lambda m: m(torch.ones(2, 2)),
        lambda m: m.join(),
    ],
    ids=["deepcopy", "copy", "pickle", "forward", "join"],
)
def test_what_needs_the_group_says_after_the_session_that_it_is_over(
    use: Callable[[object], object],
) -> None:
    """After the session using the DDP model is an error; m.module can be copied."""
    with gpumap.ddp_session(nn.Linear(2, 1), device="cpu") as m:
        pass
    with pytest.raises(SessionError, match="the session is over, and with it the wrap"):
        use(m)
    copy.deepcopy(m.module)


def test_detect_node_sees_the_machine_that_is_pretended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """detect_node() returns the rehearsed machine, and refuses a kind that it lacks."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "t4x4")
    node = gpumap.detect_node()
    assert [device.name for device in node.devices] == ["Tesla T4"] * 4
    with gpumap.session() as s:
        assert s.node == node
    assert gpumap.place(gpumap.detect_launch(), node).device.kind == "cuda"
    assert gpumap.detect_node("cpu").devices == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match="device='cuda' was asked for, and there is"):
        gpumap.detect_node("cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(DeviceError, match="device='xpu' was asked for, and there is"):
        gpumap.detect_node("xpu")


def test_a_slow_card_is_said_once_for_each_node() -> None:
    """A slower card is warned about once per node, by local rank 0."""
    ended = run("train", every={"GPUMAP_REHEARSAL": "rtx3090-gtx1080"})
    assert [rank.code for rank in ended] == [0, 0], ended
    told = "The NVIDIA GeForce GTX 1080 is the slower: leave it out with gpus=[0]"
    assert [rank.out.count(told) for rank in ended] == [1, 0]


def test_an_error_of_a_ranks_own_is_printed_once() -> None:
    """A rank's own error is printed once; before it only its first line is logged."""
    ended = run("train", every={**REHEARSAL, "GPUMAP_GPUS": "8,9"})
    for number, rank in enumerate(ended):
        assert rank.code == 1
        assert f"rank {number} cannot start, and tells the others: Dev" in rank.out
        assert rank.out.count("Name devices listed above") == 1


def decided(policy: Policy, node: Node, launch: Launch) -> Decided:
    """Return what a rank goes by that decides for itself."""
    return Decided(Pool.of(policy, node, launch))


def test_a_mac_trains_on_the_cpu_and_mps_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No backend of torch's process groups serves mps, though gloo is named for it."""
    pretend_torch(monkeypatch, [Device(kind="mps", index=0)])
    one = Launch(launcher="by hand", rank=0, world_size=1)
    setup = prepare(SessionOptions(launch=one), one, decided)
    assert setup.device == torch.device("cpu")
    assert "trains on the CPU: no backend" in caplog.text
    with pytest.raises(DeviceError) as caught:
        prepare(SessionOptions(launch=one, device="mps"), one, decided)
    assert caught.value.happened.endswith("serves mps devices.")

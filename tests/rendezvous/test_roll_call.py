"""The roll call: what the ranks check together before training starts."""

import json
import re
import socket
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch.distributed as dist

import gpumap
from gpumap.errors import RollCallError
from gpumap.rendezvous.members import Member, Terms
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.roll_call import roll_call
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.torch_keys import TorchKeys
from helpers.environments import rank_environment
from helpers.jobs import Ended, Process, connection_to, finish, free_port, run, start
from helpers.programs import run_python

REHEARSAL = {"GPUMAP_REHEARSAL": "dgx-a100"}
DATA = Path(__file__).parent.parent / "data"
LARGE = Terms(
    world_size=20_000,
    kind="cuda",
    on_cpu_as_asked=False,
    rehearsal=False,
    backend="nccl",
    strategy="local_rank",
)


def said(ended: list[Ended], error: str = "RollCallError") -> list[str]:
    """Return the first line of the error with which each rank ended."""
    assert [rank.code for rank in ended] == [1] * len(ended), ended
    return [re.findall(rf"errors\.{error}: (.*)", rank.out)[-1] for rank in ended]


def test_one_device_under_two_masks_is_found_by_its_uuid() -> None:
    """Two ranks on one GPU are refused at once on both ranks, by the GPU's UUID."""
    masks = ("1", "GPU-30900001")
    ended = run(
        "timed",
        every={"GPUMAP_REHEARSAL": "rtx3090x4"},
        each={rank: {"CUDA_VISIBLE_DEVICES": mask} for rank, mask in enumerate(masks)},
    )
    uuid = "GPU-30900001-0000-4000-8000-000000000001"
    first = f"rank 0 and rank 1 are both on one device, {uuid}."
    assert said(ended) == [first, first]
    for rank in ended:
        assert float(re.findall(r"after (\S+) s", rank.out)[0]) < 5
        assert "calls it cuda:0" in rank.out


def test_a_rank_that_sees_no_device_is_told_with_its_mask() -> None:
    """If rank 1's mask hides all devices, both ranks say so and quote the mask."""
    masks = ("3", "4")
    ended = run(
        "timed",
        every={"GPUMAP_REHEARSAL": "rtx3090x4"},
        each={rank: {"CUDA_VISIBLE_DEVICES": mask} for rank, mask in enumerate(masks)},
    )
    for rank, first in zip(ended, said(ended), strict=True):
        assert re.fullmatch(
            r"rank 1 \(.*\) trains on the CPU, and rank 0 \(.*\) on cuda:0 \(.*\)\.",
            first,
        )
        assert (
            "On rank 1: No accelerator is visible on rtx3090x4, under "
            "CUDA_VISIBLE_DEVICES='4'.\n"
        ) in rank.out
    assert "CUDA_VISIBLE_DEVICES='4' lists 1 device, and 0 are visible" in ended[1].out


def test_a_rank_that_is_on_the_cpu_as_asked_may_join_devices() -> None:
    """A CPU rank may join GPU ranks only if it asked for it and backends are equal."""

    def terms(kind: str, backend: str, *, asked: bool = False) -> Terms:
        return Terms(
            world_size=2,
            kind=kind,
            on_cpu_as_asked=asked,
            rehearsal=False,
            backend=backend,
            strategy="local_rank",
        )

    card = terms("cuda", "gloo")
    assert card.different(terms("cpu", "gloo", asked=True)) == []
    assert card.different(terms("cpu", "gloo")) == ["the kind of device"]
    assert terms("cuda", "nccl").different(terms("cpu", "gloo", asked=True)) == [
        "the kind of device",
        "backend",
    ]


def test_a_rehearsal_on_one_rank_alone_is_told() -> None:
    """Two ranks of which only one rehearses are refused."""
    ended = run("timed", each={0: REHEARSAL})
    for first in said(ended):
        assert first.startswith("the ranks disagree on GPUMAP_REHEARSAL: rank ")


def test_slices_of_one_gpu_under_two_masks_are_refused_with_the_reason() -> None:
    """Two MIG slices of one GPU are refused, though each rank sees only its own."""
    masks = ("MIG-0c757cd7", "MIG-703fb6ed")
    ended = run(
        "timed",
        every={"GPUMAP_REHEARSAL": str(DATA / "a100-mig.json")},
        each={rank: {"CUDA_VISIBLE_DEVICES": mask} for rank, mask in enumerate(masks)},
    )
    gpu = "GPU-0aa11ebd-627f-af3f-1a0d-4e1fd92fd7b0"
    first = f"rank 0 and rank 1 are both on one device, {gpu}."
    assert said(ended) == [first, first]
    for rank in ended:
        assert "NCCL refuses two ranks on one GPU, MIG slices of it" in rank.out


def test_slices_of_two_gpus_pass() -> None:
    """Two ranks on MIG slices of different GPUs are accepted."""
    masks = ("MIG-0c757cd7", "MIG-aa232436")
    ended = run(
        "train",
        every={"GPUMAP_REHEARSAL": str(DATA / "a100-mig.json")},
        each={rank: {"CUDA_VISIBLE_DEVICES": mask} for rank, mask in enumerate(masks)},
    )
    assert [rank.code for rank in ended] == [0, 0], ended


def test_bound_tasks_with_devices_of_their_own_pass() -> None:
    """Two ranks may both be on cuda:0 if their masks name different GPUs."""
    each = {0: {"CUDA_VISIBLE_DEVICES": "6"}, 1: {"CUDA_VISIBLE_DEVICES": "2"}}
    ended = run("train", every=REHEARSAL, each=each)
    assert [rank.code for rank in ended] == [0, 0], ended
    assert all("mapped=cuda:0" in rank.out for rank in ended)


def test_a_missing_rank_is_named_by_all_that_came() -> None:
    """After start_timeout all ranks that came raise one error with those missing."""
    ended = run("timed", 4, ranks=[0, 1], every={"START_TIMEOUT": "3"})
    assert said(ended) == ["ranks 2, 3 of 4 did not come within 3 s."] * 2
    for rank in ended:
        assert 2.5 < float(re.findall(r"after (\S+) s", rank.out)[0]) < 8


def test_a_missing_rank_0_is_named_with_its_address() -> None:
    """If rank 0 is missing, the error has the address of the store it did not open."""
    port = free_port()
    ended = run("timed", ranks=[1], port=port, every={"START_TIMEOUT": "2"})
    [line] = said(ended)
    assert line == f"rank 0 did not open its store at 127.0.0.1:{port} within 2 s."


def test_a_rank_claimed_twice_is_named_with_both_process_ids() -> None:
    """If two processes claim one rank, every rank names the process ids of both."""
    port = free_port()
    processes = [start("train", rank_environment(rank, 3, port)) for rank in (0, 1, 1)]
    pids = {str(process.pid) for process in processes[1:]}
    lines = said(finish(processes))
    assert len(set(lines)) == 1
    match = re.fullmatch(
        r"rank 1 is claimed twice: by pid (\d+) on \S+ and by pid (\d+) on \S+\.",
        lines[0],
    )
    assert match
    assert {match[1], match[2]} == pids


def test_a_rank_whose_placement_fails_tells_the_others() -> None:
    """If a rank's placement fails, the others stop at once and name its error."""
    for failing in (0, 1):
        gpus = {1 - failing: {"GPUS": "2,3"}, failing: {"GPUS": "2,9"}}
        ended = run("explicit", every=REHEARSAL, each=gpus)
        assert [rank.code for rank in ended] == [1, 1]
        assert "DeviceError: there is no device 9" in ended[failing].out
        assert re.search(
            rf"RollCallError: rank {failing} \(pid \d+ on \S+\) cannot start: there is "
            "no device 9 on dgx-a100.",
            ended[1 - failing].out,
        )


def test_a_model_that_cannot_be_wrapped_is_told_by_every_rank() -> None:
    """A model without trainable parameters is an error on every rank."""
    for line in said(run("frozen"), "SessionError"):
        assert line == "Linear has no parameter that requires a gradient."


def test_ranks_that_disagree_are_named_with_what_each_has() -> None:
    """Ranks that disagree on an option (here strategy) all raise the same error."""
    each = {0: {"RANKS_OWN": "modulo"}, 1: {"RANKS_OWN": "local_rank"}}
    lines = said(run("terms", every=REHEARSAL, each=each))
    assert lines[0] == lines[1]
    assert re.match(r"the ranks disagree on strategy: rank \d \(pid", lines[0])


@pytest.mark.parametrize("told", [True, False], ids=["job ids", "no job ids"])
def test_two_jobs_on_one_port_never_mix(*, told: bool) -> None:
    """Of two jobs on one port one runs, and the ranks of the other are refused.

    They start in the order A's rank 0, B's rank 1, B's rank 0, A's rank 1. There
    torch.distributed 2.13 alone printed 101, 1 of A and 100 of B, on two ranks, and
    ended with 0.
    """
    port = free_port()

    def begin(name: str, rank: int, delay: float) -> Process:
        environ = {
            **rank_environment(rank, 2, port),
            "JOB": name,
            **({"GPUMAP_JOB_ID": name} if told else {}),
        }
        return start("job", environ, delay=delay, cold=True)

    first = begin("A", 0, 0.0)
    connection_to(port).close()
    others = [begin("B", 1, 0.0), begin("B", 0, 0.7), begin("A", 1, 1.4)]
    a0, b1, b0, a1 = finish([first, *others])
    assert [a0.code, a1.code] == [0, 0], (a0, a1)
    assert "sum 2.0" in a0.out
    assert "sum 2.0" in a1.out
    for line in said([b0, b1]):
        assert line == f"another job answers at 127.0.0.1:{port}."
    evidence = "another job: A and B" if told else "another environment: JOB"
    assert evidence in b1.out


def test_a_job_refused_by_mistake_can_name_itself() -> None:
    """Ranks refused as another job's are told why, and GPUMAP_JOB_ID joins them."""
    each = {0: {"ROLE": "chief"}, 1: {"ROLE": "worker"}}
    ended = run("train", each=each, every={"START_TIMEOUT": "4"}, cold=True)
    assert said(ended)[0] == "rank 1 of 2 did not come within 4 s."
    assert "One came and left as another job's." in ended[0].out
    assert "another environment: ROLE" in ended[0].out
    named = run("train", each=each, every={"GPUMAP_JOB_ID": "mine"}, cold=True)
    assert [rank.code for rank in named] == [0, 0], named


def test_a_port_of_another_program_is_told() -> None:
    """If another, silent program listens on the port, every rank says so in time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        accepted: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    accepted.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        ended = run("timed", port=port, every={"START_TIMEOUT": "4"})
        server.close()
        for connection in accepted:
            connection.close()
    for line in said(ended, "SessionError"):
        assert line == f"port {port} on 127.0.0.1 belongs to another program."
    for rank in ended:
        assert float(re.findall(r"after (\S+) s", rank.out)[0]) < 10


def test_a_rank_that_is_interrupted_while_it_waits_withdraws(tmp_path: Path) -> None:
    """If a rank is interrupted while it waits, the others hear that it cannot start."""
    every = {"FLAG": str(tmp_path / "flag")}
    zero, one, two = run("interrupted", 3, every=every)
    assert "KeyboardInterrupt" in one.out
    for rank in (zero, two):
        assert rank.code == 1
        assert re.search(r"RollCallError: rank 1 .* cannot start: Keyboard", rank.out)


def test_one_mask_for_two_processes_says_what_fits() -> None:
    """Two ranks under a mask of one device are told to start one process per node."""
    every = {**REHEARSAL, "CUDA_VISIBLE_DEVICES": "2"}
    ended = run("train", every=every)
    assert said(ended)[0].startswith("rank 0 and rank 1 are both on one device")
    for rank in ended:
        assert "start as many on a node (torchrun --nproc-per-node 1)" in rank.out


def test_devices_without_a_uuid_are_told_apart_too(tmp_path: Path) -> None:
    """Devices without a UUID are compared by their PCI bus IDs."""
    node = json.loads(gpumap.machine("rtx3090x4").model_dump_json())
    for device in node["devices"]:
        device["uuid"] = None
    path = tmp_path / "nameless.json"
    path.write_text(json.dumps(node))
    every = {"GPUMAP_REHEARSAL": str(path), "CUDA_VISIBLE_DEVICES": "1"}
    assert said(run("train", every=every))[0] == (
        "rank 0 and rank 1 are both on one device, 00000000:82:00.0."
    )


def test_nodes_that_the_launcher_does_not_number_are_still_two() -> None:
    """Two ranks that are both local rank 0 of 1 count as being on two nodes."""
    every = {**REHEARSAL, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    ended = run("train", every=every, cold=True)
    assert [rank.code for rank in ended] == [0, 0], ended


def test_what_only_one_rank_is_told_to_log_is_no_other_job() -> None:
    """NCCL_DEBUG on one rank alone does not make that rank another job's."""
    each = {0: {"NCCL_DEBUG": "INFO", "X_LOG_LEVEL": "debug"}}
    ended = run("train", each=each, cold=True)
    assert [rank.code for rank in ended] == [0, 0], ended


def test_an_odd_environment_and_argument_do_not_stop_a_job() -> None:
    """Hundreds of long variables and a value that is not Unicode do not stop a job."""
    names = [
        f"SERVICE_{n}_WITH_A_NAME_THAT_IS_MUCH_LONGER_THAN_MOST" for n in range(400)
    ]
    every = {**dict.fromkeys(names, "tcp://10.0.0.1:80"), "ODD": "x\udce9"}
    ended = run("train", every=every, cold=True)
    assert [rank.code for rank in ended] == [0, 0], ended


def test_scores_that_differ_from_rank_to_rank_are_named() -> None:
    """If each rank scores its own device best, the error says that scores differ."""
    ended = run("racing", every=REHEARSAL)
    assert said(ended)[0].startswith("rank 0 and rank 1 are both on one device")
    for rank in ended:
        assert re.search(
            r"ank \d and rank \d scored GPU-a1000000\S+ \d and \d,", rank.out
        )
        assert "The ranks have different scores: work them out once" in rank.out


def test_the_shell_of_a_terminals_step_is_told_in_the_first_seconds() -> None:
    """A script in `srun -n 2 --pty bash` is soon told how to be a single process."""
    step = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_PTY_PORT": "40001",
    }
    code = "import gpumap\nwith gpumap.session(device='cpu', start_timeout=7): pass"
    done = run_python("-c", code, environ=step)
    assert done.returncode == 1
    waiting, _, error = done.stderr.partition("Traceback")
    assert "rank 1 of 2 not here yet" in waiting
    for told in (waiting, error):
        assert "GPUMAP_LAUNCHER=none makes this a single process" in told


def keys_of(prefix: str, members: Iterable[Member]) -> SessionStore:
    """Return a store on which these ranks have claimed their places."""
    store = SessionStore(TorchKeys(dist.HashStore()), prefix)
    for member in members:
        store.claim(f"rank/{member.rank}", member)
        store.count("present")
    return store


@pytest.mark.parametrize("asking", [2.0, 0.0])
def test_of_a_large_world_the_missing_are_counted(
    monkeypatch: pytest.MonkeyPatch, asking: float
) -> None:
    """Missing ranks of 20,000 are listed or, if time is short, counted."""
    monkeypatch.setattr("gpumap.rendezvous.roll_call.ASK_EACH_RANK", asking)
    here = [
        Member(rank=n, hostname="n1", pid=n, device="cuda:0")
        for n in range(20_000)
        if n not in (7, 8, 19_999)
    ]
    store = keys_of("large", here[1:])
    with pytest.raises(RollCallError) as caught:
        roll_call(Peers(store, here[0], LARGE.world_size), LARGE, 0.1)
    who = "ranks 7, 8, 19999" if asking else "3 ranks"
    assert caught.value.happened == f"{who} of 20000 did not come within 0.1 s."
    assert caught.value.ranks == ((7, 8, 19_999) if asking else ())


def test_a_world_that_no_machine_holds_ends_in_time() -> None:
    """WORLD_SIZE=1000000000 fails soon, without a loop over its ranks."""
    world = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": str(free_port())}
    world |= {"WORLD_SIZE": "1000000000", "LOCAL_WORLD_SIZE": "1000000000"}
    for where, said in (
        (
            "device='cpu', start_timeout=1",
            "rank 0 of 1000000000 needs 5000000018 more open files",
        ),
        ("start_timeout=1", "1000000000 processes on dgx-a100 have 8 devices"),
    ):
        code = f"import gpumap\nwith gpumap.session({where}): pass"
        done = run_python("-c", code, environ={**REHEARSAL, **world})
        assert done.returncode == 1
        assert said in done.stderr


def test_ranks_of_a_node_that_pretend_two_machines_are_told() -> None:
    """Ranks of one node that rehearse different machines are refused."""
    names = ("dgx-a100", "hgx-h100")
    ended = run(
        "train", each={n: {"GPUMAP_REHEARSAL": name} for n, name in enumerate(names)}
    )
    for line in said(ended):
        assert line.startswith("the ranks of one node pretend different machines: ")
        assert all(name in line for name in names)


def test_scores_under_other_masks_have_not_changed() -> None:
    """If the ranks' masks differ in order, the error blames them, not the scores."""
    masks = ("1,0", "0,1")
    ended = run(
        "by_memory",
        every=REHEARSAL,
        each={rank: {"CUDA_VISIBLE_DEVICES": mask} for rank, mask in enumerate(masks)},
    )
    for rank, line in zip(ended, said(ended), strict=True):
        assert line.startswith("rank 0 and rank 1 are both on one device")
        assert "The scores changed" not in rank.out
        assert "the same *_VISIBLE_DEVICES" in rank.out


def test_a_rehearsal_on_one_rank_alone_is_no_other_job() -> None:
    """A rehearsal on one rank alone is reported as such, not as another job."""
    ended = run("train", each={1: REHEARSAL}, cold=True)
    for line in said(ended):
        assert "the ranks disagree on GPUMAP_REHEARSAL" in line

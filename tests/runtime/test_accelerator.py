"""Sessions on an accelerator whose collectives, as NCCL's, miss the end of a peer.

It is the pretended one of tests/accelerator: it runs on the CPU, and behaves as NCCL.
"""

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.accelerator import accelerator
from helpers.environments import rank_environment
from helpers.jobs import Ended, free_port, run, start
from helpers.programs import run_python

# The first test may have to build the accelerator.
pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent.parent
SCRIPT = HERE / "helpers/accelerated.py"
PROJECT = HERE.parent


def job(case: str, world_size: int = 2, **environ: str) -> list[Ended]:
    """Run a case of accelerated.py in every rank of a job."""
    every = {**accelerator(), "PRETEND_WATCHDOG": "1", **environ}
    return run(case, world_size, script=SCRIPT, every=every)


def ended_well(ended: list[Ended]) -> str:
    """Return what all ranks wrote; each must have ended with 0."""
    out = "".join(rank.out for rank in ended)
    assert [rank.code for rank in ended] == [0] * len(ended), out
    return out


def test_each_rank_trains_on_its_device_and_opens_no_other() -> None:
    """In two successive sessions a rank trains on its device and opens no other."""
    out = ended_well(job("train"))
    for rank in range(2):
        for number in range(2):
            line = f"trained {number} {rank} pretend:{rank} [{rank}] 2.0"
            assert line in out
        assert f"contexts {rank} [{rank}]" in out


def test_under_torchrun_each_rank_opens_its_own_device_alone() -> None:
    """Under torchrun each process has a context on its own device only."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "3"]
    done = run_python(*torchrun, str(SCRIPT), "train", environ=accelerator())
    assert done.returncode == 0, done.stderr
    found = re.findall(r"contexts (\d) (\[.*\])", done.stdout)
    assert sorted(found) == [("0", "[0]"), ("1", "[1]"), ("2", "[2]")]


def test_spawn_starts_a_process_for_each_device() -> None:
    """Spawned processes open a device each; the parent opens none."""
    environ = {**accelerator(), "PRETEND_DEVICES": "3"}
    done = run_python(str(SCRIPT), "spawn", environ=environ)
    assert done.returncode == 0, done.stderr
    assert "spawned [[0], [1], [2]] []" in done.stdout


def test_groups_and_meshes_are_made_in_each_session() -> None:
    """Each of two sessions can make a group of rank 0, and a mesh of both ranks."""
    out = ended_well(job("mesh"))
    for number in range(2):
        assert f"first {number} 1.0" in out
        assert out.count(f"grid {number} ") == out.count(" 2.0") / 2 == 2


def test_fully_shard_trains_inside_a_session() -> None:
    """With fully_shard the losses fall, and a rank opens no other device."""
    out = ended_well(job("fsdp"))
    assert "losses 0 True [0]" in out
    assert "losses 1 True [1]" in out


def test_the_store_is_asked_nothing_while_nothing_happens() -> None:
    """While training goes on, no rank sends the store a request."""
    assert ended_well(job("quiet")).count("asked []") == 2


def test_a_program_started_in_a_session_has_the_devices() -> None:
    """A program that is started in a session sees all devices."""
    assert ended_well(job("child")).count("child 4") == 2


PARTITION = {
    "uuid": "12345678-90ab-cdef-1234-567890abcdef",
    "pci_bus_id": 12,
    "pci_device_id": 0,
    "pci_domain_id": 0,
}


def test_partitions_that_repeat_a_uuid_and_a_bus_are_told_apart() -> None:
    """Devices of one UUID and bus ID, as partitions of an AMD GPU, can be used."""
    properties = json.dumps([PARTITION] * 4)
    out = ended_well(job("train", PRETEND_PROPERTIES=properties))
    assert "contexts 1 [1]" in out


def test_a_context_on_another_device_is_told_once() -> None:
    """A context on another device is logged once, by the rank that opened it."""
    first, second = job("elsewhere")
    assert "has a context" not in first.out
    assert "has opened a context" not in first.out
    before = "rank 1, on pretend:1, has a context on pretend:0 as well, from before"
    inside = "rank 1, on pretend:1, has opened a context on pretend:3 as well, in its"
    assert second.out.count(before) == 1
    assert second.out.count(inside) == 1
    assert "torch.load(…, map_location=session.device)" in second.out


def test_an_error_of_the_last_kernel_is_told_by_name() -> None:
    """A failed kernel raises its own error, before the watchdog ends the process."""
    first, second = job("kernel")
    assert [first.code, second.code] == [1, 1]
    assert "device-side assert triggered" in second.out
    assert re.search(r"SessionError: rank 1 \(pid .*failed first: .*assert", first.out)


def test_a_users_own_setting_of_the_watchdog_is_left_alone() -> None:
    """If the user sets TORCH_NCCL_RETHROW_CUDA_ERRORS=1, the watchdog ends the rank."""
    _, second = job("kernel", TORCH_NCCL_RETHROW_CUDA_ERRORS="1", COLLECTIVES="1")
    assert second.code == -signal.SIGABRT
    assert "pretended watchdog: device error" in second.out


def test_what_nccl_reads_is_set_for_the_session_only() -> None:
    """For a session on one host NCCL's interface is lo, unless the user has set one."""
    out = ended_well(job("variables"))
    assert out.count(str([[None, None], ["lo", "0"], [None, None]])) == 2
    out = ended_well(job("variables", NCCL_SOCKET_IFNAME="eth7"))
    assert out.count(str([["eth7", None], ["eth7", "0"], ["eth7", None]])) == 2


def test_a_rank_that_computes_is_told_at_once_and_raises_at_the_group() -> None:
    """A rank that computes logs a failure at once, and raises at its next collective.

    Since it runs Python, it is not ended for computing longer than the time-out.
    """
    first, _ = job("computes")
    told, computed = first.out.index("the session ends: rank 1"), "computed\n"
    assert told < first.out.index(computed)
    assert "met" not in first.out
    assert re.search(r"SessionError: rank 1 .* failed first: ValueError", first.out)


def test_a_failure_is_heard_while_what_ddp_needs_is_imported() -> None:
    """A rank that imports DDP's modules meanwhile still raises another's failure."""
    first, second = job("imports", PRETEND_INIT="0.5")
    assert "ValueError: bad batch" in second.out
    assert re.search(r"SessionError: rank 1 .* failed first: ValueError", first.out)


def test_a_failing_rank_is_not_held() -> None:
    """A failing rank ends soon, with its own traceback, though its peer is stopped."""
    port = free_port()
    every = {**accelerator(), "PRETEND_PATIENCE": "60"}
    ranks = [
        start("raises", {**rank_environment(n, 2, port), **every}, script=SCRIPT)
        for n in range(2)
    ]
    try:
        out, _ = ranks[1].communicate(timeout=60)
        ended = time.monotonic()
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate(timeout=60)
    assert ranks[1].returncode == 1
    assert "ValueError: bad batch" in out
    assert "abort did not return within 3 s" in out
    # 5 s for the traceback, 10 s more for the process, and some for a busy machine.
    assert ended - float(re.findall(r"raised (\S+)", out)[0]) < 5 + 10 + 10


def test_a_rank_that_a_library_holds_ends_after_the_time_out() -> None:
    """A rank whose main thread stays in a library ends with a message and code 1."""
    first, _ = job("held")
    assert first.code == 1
    assert "the session ends: rank 1" in first.out
    assert "a library has held its main thread for 3 s" in first.out


def test_after_a_group_that_did_not_end_the_next_session_is_refused() -> None:
    """If a killed peer kept a group from ending, the next session is refused."""
    first, _ = job("again")
    assert re.search(
        r"caught rank 1 \(pid .*failed first: its process is gone", first.out
    )
    assert "SessionError: the process group of an earlier session is still there." in (
        first.out
    )


def test_measure_tells_the_speed_of_each_device_and_opens_none_here() -> None:
    """A measurement of all devices opens none of them in the calling process."""
    code = (
        "import gpumap, json, torch\n"
        "if __name__ == '__main__':\n"
        "    print(json.dumps(gpumap.measure()))\n"
        "    print(any(map(torch._C._pretend_hasPrimaryContext, range(4))))\n"
    )
    done = run_python("-c", code, environ=accelerator())
    assert done.returncode == 0, done.stderr
    speeds, opened = done.stdout.splitlines()[-2:]
    assert len(json.loads(speeds)) == 4
    assert opened == "False"


def test_the_command_shows_the_devices() -> None:
    """The command `gpumap show --nproc 2` shows the device of each rank."""
    done = run_python("-m", "gpumap", "show", "--nproc", "2", environ=accelerator())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b1 .* pretend:1 .*Pretended GPU", done.stdout)


def test_the_demo_trains_on_it() -> None:
    """The demo trains on the accelerator, without a rehearsal."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    done = run_python(str(PROJECT / "examples/demo.py"), environ=accelerator())
    assert done.returncode == 0, done.stderr
    assert "rehears" not in done.stdout
    assert float(re.findall(r"accuracy (\S+)", done.stdout)[0]) > 0.8


UNLIKE = [{"multi_processor_count": count} for count in (10, 40, 20, 30)]


def test_the_benchmark_compares_strategies_on_devices_that_differ(
    tmp_path: Path,
) -> None:
    """The benchmark uses the first two devices by local rank, the fastest by score."""
    file = tmp_path / "found.json"
    options = ["-b", "4K", "-e", "4K", "-n", "2", "--rounds", "1", "--nproc", "2"]
    done = run_python(
        *(str(PROJECT / "benchmarks/allreduce.py"), *options),
        *("--strategies", "local_rank,scored", "--json", str(file)),
        environ={**accelerator(), "PRETEND_PROPERTIES": json.dumps(UNLIKE)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    assert found["backend"] == "pretend"
    assert re.search(r"# .*local_rank.*\n(#.*\n)+# .*pretend:0", done.stdout)
    assert re.search(r"# .*scored.*\n(#.*\n)+# .*pretend:1", done.stdout)

"""Sessions on machines that others use too: idle devices, claims, CPUs.

What changes while ranks look is decided by one rank of the node for all of them.
"""

import json
import os
import pwd
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gpumap
from helpers.jobs import Ended, Process, finish, run, start

SCRIPT = Path(__file__).parent.parent / "helpers/shared_machine.py"
REHEARSAL = {"GPUMAP_REHEARSAL": "dgx-a100"}
CORES = len(os.sched_getaffinity(0))
IDLE_UUIDS = [device.uuid for device in gpumap.machine("dgx-a100").devices]


@pytest.fixture
def claims(tmp_path: Path) -> dict[str, str]:
    """Return the variables of jobs whose claims are those of this test alone."""
    folder = tmp_path / "claims"
    folder.mkdir()
    return {**REHEARSAL, "GPUMAP_CLAIMS": str(folder)}


def job(case: str, world_size: int = 2, **options: Any) -> list[Ended]:
    """Run a case of shared_machine.py in every rank of a job."""
    return run(case, world_size, script=SCRIPT, **options)


def devices(ended: list[Ended]) -> list[int]:
    """Return the index of each rank's device; each rank must have ended with 0."""
    out = "".join(rank.out for rank in ended)
    assert [rank.code for rank in ended] == [0] * len(ended), out
    found = dict(re.findall(r"rank (\d+) on (\d+)", out))
    return [int(found[str(rank)]) for rank in range(len(ended))]


def all_say(ended: list[Ended], words: str) -> None:
    """Check that every rank has failed with these words."""
    for rank in ended:
        assert rank.code == 1, rank.out
        assert words in rank.out


def described(folder: Path, **of_device: Mapping[int, Any]) -> dict[str, str]:
    """Return a rehearsal of four devices, with fields by name and index."""
    cards = [
        {"kind": "cuda", "index": n, "uuid": f"GPU-{n}a", "total_memory": 10}
        | {name: values[n] for name, values in of_device.items() if n in values}
        for n in range(4)
    ]
    file = folder / "machine.json"
    file.write_text(json.dumps({"hostname": "lab", "devices": cards}))
    return {"GPUMAP_REHEARSAL": str(file)}


def test_idle_devices_are_those_that_nothing_runs_on(
    claims: dict[str, str], tmp_path: Path
) -> None:
    """Of four devices, one used by somebody, two ranks get those with most free."""
    used = {"tenants": {3: [{"pid": 7, "user": "ann"}]}}
    free = {"free_memory": {0: 4, 1: 9, 2: 6, 3: 10}}
    machine = described(tmp_path, **used, **free)
    assert devices(job("idle", every={**claims, **machine})) == [1, 2]


def test_too_few_idle_devices_fail_on_every_rank_by_name(
    claims: dict[str, str], tmp_path: Path
) -> None:
    """All ranks hear who uses the devices that are missing, and since when."""
    used = {
        n: [{"pid": n, "user": "ann", "command": "train.py", "since": "May 1"}]
        for n in range(1, 4)
    }
    machine = described(tmp_path, tenants=used)
    all_say(
        job("idle", every={**claims, **machine}),
        "cuda:2 (GPU-2a…) is used by ann, pid 2 (train.py), since May 1",
    )


def wait_for(process: Process, words: str) -> None:
    """Wait until a process has written these words."""
    end = time.monotonic() + 60
    while words not in process.said():  # type: ignore[union-attr]
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_job_that_holds_devices_is_named_to_the_next(
    claims: dict[str, str], tmp_path: Path
) -> None:
    """A second job gets other devices, and what claims a held one says who holds it."""
    flag = tmp_path / "flag"
    only_0 = {**claims, "GPUMAP_GPUS": "0"}
    with start("idle", {**claims, "UNTIL": str(flag)}, script=SCRIPT) as first:
        wait_for(first, "rank 0 on 0")
        [second] = finish([start("idle", claims, script=SCRIPT)])
        assert "rank 0 on 1" in second.out
        [third] = finish([start("idle", only_0, script=SCRIPT)])
        me = pwd.getpwuid(os.getuid()).pw_name
        held = f"cuda:0 (GPU-a1000000…) is claimed by {me}, pid {first.pid} ("
        assert held in third.out
        assert re.search(r"\), since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", third.out)
        flag.touch()
        [ended] = finish([first])
        assert ended.code == 0
    [fourth] = finish([start("idle", only_0, script=SCRIPT)])
    assert "rank 0 on 0" in fourth.out


def options(**asked: object) -> dict[str, str]:
    """Return the variable with the arguments of a session."""
    return {"OPTIONS": json.dumps(asked)}


def test_any_strategy_can_claim(claims: dict[str, str], tmp_path: Path) -> None:
    """claim=True refuses a device that another job holds, and says by whom."""
    flag = tmp_path / "flag"
    both = {**claims, "GPUMAP_GPUS": "3"}
    claiming = {**claims, **options(gpus=[3], claim=True)}
    with start("idle", {**both, "UNTIL": str(flag)}, script=SCRIPT) as first:
        wait_for(first, "rank 0 on 3")
        [refused] = finish([start("asked", claiming, script=SCRIPT)])
        words = "cuda:3 (GPU-a1000003…) on dgx-a100 is claimed already."
        assert words in refused.out
        assert f"pid {first.pid}" in refused.out
        unclaimed = {**claims, **options(gpus=[3])}
        [unaware] = finish([start("asked", unclaimed, script=SCRIPT)])
        assert "rank 0 on 3" in unaware.out
    [taken] = finish([start("asked", claiming, script=SCRIPT)])
    assert "rank 0 on 3" in taken.out


def test_twenty_jobs_never_share_one_of_eight_devices(
    claims: dict[str, str], tmp_path: Path
) -> None:
    """All get a device in the end, also when every third is killed with kill -9."""
    witnesses = tmp_path / "witnesses"
    witnesses.mkdir()
    every = {**claims, "WITNESSES": str(witnesses)}
    jobs = [
        start("race", {**every, "NUMBER": str(number)}, script=SCRIPT)
        for number in range(20)
    ]
    ended = finish(jobs, 120)
    out = "".join(one.out for one in ended)
    assert "TWO JOBS" not in out
    assert [one.code for one in ended] == [
        -9 if number % 3 == 0 else 0 for number in range(20)
    ], out
    held = re.findall("held (.+)", out)
    assert len(held) == 20
    assert set(held) <= set(map(str, IDLE_UUIDS))


def test_a_folder_of_claims_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The error says which variable names another folder."""
    every = {**REHEARSAL, "GPUMAP_CLAIMS": str(tmp_path / "missing")}
    all_say(job("idle", every=every), "GPUMAP_CLAIMS")


def test_scores_that_change_while_ranks_look_are_those_of_one_rank() -> None:
    """Each rank would be best served by its own; local rank 0 decides for both."""
    assert devices(job("racing_scores", every=REHEARSAL)) == [0, 1]


def test_a_function_is_asked_in_one_process_for_all_its_ranks() -> None:
    """A strategy that depends on the process gives each rank a device of its own."""
    ended = job("own_strategy", 3, every=REHEARSAL)
    first, second, third = devices(ended)
    assert [second, third] == [(first + 1) % 8, (first + 2) % 8]
    asked = "".join(rank.out for rank in ended)
    assert set(re.findall(r"asked in (\d)", asked)) == {"0"}


def test_a_function_that_fails_is_told_to_every_rank() -> None:
    """The rank that was asked raises its error, the others name it."""
    first, second = job("failing_strategy", every=REHEARSAL)
    assert "KeyError: 'raised in rank 0'" in first.out
    assert "RollCallError: rank 0 (pid" in second.out
    assert "cannot start: KeyError: 'raised in rank 0'" in second.out


def test_a_rank_that_is_killed_while_it_decides_is_named() -> None:
    """The rank that waits for the decision sees it, and tells the other node too."""
    second_node = {"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    each = {
        0: {"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        1: {**second_node, "LOCAL_RANK": "0"},
        2: {**second_node, "LOCAL_RANK": "1"},
    }
    every = {**REHEARSAL, "GROUP_WORLD_SIZE": "2"}
    other, killed, waits = job("decider_is_killed", 3, every=every, each=each)
    assert killed.code == -9
    all_say([other, waits], "rank 1 (pid ")
    all_say([other, waits], "did not stay for the roll call: its process is gone")


def test_a_rank_that_does_not_come_is_named_within_its_time() -> None:
    """Local rank 0 waits for the other's facts no longer than start_timeout."""
    late = {**REHEARSAL, "START_TIMEOUT": "3"}
    [alone] = job("racing_scores", every=late, ranks=[0])
    assert "local rank 1 of 2 on" in alone.out
    assert "did not come within 2.7 s." in alone.out
    [alone] = job("racing_scores", every=late, ranks=[1])
    assert alone.code == 1


def test_a_rank_that_leaves_while_another_decides_is_named() -> None:
    """It says so itself, and nobody waits for start_timeout."""
    first, second = job("leaves_after_its_facts", every=REHEARSAL)
    assert second.code == 143
    assert re.search(r"rank 1 \(pid \d+ on .+\)", first.out), first.out
    assert first.code == 1
    assert "did not come" not in first.out


@pytest.mark.parametrize(
    ("mine", "other", "words"),
    [
        ({"bind": "numa"}, {}, "rank 1 (pid"),
        ({"claim": True}, {}, "by itself."),
        ({"bind": "numa"}, {"bind": "exclusive"}, "the ranks disagree on bind"),
        ({"strategy": "idle"}, {"strategy": "modulo"}, "by itself."),
    ],
    ids=["bind", "claim", "another bind", "strategy"],
)
def test_ranks_that_do_not_decide_together_are_told_so(
    mine: dict[str, object],
    other: dict[str, object],
    words: str,
    claims: dict[str, str],
) -> None:
    """They have different arguments; no rank waits for start_timeout."""
    each = {0: options(**mine), 1: options(**other)}
    ended = job("asked", every=claims, each=each)
    all_say(ended, words)
    for rank in ended:
        assert "did not come" not in rank.out


def test_processes_with_a_device_of_their_own_share_out_the_cpus(
    claims: dict[str, str], tmp_path: Path
) -> None:
    """Each decides on its own device; who else is beside it, they tell each other."""
    machine = described(tmp_path, cpu_affinity={n: list(range(8)) for n in range(4)})
    asked = options(strategy="idle", bind="exclusive")
    each = {n: {"CUDA_VISIBLE_DEVICES": str(n + 2)} for n in range(2)}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_GPUS_PER_TASK": "1"}
    ended = job("asked", every={**claims, **machine, **asked, **slurm}, each=each)
    assert devices(ended) == [0, 0]
    assert "cpus 0-3" in ended[0].out
    assert "cpus 4-7" in ended[1].out


def test_cpus_of_their_own_need_the_number_of_processes() -> None:
    """Without LOCAL_WORLD_SIZE every rank would take all of them."""
    every = {**REHEARSAL, **options(bind="exclusive"), "LOCAL_WORLD_SIZE": ""}
    words = 'LaunchError: bind="exclusive" deals the CPUs among the processes'
    each = {n: {"GROUP_RANK": "0"} for n in range(2)}
    ended = job("asked", every={**every, "GROUP_WORLD_SIZE": "2"}, each=each)
    assert any(words in rank.out for rank in ended), ended[0].out
    assert [rank.code for rank in ended] == [1, 1]


def test_a_device_in_use_is_not_idle_if_it_is_the_only_one(
    claims: dict[str, str], tmp_path: Path
) -> None:
    """Also where the launcher tells no local rank."""
    used = {n: [{"pid": 7, "user": "ann"}] for n in range(4)}
    machine = described(tmp_path, tenants=used)
    alone = {"GPUMAP_GPUS": "2", **claims, **machine}
    [refused] = finish([start("idle", alone, script=SCRIPT)])
    assert "cuda:2 (GPU-2a) is used by ann, pid 7." in refused.out.replace("…", "")


def test_the_closest_device_is_beside_the_ranks_cpus(tmp_path: Path) -> None:
    """Ranks that are bound the other way round get their devices so, as on Polaris."""
    if CORES < 2:
        pytest.skip("this machine has one CPU: two ranks cannot be bound to two")
    first, second = sorted(os.sched_getaffinity(0))[:2]
    machine = described(tmp_path, cpu_affinity={0: [second], 1: [first]})
    each = {0: {"CPUS": f"{first}"}, 1: {"CPUS": f"{second}"}}
    assert devices(job("closest", every=machine, each=each)) == [1, 0]
    unbound = {"CPUS": f"{first},{second}"}
    assert devices(job("closest", every={**machine, **unbound})) == [0, 1]


def test_a_decision_can_be_replayed_from_what_was_printed(
    claims: dict[str, str], tmp_path: Path
) -> None:
    """place() of the logged launch and node gives the device that was decided on."""
    machine = described(tmp_path, free_memory={0: 4, 1: 5, 2: 9, 3: 6})
    [alone] = finish([start("replayed", {**claims, **machine}, script=SCRIPT)])
    assert "replayed 2 of 2" in alone.out


def test_ranks_run_on_physical_cores_of_their_own() -> None:
    """With "exclusive", no CPU is two ranks', and workers run where their rank does."""
    if CORES < 2:
        pytest.skip("this machine has one CPU: two ranks cannot have one each")
    ended = job("bound", every={"BIND": "exclusive", "OMP_NUM_THREADS": ""})
    out = "".join(rank.out for rank in ended)
    assert [rank.code for rank in ended] == [0, 0], out
    found = re.findall(r"on (\S+) worker (\S+) threads (\d+)", out)
    (first, its_worker, threads), (second, other_worker, _) = found
    assert (first, second) == (its_worker, other_worker)
    assert not set(cpus_in(first)) & set(cpus_in(second))
    assert int(threads) <= len(cpus_in(first))
    assert out.count("as before") == 2


def cpus_in(text: str) -> list[int]:
    """Return the CPUs of a list such as 0-1,4, as taskset reads it."""
    command = ["taskset", "-c", text, "nproc"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ends = [part.split("-") for part in text.split(",")]
    found = [cpu for end in ends for cpu in range(int(end[0]), int(end[-1]) + 1)]
    assert len(found) == int(done.stdout)
    return found


def test_more_ranks_than_cores_cannot_have_cores_of_their_own() -> None:
    """Every rank raises, and is told to share."""
    ended = job("bound", CORES + 1, every={"BIND": "exclusive"})
    all_say(ended, 'Write bind="numa", which lets them share these CPUs')


def test_a_rehearsal_says_which_cpus_it_would_run_on(tmp_path: Path) -> None:
    """Both ranks have the CPUs of their devices' NUMA node; this machine's stay."""
    beside = {n: list(range(16 * (n // 2), 16 * (n // 2) + 16)) for n in range(4)}
    machine = described(tmp_path, cpu_affinity=beside)
    ended = job("rehearsed_binding", 3, every={**machine, "BIND": "exclusive"})
    for rank, cpus in enumerate(["0-7", "8-15", "16-31"]):
        assert f"rank {rank} would run on CPUs {cpus}" in ended[rank].out

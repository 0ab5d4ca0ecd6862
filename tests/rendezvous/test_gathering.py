"""The ranks of a job meet before their scripts start, and leave the port free."""

import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import torch.distributed as dist

from gpumap.mapping.launch import Launch
from gpumap.rendezvous import keys
from gpumap.rendezvous.gathering import Gathering
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.store_client import Client, StoreLostError
from gpumap.rendezvous.store_server import StoreServer
from helpers.environments import rank_environment
from helpers.jobs import Ended, Process, finish, free_port, start

GATHERER = Path(__file__).parent.parent / "helpers" / "gatherer.py"
AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "True"}


def ranks(
    case: str,
    world_size: int,
    port: int,
    every: Mapping[str, str] | None = None,
    which: Sequence[int] | None = None,
) -> list[Process]:
    """Start ranks of a job, each a new Python."""
    return [
        start(
            case,
            {**rank_environment(rank, world_size, port), **(every or {})},
            cold=True,
            script=GATHERER,
        )
        for rank in (range(world_size) if which is None else which)
    ]


def has(port: int, key: str, prefix: str = "gpumap/run/0/1") -> bool:
    """Tell whether a key is on the store, as far as there is one yet."""
    try:
        with closing(Client("127.0.0.1", port, 5)) as client:
            return SessionStore(client, prefix).has(key)
    except (OSError, StoreLostError):
        return False


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, 30 seconds at most."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def errors(ended: Sequence[Ended], kind: str = "RollCallError") -> list[str]:
    """Return the first line of each rank's error; all have failed, without torch."""
    assert [(rank.code, "no torch" in rank.out) for rank in ended] == [
        (1, True) for _ in ended
    ], ended
    return [re.findall(rf"^{kind}: (.*)", rank.out, re.MULTILINE)[0] for rank in ended]


def test_all_ranks_meet_and_the_script_has_the_port_at_once() -> None:
    """Rank 0 binds the port without SO_REUSEADDR, 40 times in a row."""
    ended = finish(ranks("go 40", 3, free_port()))
    assert [rank.code for rank in ended] == [0, 0, 0], ended
    for rank, one in enumerate(ended):
        assert one.out.count(f"rank {rank} met 2\n") == 40
        assert one.out.count("the port is the script's\n") == (40 if rank else 0)
        assert one.out.endswith("no torch\n")


def test_a_missing_rank_is_named_by_all_that_came() -> None:
    """After their seconds both ranks that came raise the same error."""
    said = finish(ranks("go 1", 3, free_port(), {"START_TIMEOUT": "2"}, which=[0, 1]))
    assert errors(said) == ["rank 2 of 3 did not come within 2 s."] * 2


def test_a_missing_rank_0_is_named_with_its_address() -> None:
    """Without rank 0 there is no store to meet at."""
    port = free_port()
    said = finish(ranks("go 1", 2, port, {"START_TIMEOUT": "1"}, which=[1]))
    [line] = errors(said)
    assert line.startswith(f"rank 0 did not open its store at 127.0.0.1:{port} within ")


def test_a_rank_that_is_killed_while_it_waits_is_named() -> None:
    """Who waits, and who comes later, raises the same error."""
    port = free_port()
    processes = ranks("go 1", 3, port, which=[0, 1])
    until(lambda: has(port, keys.rank(0)) and has(port, keys.rank(1)))
    processes[1].kill()
    until(lambda: has(port, keys.VERDICT))
    ended = finish([*processes, *ranks("go 1", 3, port, which=[2])])
    for said in errors([ended[0], ended[2]]):
        assert re.fullmatch(
            r"rank 1 \(pid \d+ on .*\), on cuda:1, did not stay for the roll call: "
            r"its process is gone\.",
            said,
        )


def test_a_rank_that_cannot_start_is_heard_by_all() -> None:
    """All ranks read its error before rank 0 closes the store."""
    for _ in range(5):
        ended = finish(ranks("fail 1", 3, free_port()))
        assert ended[2].code == 0
        for said in errors(ended[:2]):
            assert said.startswith("rank 2 (pid ")
            assert said.endswith("cannot start: ValueError: no such device")


def test_a_rank_0_that_is_killed_during_the_roll_call_is_lost() -> None:
    """Who waits is told by the store's end."""
    port = free_port()
    processes = ranks("go 1", 3, port, which=[0, 1])
    until(lambda: has(port, keys.rank(0)) and has(port, keys.rank(1)))
    processes[0].kill()
    [said] = errors(finish(processes)[1:], "StoreLostError")
    assert said.startswith(f"127.0.0.1:{port}: ")


@pytest.mark.parametrize(
    ("number", "happened"),
    [
        (signal.SIGKILL, "went after the roll call."),
        (signal.SIGSTOP, "went after the roll call."),
        (0, "did not close it within 3 s."),
    ],
)
def test_a_rank_0_that_is_lost_after_the_roll_call_is_named(
    number: int, happened: str
) -> None:
    """The others do not start while they cannot know that the port is free."""
    port = free_port()
    processes = ranks("hang 1", 3, port, {"START_TIMEOUT": "3"})
    for rank, process in enumerate(processes):
        assert isinstance(process, subprocess.Popen)
        assert process.stdout is not None
        assert process.stdout.readline() == f"rank {rank} met 2\n"
    processes[0].send_signal(number)
    others = finish(processes[1:])
    processes[0].kill()
    finish(processes[:1])
    for said in errors(others):
        keeper = r"rank 0 \(pid \d+ on .*, gatherer.py\), which hosts the store,"
        assert re.fullmatch(f"{keeper} {happened}", said)


def test_two_jobs_on_one_port_are_told_apart() -> None:
    """Who comes to another job's store says so, and that job knows who came."""
    port = free_port()
    one = ranks(
        "go 1", 2, port, {"GPUMAP_JOB_ID": "7", "START_TIMEOUT": "5"}, which=[0]
    )
    until(lambda: has(port, keys.rank(0)))
    other = finish(ranks("go 1", 2, port, {"GPUMAP_JOB_ID": "8"}, which=[1]))
    assert errors(other) == [f"another job answers at 127.0.0.1:{port}."]
    assert "another job: 7 and 8" in other[0].out
    ended = finish(one)
    assert errors(ended) == ["rank 1 of 2 did not come within 5 s."]
    assert "One came and left as another job's." in ended[0].out


def test_a_job_of_one_name_goes_on_beside_a_port_of_its_own() -> None:
    """Two jobs with a port each, at the same time, meet among themselves."""
    both = [ranks("go 3", 2, free_port(), {"GPUMAP_JOB_ID": n}) for n in "78"]
    ended = finish([process for job in both for process in job])
    assert [rank.code for rank in ended] == [0, 0, 0, 0], ended


def test_the_ranks_gather_again_on_torchruns_store() -> None:
    """A store that outlives the ranks has other keys for each gathering and restart."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for restart, number in (("0", 1), ("0", 2), ("1", 1)):
        environ = {**AGENT, "TORCHELASTIC_RESTART_COUNT": restart}
        ended = finish(ranks("go 1", 2, store.port, environ))
        assert [rank.code for rank in ended] == [0, 0], ended
        assert all("no torch" in rank.out for rank in ended)
        prefix = f"gpumap/run/{restart}/{number}"
        assert has(store.port, keys.rank(1), prefix)
        assert not has(store.port, keys.rank(1), f"gpumap/run/{restart}/{number + 1}")
    # No session of a script has these keys.
    assert not has(store.port, keys.rank(1), "gpumap/0/1")
    assert store.check(["gpumap/run/0/gathered/0"])


def test_a_script_that_ends_late_on_rank_0_is_waited_for() -> None:
    """A rank that comes to the store of the job's last script meets rank 0 afterwards.

    A shell may start one script after the other, on one port.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    last = StoreServer(listener)
    early = ranks("go 1", 2, port, which=[1])
    until(lambda: not last.wait_until_left(0))
    last.close()
    ended = finish([*early, *ranks("go 1", 2, port, which=[0])])
    assert [rank.code for rank in ended] == [0, 0], ended


def test_nobody_gathers_before_it_is_asked() -> None:
    """A gathering that is not used opens nothing, and says no more than it knows."""
    port = free_port()
    launch = Launch(
        launcher="test", rank=0, world_size=2, num_nodes=1, master_port=port
    )
    with Gathering(launch, {}) as gathering:
        assert not gathering.is_open
        assert gathering.keeper == "the store"
        assert not has(port, "any")
        me = Member(rank=0, hostname="n1", pid=1, device="")
        with (
            closing(gathering.peers(me, 10).store),
            closing(gathering.peers(me, 10).store),
        ):
            assert gathering.is_open
            assert gathering.keeper == "this process"
            assert has(port, "owner", "gpumap")
    assert not has(port, "owner", "gpumap")


def test_a_gathering_without_a_store_is_no_place_to_stay() -> None:
    """If the store has gone, a further connection to it is a StoreLostError."""
    store = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    launch = Launch(
        launcher="torchrun",
        rank=1,
        world_size=2,
        master_addr="127.0.0.1",
        master_port=store[0].port,
    )
    me = Member(rank=1, hostname="n1", pid=1, device="")
    with Gathering(launch, AGENT) as gathering:
        peers = gathering.peers(me, 5)
        assert gathering.keeper == "torchrun, which hosts the store,"
        assert peers.host is None
        gathering.disperse(peers, 5)
        store.clear()
        with pytest.raises(StoreLostError):
            gathering.peers(me, 1)

"""What the ranks of a node decide together before the roll call."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch.distributed as dist

from gpumap.errors import RollCallError
from gpumap.mapping.launch import Launch
from gpumap.rendezvous import keys
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.node_decision import Decision, Facts, NodeRanks
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.procfs import pid_space
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.torch_keys import TorchKeys
from gpumap.rendezvous.verdict import Verdict

Decide = Callable[[Sequence[Facts]], Decision]


class Job:
    """Ranks of one node in threads of this process, on one store."""

    def __init__(self, ranks: int, seconds: float = 10.0) -> None:
        """Start with nobody there; seconds is start_timeout."""
        self.ranks, self.seconds = ranks, seconds
        self._store = dist.HashStore()
        self._threads = ThreadPoolExecutor(ranks)

    def store(self) -> SessionStore:
        """Return a connection."""
        return SessionStore(TorchKeys(self._store), "")

    def member(self, rank: int, pid: int | None = None) -> Member:
        """Return a rank, in this process if no other is named."""
        pid = os.getpid() if pid is None else pid
        space = pid_space()
        return Member(rank=rank, hostname="n1", pid=pid, device="", pid_space=space)

    def decide(
        self,
        rank: int,
        decision_of: Decide = lambda facts: Decision(ranks=len(facts)),
        *,
        ranks: int | None = None,
        pid: int | None = None,
        bound: str = "",
    ) -> Future[tuple[Decision, Sequence[Member]]]:
        """Let a rank take part in a thread."""
        me = self.member(rank, pid)
        launch = Launch(launcher="test", rank=rank, world_size=self.ranks)
        peers = Peers(self.store(), me, self.ranks, here=range(self.ranks))
        here = NodeRanks(peers, "0", rank, ranks or self.ranks, self.seconds)
        mine = Facts(member=me, launch=launch, bound=bound)
        return self._threads.submit(here.decide, mine, decision_of)


def error_of(found: Future[tuple[Decision, Sequence[Member]]]) -> str:
    """Return the text of a rank's RollCallError."""
    with pytest.raises(RollCallError) as caught:
        found.result(30)
    return str(caught.value)


def test_local_rank_0_decides_from_the_facts_of_all() -> None:
    """All ranks get its decision; it has asked nobody else to decide."""
    job, asked = Job(3), threading.Semaphore(1)

    def decision_of(facts: Sequence[Facts]) -> Decision:
        assert asked.acquire(blocking=False)
        return Decision(ranks=3, devices=tuple(one.bound for one in facts))

    found = [job.decide(n, decision_of, bound=f"cpu {n}") for n in (2, 0, 1)]
    decisions = [one.result(30)[0] for one in found]
    assert [one.devices for one in decisions] == [("cpu 0", "cpu 1", "cpu 2")] * 3


def test_who_was_met_is_known_afterwards() -> None:
    """The roll call watches these processes from its begin."""
    job = Job(2)
    first, second = job.decide(0), job.decide(1)
    assert [member.rank for member in first.result(30)[1]] == [0, 1]
    assert [member.rank for member in second.result(30)[1]] == [0]


def test_a_rank_that_does_not_come_is_named_by_its_local_rank() -> None:
    """Nine tenths of start_timeout are for this, so that the reason is told here."""
    missing = Job(2, seconds=2.0)
    assert "local rank 1 of 2 on n1 did not come within 1.8 s" in error_of(
        missing.decide(0)
    )
    [verdict] = [missing.store().read(keys.VERDICT, Verdict)]
    assert verdict.absent == 1
    assert "local rank 0 of 2 on n1 did not come" in error_of(
        Job(2, seconds=2.0).decide(1)
    )


def test_a_decision_that_does_not_come_names_who_makes_it() -> None:
    """The others do not wait longer for it than start_timeout."""
    job, end = Job(2, seconds=2.0), threading.Event()

    def slow(_: Sequence[Facts]) -> Decision:
        end.wait(30)
        return Decision(ranks=2)

    first, second = job.decide(0, slow), job.decide(1)
    said = error_of(second)
    end.set()
    assert "rank 0 (pid" in said
    assert "did not decide for the ranks of its node within 1.8 s" in said
    # The verdict is for all ranks, the late one included.
    assert said == error_of(first)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rank_whose_process_is_gone_is_named(gone: int) -> None:
    """Who waits for it looks every second whether its process is there."""
    job, ended = Job(3), 2**22 - 1  # no process has the largest id of all
    facts = Facts(
        member=job.member(gone, pid=ended),
        launch=Launch(launcher="test", rank=gone, world_size=3),
    )
    job.store().write(keys.facts("0", gone), facts)
    said = error_of(job.decide(0 if gone else 1))
    assert f"rank {gone} (pid {ended} on n1), did not stay for the roll call" in said


def test_the_error_of_another_rank_ends_the_wait() -> None:
    """A rank of the job that cannot start is heard of here too."""
    job = Job(2)
    job.store().claim(keys.VERDICT, Verdict(happened="rank 5 cannot start: so."))
    assert error_of(job.decide(0)) == "rank 5 cannot start: so."


def test_a_rank_that_decides_by_itself_is_named() -> None:
    """It stands in the roll call while another waits for what it knows."""
    job = Job(2)
    job.store().claim(keys.rank(1), job.member(1))
    said = error_of(job.decide(0))
    assert said.startswith("rank 0 (pid")
    assert "decides with the other ranks of its node, and rank 1 (pid" in said
    assert "Give every rank of a node the same arguments" in said


def test_ranks_that_disagree_on_how_many_they_are_are_told_so() -> None:
    """A third local rank of what the decider takes for two."""
    job = Job(3)
    deciders = [job.decide(0, ranks=2), job.decide(1, ranks=2)]
    assert deciders[0].result(30)[0].ranks == 2
    said = error_of(job.decide(2, ranks=3))
    assert "the ranks of n1 disagree on how many they are: rank 0 (pid" in said
    assert "LOCAL_WORLD_SIZE" in said


def test_a_local_rank_that_is_claimed_twice_is_named() -> None:
    """By two ranks, or by two processes of one rank."""
    job = Job(2)
    other = Facts(
        member=job.member(1), launch=Launch(launcher="test", rank=1, world_size=2)
    )
    job.store().write(keys.facts("0", 0), other)
    said = error_of(job.decide(0))
    assert "local rank 0 on n1 is claimed twice: by rank 1 (pid" in said
    again = Job(2)
    twin = other.model_copy(update={"member": again.member(0, pid=1)})
    again.store().write(keys.facts("0", 0), twin)
    assert error_of(again.decide(0)).startswith("rank 0 is claimed twice: by pid 1 on")


def test_a_process_too_many_leaves_a_started_job_alone() -> None:
    """The verdict of a job that has started stays go."""
    job = Job(2)
    twin = Facts(
        member=job.member(0, pid=1),
        launch=Launch(launcher="test", rank=0, world_size=2),
    )
    job.store().write(keys.facts("0", 0), twin)
    job.store().claim(keys.VERDICT, Verdict())
    assert error_of(job.decide(0)).startswith("rank 0 is claimed twice")
    assert job.store().read(keys.VERDICT, Verdict).error is None

"""One rank goes first: the others wait for it, and hear of its failure."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch.distributed as dist

import gpumap
from gpumap.rendezvous import keys
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.torch_keys import TorchKeys
from gpumap.runtime.turns import Turn
from helpers.environments import clean_environment, rank_environment
from helpers.jobs import WORKER, Ended, free_port, run
from helpers.warm import Script

if TYPE_CHECKING:
    from gpumap.runtime.shutdown import Shutdown
    from gpumap.runtime.startup import Started

INSIDE = WORKER.with_name("inside.py")


def inside(case: str, folder: str = "") -> list[Ended]:
    """Run a case of inside.py in two ranks."""
    return run(case, script=INSIDE, every={"FOLDER": folder})


def test_rank_0_runs_the_block_before_the_others(tmp_path: Path) -> None:
    """Rank 1 reads what rank 0 has written, at each of several uses, nested or not."""
    for rank in inside("turns", str(tmp_path)):
        assert rank.code == 0, rank.out
        said = ["read 0", "read 1", "read 2", "nested", "ended well"]
        assert rank.out.splitlines() == said


def test_each_node_has_a_first_rank_of_its_own() -> None:
    """With local=True a node's local rank 0 does not wait for another node's."""
    each = {
        rank: {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": str(rank)}
        for rank in (0, 1)
    }
    ended = run("nodes", script=INSIDE, each=each)
    assert [rank.code for rank in ended] == [0, 0], ended
    assert ["node 0" in ended[0].out, "node 1" in ended[1].out] == [True, True]


def test_a_first_rank_that_raises_fails_all_at_once() -> None:
    """Rank 0 keeps its own error; rank 1's names rank 0 and its error."""
    first, other = inside("turn raises")
    assert "ValueError no space left" in first.out
    assert "failed first" not in first.out
    assert re.search(
        r"SessionError rank 0 \(.*\), on cpu, failed first: ValueError: no space left. "
        r"Rank 1 waited for rank 0 to go first.",
        other.out,
    )
    assert "ranks (0,)" in other.out
    assert "in\n" not in other.out


def test_an_error_that_takes_no_attribute_leaves_a_turn_unchanged() -> None:
    """An error that is a frozen dataclass is raised as it is, and told."""
    first, other = inside("turn frozen")
    assert first.out.splitlines()[:2] == ["in", "FrozenError 3"]
    assert "failed first: FrozenError: 3." in other.out


def test_a_failed_turn_may_be_caught_on_all_ranks() -> None:
    """If every rank catches it, the session goes on."""
    first, other = inside("turn caught")
    assert first.out.splitlines()[:3] == ["in", "caught no space left", "ended well"]
    assert other.out.startswith("caught rank 0 (")
    assert "ended well" in other.out


def test_a_first_rank_that_is_killed_is_noticed() -> None:
    """Rank 1 sees that rank 0's process is gone."""
    first, other = inside("turn killed")
    assert first.code == -signal.SIGKILL
    assert re.search(r"SessionError rank 0 \(.*\) failed first|hosts the", other.out)
    assert "its process is gone" in other.out


def test_a_first_rank_that_takes_too_long_is_named() -> None:
    """The others wait for as long as they are told to."""
    _, other = inside("turn late")
    assert re.search(
        r"SessionError rank 0 \(.*\), which goes first, is not done within 1 s",
        other.out,
    )


def test_a_first_rank_that_comes_to_its_end_is_named() -> None:
    """Rank 0 leaves the session without a turn that rank 1 waits for."""
    _, other = inside("turn fewer")
    assert re.search(
        r"SessionError rank 0 \(.*\), on cpu, has come to its end, and does not go fir",
        other.out,
    )


class _JustDone(SessionStore):
    """A store on which the first rank ends between two requests of another one."""

    def wait(
        self,
        key: str,
        kind: type[Any],
        seconds: float,
        look: Callable[[], object] = lambda: None,
    ) -> Any:
        """Let the first rank leave its block and come to its end; then look."""
        del seconds
        first = Member(rank=0, hostname="n1", pid=os.getpid(), device="cpu")
        self.claim(keys.rank(0), first)
        self.write(key, kind())
        self.write(keys.ended(0), first)
        look()
        return self.read(key, kind)


def test_a_first_rank_that_ends_right_after_its_block_has_gone_first() -> None:
    """A script may have nothing else in its session."""
    me = Member(rank=1, hostname="n1", pid=os.getpid(), device="cpu")
    store = _JustDone(TorchKeys(dist.HashStore()), "")
    started = SimpleNamespace(me=me, peers=lambda _: Peers(store, me, 2, host=0))
    ending = SimpleNamespace(heard=lambda: None)

    turn = Turn(
        cast("Started", started),
        cast("Shutdown", ending),
        name="turn",
        first=0,
        who="rank 0",
    )

    turn.wait(5.0)


def test_a_wrap_in_a_turn_is_refused() -> None:
    """A wrap waits for all ranks, which wait for the one that goes first."""
    first, other = inside("turn wraps")
    assert "SessionError session.wrap(…) waits for all ranks, which wait f" in first.out
    assert "failed first: SessionError: session.wrap(…) waits for all" in other.out


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGTERM, "Terminated"), (signal.SIGINT, "KeyboardInterrupt")],
)
def test_a_signal_interrupts_a_rank_that_waits(number: int, name: str) -> None:
    """SIGTERM and Ctrl-C end the wait for the first rank, which then hears of it."""
    port = free_port()
    ranks = [
        Script(
            [str(INSIDE), "turn", "waits"],
            {**clean_environment(), **rank_environment(rank, 2, port)},
        )
        for rank in range(2)
    ]
    with ranks[0] as first, ranks[1] as other:
        deadline = time.monotonic() + 60
        while "in" not in first.said():
            assert time.monotonic() < deadline, first.said()
            time.sleep(0.02)
        time.sleep(1)
        other.send_signal(number)
        out, _ = other.communicate(30)
        told, _ = first.communicate(60)
    assert out.startswith(name), out
    assert f"failed first: {name}" in told


def test_alone_there_is_nobody_to_wait_for() -> None:
    """In a world of one the block runs at once."""
    with gpumap.session() as s:
        with s.rank_zero_first(), s.rank_zero_first(local=True):
            pass
        with pytest.raises(gpumap.SessionError, match="timeout=0 is not a time"):
            s.rank_zero_first(timeout=0)
    with pytest.raises(gpumap.SessionError, match="over"), s.rank_zero_first():
        pass

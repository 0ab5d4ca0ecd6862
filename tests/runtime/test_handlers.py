"""SIGTERM in a real script: children that get it, and handlers that are the user's."""

import signal
import time

import pytest

from helpers.environments import clean_environment, rank_environment
from helpers.jobs import ENDINGS, Ended, finish, free_port, start
from helpers.warm import Script


def alone(case: str) -> Ended:
    """Run a case in a single process and return its outcome."""
    [ended] = finish([start(case, {}, script=ENDINGS)])
    return ended


@pytest.mark.parametrize("how", ["process", "pool", "loader", "C"])
def test_a_childs_sigterm_is_not_its_parents(how: str) -> None:
    """SIGTERM to a child does not end its parent, not even after the time limit."""
    ended = alone(f"child_terminated {how}")
    assert ended.code == 0, ended.out
    assert "ended well" in ended.out


@pytest.mark.parametrize("how", ["signal", "asyncio"])
def test_a_handler_set_inside_the_block_is_left_to_do_its_work(how: str) -> None:
    """A SIGTERM handler set inside the block may run for longer than the time limit."""
    ended = alone(f"own_handler {how}")
    assert ended.code == 0, ended.out
    assert "saved and went on;" in ended.out


def test_what_the_user_does_about_the_signal_may_take_its_time() -> None:
    """A `finally` may take long after SIGTERM; the exit code is 143 all the same."""
    ended = alone("saves_while_leaving")
    assert ended.code == 143, ended.out
    assert "saved" in ended.out


def test_nothing_of_it_is_left_after_a_session() -> None:
    """A session leaves no SIGTERM handler, wake-up descriptor or thread behind."""
    ended = alone("two_in_a_row")
    assert ended.out.splitlines() == ["True -1 []"] * 2


def two_ranks(case: str) -> list[Script]:
    """Start two ranks of a case."""
    port = free_port()
    return [
        Script(
            [str(ENDINGS), case],
            {**clean_environment(), **rank_environment(rank, 2, port)},
        )
        for rank in range(2)
    ]


def wait_for(text: str, rank: Script) -> None:
    """Wait until a rank has printed a text."""
    deadline = time.monotonic() + 60
    while text not in rank.said():
        assert time.monotonic() < deadline, rank.said()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [(signal.SIGTERM, 143, "SIGTERM came"), (signal.SIGINT, -2, "KeyboardInterrupt")],
)
@pytest.mark.parametrize("after", [0.05, 1.0, 2.5])
def test_a_signal_while_a_rank_finds_out_who_is_silent(
    number: int, code: int, name: str, after: float
) -> None:
    """SIGTERM and SIGINT end a rank that is finding out which rank is silent.

    torchrun sends SIGTERM a moment after a rank died: no thread may be in C++ then.
    """
    first, second = two_ranks("asks_in_vain")
    with first, second:
        wait_for("asks", first)
        time.sleep(after)
        first.send_signal(number)
        out, _ = first.communicate(30)
    assert first.returncode == code, out
    assert name in out
    assert "Timed out waiting 2000ms" in out


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [(signal.SIGTERM, 143, "Terminated"), (signal.SIGINT, -2, "KeyboardInterrupt")],
)
def test_a_signal_while_a_rank_waits_at_its_end(
    number: int, code: int, name: str
) -> None:
    """A signal ends a rank that waits at its end, and the other rank hears of it."""
    first, second = two_ranks("waits_at_end")
    with first, second:
        for rank in (first, second):
            wait_for("there", rank)
        time.sleep(1)
        first.send_signal(number)
        out, _ = first.communicate(5)
        other, _ = second.communicate(30)
    assert first.returncode == code, out
    assert second.returncode == 1
    assert f"failed first: {name}" in other
    assert "This rank had come to its end." in other

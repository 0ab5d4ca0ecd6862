"""What a rank prints while it waits, and how errors are put into words."""

import re
import signal

import pytest
import torch.distributed as dist

from gpumap.notes import note, notes_of
from gpumap.rendezvous.failures import Fault
from gpumap.rendezvous.messages import described, signal_name
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.torch_keys import TorchKeys
from helpers.environments import rank_environment
from helpers.jobs import endings, finish, free_port, run, start


def test_the_stores_host_says_who_is_awaited_and_for_how_long() -> None:
    """Only the store's host prints who is missing and how long it will wait."""
    ended = run("train", 3, delays={2: 7.0})
    assert [rank.code for rank in ended] == [0, 0, 0], ended
    line = r"rank 2 of 3 not here yet; waiting for 2\d s more"
    assert [len(re.findall(line, rank.out)) for rank in ended] == [1, 0, 0]


def test_a_rank_whose_store_is_not_there_says_so() -> None:
    """If rank 0 is missing, the other ranks print that its store is not open yet."""
    port = free_port()
    waiting = start(
        "train", {**rank_environment(1, 2, port), "GPUMAP_START_TIMEOUT": "7"}
    )
    [rank] = finish([waiting])
    assert f"rank 0 has not opened its store at 127.0.0.1:{port} yet" in rank.out
    assert "did not open its store" in rank.out


def test_start_timeout_can_be_set_for_a_script_that_has_its_own() -> None:
    """GPUMAP_START_TIMEOUT overrides the argument; an invalid value is an error."""
    every = {"GPUMAP_START_TIMEOUT": "2", "START_TIMEOUT": "300"}
    [alone] = run("train", ranks=[0], every=every)
    assert "rank 1 of 2 did not come within 2 s." in alone.out
    [wrong] = run("train", ranks=[0], every={"GPUMAP_START_TIMEOUT": "soon"})
    assert "SessionError: GPUMAP_START_TIMEOUT='soon' is not a time." in wrong.out


@pytest.mark.parametrize(("how", "most"), [("start", 48), ("body", 0), ("end", 48)])
def test_a_wait_asks_the_store_a_few_times_a_second(how: str, most: int) -> None:
    """A waiting rank sends the store few requests a second, and none in training."""
    waiting, _ = endings(f"patient {how}", every={"LIMIT": "30"})
    assert waiting.code == 0, waiting.out
    assert int(re.findall(r"asked (\d+)", waiting.out)[0]) <= most


@pytest.mark.parametrize("case", ["patient start", "rank_0_evaluates", "slow"])
def test_no_wait_prints_torchs_warnings(case: str) -> None:
    """A wait prints none of the warnings that torch's C++ store client would."""
    for rank in endings(case, every={"LIMIT": "30"}):
        assert "[c10d]" not in rank.out
        assert "TCPStore" not in rank.out


class Unprintable(Exception):  # noqa: N818 - a user's own
    """An error whose text fails."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError


def test_an_error_is_described_in_printable_words() -> None:
    """Any error is described in printable text, even if its __str__ fails."""
    assert described(ValueError("a\udc80")) == "ValueError: a\\udc80"
    assert described(KeyError()) == "KeyError"
    assert described(Unprintable()) == "Unprintable: (its text cannot be printed)"
    assert len(described(ValueError("y" * 10_000))) == 1000


def test_notes_are_added_to_what_is_there() -> None:
    """note() keeps what is in __notes__, even if that is not a list."""
    error = ValueError()
    note(error, "one")
    note(error, "two")
    assert notes_of(error) == ["one", "two"]
    error.__notes__ = 5  # type: ignore[assignment]
    note(error, "three")
    assert notes_of(error) == ["5", "three"]


def test_every_signal_has_a_name() -> None:
    """Real-time signals, for which Python has no names, are named too: SIGRTMIN+3."""
    assert signal_name(9) == "SIGKILL"
    assert signal_name(signal.SIGRTMIN + 3) == "SIGRTMIN+3"


def test_nothing_that_another_process_wrote_commands_a_terminal() -> None:
    """Control and bidirectional characters that another process wrote are escaped."""
    store = SessionStore(TorchKeys(dist.HashStore()), "x/")
    kept = Fault(text="学習\u3000実験\u00a0\u200d.py")
    store.write("kept", kept)
    assert store.read("kept", Fault) == kept
    fault = Fault(text="a\x1b[2J\x9b1m\0\a\u202eb\nc\td é", hint="\x7f", ranks=(1,))
    store.write("outcome", fault)
    assert store.read("outcome", Fault) == Fault(
        text="a\\x1b[2J\\x9b1m\\x00\\x07\\u202eb\nc\td é", hint="\\x7f", ranks=(1,)
    )

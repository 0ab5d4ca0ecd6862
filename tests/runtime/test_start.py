"""Sessions of flat scripts and notebooks: gpumap.start(), and session.close()."""

import inspect
import multiprocessing
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
import torch.distributed as dist
from nbclient import NotebookClient

import gpumap
from helpers import spawnjobs
from helpers.jobs import WORKER, Ended, run

INSIDE = WORKER.with_name("inside.py")


def flat(how: str) -> list[Ended]:
    """Run a flat script in two ranks."""
    return run(f"flat {how}", script=INSIDE)


@pytest.fixture(autouse=True)
def leak_guard() -> Iterator[None]:
    """Assert that no group is left."""
    yield
    assert not dist.is_initialized()


def test_a_started_session_is_left_by_close_and_once() -> None:
    """close() destroys the group; again, or in another session, it does nothing."""
    for rank in flat("closes"):
        assert rank.code == 0, rank.out
        said = ["closed False", "another one 2", "end False"]
        assert rank.out.splitlines() == said


def test_a_started_session_is_left_by_the_end_of_the_script() -> None:
    """Without close() the session ends with the script, on every rank, with code 0."""
    for rank in flat("ends"):
        assert (rank.code, rank.out) == (0, "end True\n")


@pytest.mark.parametrize("how", ["raises", "finally"])
def test_an_error_is_what_a_started_session_is_left_with(how: str) -> None:
    """An uncaught error, or one that passes a close(), is told to the other ranks."""
    other, failed = flat(how)
    assert (other.code, failed.code) == (1, 1)
    assert "ValueError: boom\ngpumap: raised on rank 1 (pid" in failed.out
    assert "SessionError" not in failed.out
    assert re.search(
        r"SessionError: rank 1 .* failed first: ValueError: boom", other.out
    )


def test_start_takes_the_arguments_of_session() -> None:
    """start() and session() declare the same arguments."""
    of_session = inspect.signature(gpumap.session)
    assert inspect.signature(gpumap.start).parameters == of_session.parameters


def test_a_started_session_is_the_current_one_until_it_is_closed() -> None:
    """start() returns the session itself; a second one is refused meanwhile."""
    s = gpumap.start(device="cpu")
    assert gpumap.current() is s
    with pytest.raises(gpumap.SessionError, match="already open") as refused:
        gpumap.start()
    assert "its close() ends it" in refused.value.hint
    s.close()
    with pytest.raises(gpumap.SessionError, match="no session is open"):
        gpumap.current()


def test_an_error_from_before_is_not_what_a_session_is_left_with() -> None:
    """A session that is opened below an `except` does not have that error."""
    ended = flat("below")
    assert [rank.code for rank in ended] == [0, 0], ended
    assert [rank.out for rank in ended] == ["closed\n", "closed\n"]


def test_another_thread_cannot_close_a_session() -> None:
    """It is told so, and the session goes on."""
    session = gpumap.start(device="cpu")
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(session.close).exception()
    assert gpumap.current() is session
    session.close()
    assert isinstance(told, gpumap.SessionError)
    assert told.happened == "a session is closed in the thread that has opened it."


def test_a_worker_that_imports_the_script_is_told_of_main(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that is not forked imports the script first, and so starts again."""
    process = multiprocessing.current_process()
    monkeypatch.setattr(process, "_inheriting", True, raising=False)
    with pytest.raises(
        gpumap.SessionError, match="being imported by a process"
    ) as told:
        gpumap.start(device="cpu")
    assert told.value.hint == (
        'Put what starts there below `if __name__ == "__main__":`.'
    )


def test_an_error_in_a_spawned_function_is_what_its_session_is_left_with(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The other rank hears of it at once, as from a block."""
    with pytest.raises(ValueError, match="boom"):
        gpumap.spawn(spawnjobs.flat, nprocs=2)
    told = capfd.readouterr().err
    assert "failed first: ValueError: boom" in told
    assert "had come to its end" not in told


def test_a_block_may_be_left_early() -> None:
    """close() in a `with` block leaves it; the end of the block then does nothing."""
    with gpumap.session(device="cpu") as s:
        s.close()
        assert not dist.is_initialized()
        with gpumap.session(device="cpu") as another:
            s.close()
            assert gpumap.current() is another


def test_a_session_above_a_function_opens_at_each_call() -> None:
    """@gpumap.session() opens a session at each call, and closes it."""

    @gpumap.session(device="cpu")
    def main(factor: int, *, more: int = 0) -> int:
        """Train."""
        return factor * gpumap.current().world_size + more

    assert (main(3), main(4, more=1)) == (3, 5)
    assert (main.__name__, main.__doc__) == ("main", "Train.")

    @gpumap.session(device="cpu")
    def fails() -> None:
        raise ValueError("boom")

    for _ in range(2):
        with pytest.raises(ValueError, match="boom"):
            fails()


def test_an_error_in_a_cell_does_not_end_a_notebooks_session() -> None:
    """A notebook's session goes on after an error in a cell, until close()."""
    cells = [
        "import gpumap\ns = gpumap.start(device='cpu')",
        "1 / 0",
        "m = s.wrap(__import__('torch').nn.Linear(1, 1))\ns.close()",
        "gpumap.start(device='cpu').rank",
    ]
    book = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells]  # type: ignore[no-untyped-call]
    )
    NotebookClient(
        book, timeout=100, kernel_name="python3", allow_errors=True
    ).execute()
    errors = [
        output.ename
        for cell in book.cells
        for output in cell.outputs
        if output.output_type == "error"
    ]
    assert errors == ["ZeroDivisionError"]
    assert book.cells[3].outputs[-1].data["text/plain"] == "0"

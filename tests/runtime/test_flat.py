"""Sessions that are entered and never left: they are closed as the script ends."""

import re

import pytest

from helpers.jobs import ENDINGS, endings, finish, start


@pytest.mark.parametrize("how", ["never", "closes", "kept"])
def test_a_session_that_is_not_left_ends_with_the_script(how: str) -> None:
    """A session that is never left ends with the script, without starting a thread."""
    for rank in endings(f"flat {how}"):
        assert rank.code == 0, rank.out
        assert f"end {how != 'closes'}" in rank.out
        assert "a thread was started" not in rank.out


def test_an_uncaught_error_is_what_it_is_left_with() -> None:
    """An uncaught error gets a note of its rank, and the other ranks hear of it."""
    ended = endings("flat raises")
    assert [rank.code for rank in ended] == [1, 1]
    assert "ValueError: boom\ngpumap: raised on rank 1 (pid" in ended[1].out
    assert re.search("SessionError: rank 1 .* failed first: Value", ended[0].out)
    assert all("a thread was started" not in rank.out for rank in ended)


def test_sys_exit_is_the_end_of_a_script() -> None:
    """If rank 1 exits while rank 0 is in a collective, both report uneven steps."""
    ended = endings("flat exits")
    assert all(rank.code != 0 for rank in ended)
    for rank in ended:
        assert re.search(
            "rank 1 .* had come to its end after 1 collectives, while rank 0 .* stood "
            "in all_reduce, its 2nd",
            rank.out,
        )


def test_letting_go_of_an_open_session_is_told_and_does_not_close_it() -> None:
    """A session that is not referred to stays open, with a message, until the end."""
    for rank in endings("flat dropped"):
        assert rank.code == 0, rank.out
        assert "nothing refers to an open session any more; it stays open" in rank.out
        assert "end True" in rank.out


@pytest.mark.parametrize(("how", "code"), [("ends", "0"), ("raises", "1")])
def test_a_child_of_multiprocessing_leaves_its_session_too(how: str, code: str) -> None:
    """A multiprocessing child's session is closed too, though it runs no atexit."""
    ended = endings(f"flat_child {how}", every={"GPUMAP_JOB_ID": "one"})
    for rank in ended:
        assert f"child {code}" in rank.out, rank.out
    if how == "raises":
        assert re.search("rank 1 .* failed first: ValueError: boom", ended[0].out)


def test_a_prompt_goes_on_after_an_error() -> None:
    """An earlier error at a prompt is not taken for the end of the script."""
    code = (
        "import sys, gpumap\n"
        "sys.ps1 = '>>> '\n"
        "sys.last_value = ValueError('of an earlier line')\n"
        "kept = gpumap.session()\n"
        "kept.__enter__()\n"
    )
    path = ENDINGS.with_name("prompt_script.py")
    try:
        path.write_text(code)
        [ended] = finish([start("", {}, script=path)])
    finally:
        path.unlink()
    assert (ended.code, ended.out) == (0, "")

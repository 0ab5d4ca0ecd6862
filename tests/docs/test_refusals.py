"""The page of all errors: it has each, and says what to do about each."""

import re
from collections.abc import Callable

import pytest
from refusals import CLASSES, notes, refusals, words

import gpumap
from gpumap import errors

LAB = gpumap.Node(
    hostname="lab", devices=(gpumap.Device(kind="cuda", index=0, name="A"),)
)
RAISED: list[Callable[[], object]] = [
    lambda: gpumap.machine("nothing"),
    lambda: gpumap.plan([LAB], [2]),
    lambda: gpumap.plan([LAB], [1], gpus=[1]),
    lambda: gpumap.plan([LAB], [1], strategy="scored"),
    lambda: gpumap.detect_launch({"RANK": "0"}),
    lambda: gpumap.detect_launch({"RANK": "x", "WORLD_SIZE": "2"}),
    lambda: gpumap.detect_launch({"GPUMAP_LAUNCHER": "mine"}),
    lambda: gpumap.parse_topology("", hostname="lab"),
    lambda: gpumap.best_linked(LAB, 2),
    lambda: gpumap.split_batch(1, [1.0, 1.0]),
    gpumap.current,
]


@pytest.mark.parametrize("refused", RAISED)
def test_an_error_is_found_by_its_words(refused: Callable[[], object]) -> None:
    """What is raised fits an entry of its class, word for word but for "…"."""
    with pytest.raises(gpumap.GpumapError) as caught:
        refused()
    listed = [r.happened for r in refusals() if r.error == type(caught.value).__name__]
    patterns = [".*".join(map(re.escape, text.split("…"))) for text in listed]
    assert any(re.fullmatch(p, caught.value.happened, re.DOTALL) for p in patterns)


def test_every_error_says_what_to_do() -> None:
    """An error whose hint is not written in the source has a note in its place."""
    answered = {refusal.happened for refusal in refusals() if words(refusal.hint)}
    silent = {refusal.happened for refusal in refusals()} - answered
    assert [text for text in silent if not text.startswith(tuple(notes()))] == []


def test_every_note_is_about_an_error() -> None:
    """A note whose message has been reworded would explain nothing."""
    listed = [refusal.happened for refusal in refusals()]
    assert [n for n in notes() if not any(x.startswith(n) for x in listed)] == []


def test_every_class_of_errors_has_a_place() -> None:
    """The page has a section for each public class of errors."""
    assert sorted(CLASSES) == sorted(errors.__all__)

"""What to write instead of an argument that is not there."""

from typing import Any

import pytest

from gpumap.mapping.keywords import list_instead_of, nearest, refuse_unknown

TAKEN = ("timeout", "start_timeout", "gpus")
HABITS = {"devices": "Write gpus=[0].", "gpus": "never used"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("start_timout", "f() takes no argument 'start_timout'. Did you mean start_ti"),
        ("time_out", "f() takes no argument 'time_out'. Did you mean timeout=…?"),
        ("devices", "f() takes no argument 'devices'. Write gpus=[0]."),
        ("q", "f() takes no argument 'q'. It takes timeout, start_timeout, gpus."),
    ],
)
def test_an_unknown_name_is_a_type_error_with_what_to_write(
    name: str, said: str
) -> None:
    """A habit counts before a name that is spelt alike; else all names are listed."""
    with pytest.raises(TypeError) as caught:
        refuse_unknown("f()", ["gpus", name], TAKEN, HABITS)
    assert str(caught.value).startswith(said)


def test_names_that_are_taken_pass() -> None:
    """A habit of the name of an argument that is taken does not count."""
    refuse_unknown("f()", TAKEN, TAKEN, HABITS)
    refuse_unknown("f()", (), TAKEN, HABITS)


@pytest.mark.parametrize(
    ("name", "close"),
    [("gpu", "gpus"), ("gpsu", "gpus"), ("g", ""), ("timeouts", "timeout")],
)
def test_the_nearest_name_is_one_that_is_spelt_nearly_so(name: str, close: str) -> None:
    """A name with little in common with all of them has no nearest one."""
    assert nearest(name, TAKEN) == close


EVERYTHING = "To use all visible devices, leave gpus out."


@pytest.mark.parametrize(
    ("gpus", "instead"),
    [
        ("0,1", "Write a list: gpus=[0, 1]."),
        (" 3 , GPU-5c,", "Write a list: gpus=[3, 'GPU-5c']."),
        ("", EVERYTHING),
        ("-1", EVERYTHING),
        ("all", EVERYTHING),
        ("auto", EVERYTHING),
        (-1, EVERYTHING),
        (0, "Write a list: gpus=[0]."),
        (
            1,
            "For the device 1 write gpus=[1]; to train on 1 device, start as many "
            "processes: torchrun --nproc-per-node 1, or spawn(…, nprocs=1).",
        ),
        (
            4,
            "For the device 4 write gpus=[4]; to train on 4 devices, start as many "
            "processes: torchrun --nproc-per-node 4, or spawn(…, nprocs=4).",
        ),
        (None, None),
        (True, None),
        ([], None),
        ([0, 1], None),
        ({"n1": [0]}, None),
        (1.5, None),
    ],
)
def test_a_text_or_a_number_of_gpus_is_told_as_a_list(
    gpus: Any, instead: str | None
) -> None:
    """Whatever is no text and no number is not another library's way to say it."""
    assert list_instead_of(gpus) == instead

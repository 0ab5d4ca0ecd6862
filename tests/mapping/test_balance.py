"""Balance: which speed and which bound each device has, and what is refused."""

from functools import partial
from typing import Any

import pytest

from gpumap.errors import DeviceError, PlacementError
from gpumap.mapping.balance import Balance
from gpumap.mapping.devices import CPU, Device, Node


def _speed_of(balance: Balance, device: Device, node: Node) -> float:
    return balance.speed_of(device, node, None)


CARDS = (
    Device(kind="cuda", index=0, name="A100", total_memory=40 * 2**30),
    Device(kind="cuda", index=1, name="V100", total_memory=16 * 2**30),
)
NODE = Node(hostname="n1", devices=CARDS)


def test_numbers_by_device_are_its_speed_and_its_bound() -> None:
    """A device's own number counts; other devices may have none."""
    balance = Balance(batch=64, speeds={0: 3.0}, most={0: 40})
    assert balance.speed_of(CARDS[0], NODE, None) == 3.0
    assert balance.most_of(CARDS[0], NODE) == 40


def test_a_function_of_the_device_gives_its_speed_and_its_bound() -> None:
    """What scores take, speeds and most take too."""
    balance = Balance(
        batch=64,
        speeds=lambda card: {"A100": 2.5, "V100": 1.0}[card.name or ""],
        most=lambda card: (card.total_memory or 0) // 2**30,
    )
    assert balance.speed_of(CARDS[1], NODE, None) == 1.0
    assert balance.most_of(CARDS[1], NODE) == 16
    assert Balance(batch=64, speeds="memory").speed_of(CARDS[0], NODE, None) == (
        40 * 2**30
    )


def test_adapt_starts_equal_or_from_given_numbers() -> None:
    """Without start all ranks are equally fast at first."""
    assert Balance(batch=64).speed_of(CARDS[1], NODE, None) == 1.0
    started = Balance(batch=64, start={1: 2.0})
    assert started.speed_of(CARDS[1], NODE, None) == 2.0


def test_a_measurement_is_the_speed_where_it_was_asked_for() -> None:
    """What measure() found counts, and one number for all is a bound for all."""
    balance = Balance(batch=64, speeds="measure", most=48)
    assert balance.speed_of(CARDS[0], NODE, 17.5) == 17.5
    assert balance.most_of(CARDS[0], NODE) == 48


def test_the_cpu_is_named_as_measure_names_it() -> None:
    """Speeds for "cpu" count on a node without accelerators."""
    balance = Balance(batch=64, speeds={"cpu": 0.25})
    assert balance.speed_of(CPU, Node(hostname="n1"), None) == 0.25


def test_speeds_for_the_cpu_and_for_devices_can_be_given_together() -> None:
    """The same numbers serve a node with devices and one without."""
    balance = Balance(batch=64, speeds={"cpu": 0.25, "cuda:0": 3.0}, most={"cpu": 4})
    assert balance.speed_of(CPU, Node(hostname="n1"), None) == 0.25
    assert balance.speed_of(CARDS[0], NODE, None) == 3.0
    assert balance.most_of(CPU, Node(hostname="n1")) == 4


@pytest.mark.parametrize(
    "speed", [0, -1.0, float("nan"), float("inf"), True, "1", None]
)
def test_a_speed_of_the_cpu_is_checked_as_any_other(speed: Any) -> None:
    """What is no number above 0 is refused in words, whatever it is."""
    balance = Balance(batch=64, speeds={"cpu": speed})
    words = r"is not a speed|the speed of cpu is|cpu has no speed"
    with pytest.raises(PlacementError, match=words):
        balance.speed_of(CPU, Node(hostname="n1"), None)


@pytest.mark.parametrize("most", [float("inf"), float("nan"), True, "8", None, 2.5, 0])
def test_a_bound_of_the_cpu_is_checked_as_any_other(most: Any) -> None:
    """What is no number of samples is refused in words, whatever it is."""
    balance = Balance(batch=64, most={"cpu": most})
    words = r"is not a bound|the most samples of cpu are|cpu has no bound"
    with pytest.raises(PlacementError, match=words):
        balance.most_of(CPU, Node(hostname="n1"))


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({}, "adapt"),
        ({"start": {0: 1}}, "adapt from given speeds"),
        ({"speeds": "measure"}, "measure"),
        ({"speeds": "memory"}, "memory"),
        ({"speeds": "multiprocessors"}, "multiprocessors"),
        ({"speeds": {0: 1}}, "numbers"),
        ({"speeds": lambda _: 1.0}, "function"),
    ],
)
def test_ranks_can_tell_each_other_where_speeds_come_from(
    options: dict[str, Any], how: str
) -> None:
    """Ranks that were given speeds of different kinds can see that."""
    balance = Balance(batch=64, **options)
    assert balance.how == how
    assert balance.adapts == how.startswith("adapt")


@pytest.mark.parametrize("speed", [0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_is_not_above_0_is_refused(speed: float) -> None:
    """Zero, negative numbers, NaN and infinity are no speeds."""
    with pytest.raises(PlacementError, match=r"is not a speed|the speed of cuda:0 is"):
        Balance(batch=64, speeds={0: speed, 1: 1.0}).speed_of(CARDS[0], NODE, None)


def test_a_speed_of_0_says_how_to_leave_a_device_out() -> None:
    """A device that should do nothing belongs out of the pool."""
    with pytest.raises(PlacementError) as raised:
        Balance(batch=64, speeds={0: 0}).speed_of(CARDS[0], NODE, None)
    assert str(raised.value) == (
        "the speed of cuda:0 is 0.\n"
        "speeds={0: 0}.\n"
        "Write numbers above 0, such as samples per second; leave a device that should "
        "do nothing out of gpus=[…]."
    )


def test_a_speed_of_a_device_that_is_not_there_is_refused() -> None:
    """A number for cuda:7 is an error on a node of two devices."""
    with pytest.raises(DeviceError, match="there is no device 7 on n1"):
        Balance(batch=64, speeds={0: 1, 7: 1}).speed_of(CARDS[0], NODE, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch=0 is not a number of samples"),
        ({"batch": 2.5}, "batch=2.5 is not a number of samples"),
        ({"batch": True}, "batch=True is not a number of samples"),
        ({"batch": 8, "minimum": 0}, "minimum=0 is not a number of samples"),
        ({"batch": 8, "speeds": {0: 1}, "start": {0: 1}}, "start=… goes with"),
    ],
)
def test_bad_numbers_are_refused_at_once(
    options: dict[str, object], words: str
) -> None:
    """Before any session, and in words."""
    with pytest.raises(PlacementError, match=words):
        Balance(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [{0: 1.5, 1: 8}, {0: 1}, lambda _: 0])
def test_a_bound_is_a_number_of_samples_not_below_the_minimum(most: Any) -> None:
    """A bound that no rank could keep is refused."""
    balance = Balance(batch=8, minimum=2, most=most)
    with pytest.raises(PlacementError, match="the most samples of cuda:0 are"):
        balance.most_of(CARDS[0], NODE)


SPEEDS = (
    'Write {device: number}, "memory", "multiprocessors", "measure", "adapt" or a '
    "function of Device."
)
START = 'Write {device: number}, "memory", "multiprocessors" or a function of Device.'
MOST = "Write a number of samples, {device: number} or a function of Device."


@pytest.mark.parametrize(
    ("option", "value", "write"),
    [
        ("speeds", "fast", SPEEDS),
        ("speeds", [3, 1], SPEEDS),
        ("speeds", 3, SPEEDS),
        ("speeds", None, SPEEDS),
        ("start", "adapt", START),
        ("start", (3, 1), START),
        ("most", [6, 2], MOST),
        ("most", 300.0, MOST),
        ("most", True, MOST),
        ("most", "memory", MOST),
    ],
)
def test_forms_that_no_device_could_make_good_are_refused_at_once(
    option: str, value: Any, write: str
) -> None:
    """Also in a world of one, which asks no device for a speed or a bound."""
    options: dict[str, Any] = {option: value}
    with pytest.raises(PlacementError) as raised:
        Balance(batch=8, **options)
    assert str(raised.value) == f"{option}={value!r} is not understood.\n{write}"


def test_a_bound_for_all_below_the_minimum_is_refused_at_once() -> None:
    """One number for all ranks needs no device either."""
    with pytest.raises(PlacementError) as raised:
        Balance(batch=8, minimum=3, most=2)
    assert str(raised.value) == (
        "most=2 is below the least samples of a rank.\nminimum=3.\n"
        "Write a number of samples that is not below the minimum."
    )
    assert Balance(batch=8, minimum=3, most=3).most_of(CARDS[0], NODE) == 3


def test_a_count_that_is_no_function_is_refused_at_once() -> None:
    """A number of samples is counted anew in each call."""
    with pytest.raises(PlacementError, match="count=4 is not a function"):
        Balance(batch=8, count=4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "device", "words"),
    [
        (
            {"speeds": {1: 2.0}},
            CARDS[0],
            "cuda:0 has no speed.\nspeeds={1: 2.0}.\nWrite a speed for each device "
            "that a rank trains on, or leave this one out of gpus=[…].",
        ),
        (
            {"start": {1: 2.0}},
            CARDS[0],
            "cuda:0 has no speed.\nstart={1: 2.0}.\nWrite a speed for each device that "
            "a rank trains on, or leave this one out of gpus=[…].",
        ),
        (
            {"most": {1: 8}},
            CARDS[0],
            "cuda:0 has no bound.\nmost={1: 8}.\nWrite a bound for each device that a "
            "rank trains on, or leave this one out of gpus=[…].",
        ),
        (
            {"speeds": {0: 2.0}},
            CPU,
            'cpu has no speed.\nspeeds={0: 2.0}.\nWrite speeds={"cpu": 1} where ranks '
            "train on the CPU.",
        ),
        (
            {"speeds": "memory"},
            CPU,
            "cpu has no speed.\nspeeds='memory'.\nWrite speeds={\"cpu\": 1} where "
            "ranks train on the CPU.",
        ),
    ],
)
def test_the_words_name_the_argument_that_the_user_wrote(
    options: dict[str, Any], device: Device, words: str
) -> None:
    """Speeds and bounds are read as scores are, and not called so."""
    balance = Balance(batch=8, **options)
    node = Node(hostname="n1") if device is CPU else NODE
    asks = balance.most_of if "most" in options else partial(_speed_of, balance)
    with pytest.raises(PlacementError) as raised:
        asks(device, node)
    assert str(raised.value) == words

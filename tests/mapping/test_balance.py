"""Balance: which speed and which bound each device has, and what is refused."""

from functools import partial

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


@pytest.mark.parametrize("most", [0, True, {0: 1.5, 1: 8}])
def test_a_bound_is_a_number_of_samples_not_below_the_minimum(most: object) -> None:
    """A bound that no rank could keep is refused."""
    balance = Balance(batch=8, most=most)  # type: ignore[arg-type]
    with pytest.raises(PlacementError, match="the most samples of cuda:0 are"):
        balance.most_of(CARDS[0], NODE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speeds": {1: 2.0}}, "cuda:0 has no speed.\nspeeds={1: 2.0} covers 0 of 1"),
        ({"speeds": 3}, "speeds=3 is not understood."),
        ({"start": {1: 2.0}}, "cuda:0 has no speed.\nstart={1: 2.0} covers 0 of 1"),
        ({"most": {1: 8}}, "cuda:0 has no bound.\nmost={1: 8} covers 0 of 1"),
        ({"most": 2.5}, "most=2.5 is not understood."),
    ],
)
def test_the_words_name_the_argument_that_the_user_wrote(
    options: dict[str, object], words: str
) -> None:
    """Speeds and bounds are read as scores are, and not called so."""
    balance = Balance(batch=8, **options)  # type: ignore[arg-type]
    asks = balance.most_of if "most" in options else partial(_speed_of, balance)
    with pytest.raises(PlacementError) as raised:
        asks(CARDS[0], NODE)
    assert words in str(raised.value)

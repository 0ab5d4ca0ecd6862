"""Balance: a batch that ranks of unequal speed split among them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import repr as short
from typing import Literal, SupportsIndex, cast

from gpumap.errors import PlacementError
from gpumap.mapping.device_refs import DeviceRef
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.policy import Scores
from gpumap.mapping.scores import number_of

__all__ = ["Balance"]

Most = (
    int
    | Mapping[DeviceRef, int]
    | Mapping[str, int]
    | Mapping[int, int]
    | Callable[[Device], int]
)
_OF_DEVICES = '{device: number}, "memory", "multiprocessors"'
_FORMS = {
    "speeds": f'{_OF_DEVICES}, "measure", "adapt" or a function of Device',
    "start": f"{_OF_DEVICES} or a function of Device",
    "most": "a number of samples, {device: number} or a function of Device",
}


@dataclass(frozen=True)
class Balance:
    """A batch that the ranks of a session split by their speeds.

    Attributes:
        batch: The number of samples of one step, of all ranks together.
        speeds: How fast each device trains: {device: number}, "memory",
            "multiprocessors" or a function of Device, as in scores; "measure", a short
            timed matrix product on each; or "adapt": all ranks start with equal
            shares, or by start, and the steps that they train tell their speeds.
        start: For "adapt", the speeds of the first epoch, as in scores.
        minimum: The least samples of a rank.
        most: The most samples that a device's memory holds: one number for all, or
            {device: number}, or a function of Device.
        count: Returns the number of samples in a call of the model, of its arguments as
            (args, kwargs); by default the first dimension of the first tensor in them.

    Raises:
        PlacementError: A number is below 1 or none, an argument has none of its forms,
            or parts contradict each other.
    """

    batch: int
    speeds: Scores | Literal["measure", "adapt"] = "adapt"
    start: Scores | None = None
    minimum: int = 1
    most: Most | None = None
    count: (
        Callable[[tuple[object, ...], Mapping[str, object]], SupportsIndex] | None
    ) = None

    def __post_init__(self) -> None:
        """Check the numbers at once."""
        for name, example in (("batch", 256), ("minimum", 1)):
            value: object = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PlacementError(
                    f"{name}={short(value)} is not a number of samples.",
                    "",
                    f"Write a whole number from 1 on: {name}={example}.",
                )
        for name in _FORMS:
            self._refuse_another_form(name)
        if self.count is not None and not callable(cast("object", self.count)):
            raise PlacementError(
                f"count={short(self.count)} is not a function.",
                "",
                "Write count=lambda args, kwargs: ….",
            )
        if self.start is not None and not self.adapts:
            raise PlacementError(
                'start=… goes with speeds="adapt" only.',
                f"speeds={short(self.speeds)} counts from the first step on.",
                'Leave start out, or write speeds="adapt".',
            )

    def _refuse_another_form(self, name: str) -> None:
        """Refuse what no device could make good."""
        value: object = getattr(self, name)
        if value is None and name != "speeds":
            return
        if isinstance(value, Mapping) or callable(value):
            return
        if isinstance(value, str) and f'"{value}"' in _FORMS[name]:
            return
        if name == "most" and type(value) is int:
            if value >= self.minimum:
                return
            raise PlacementError(
                f"most={value} is below the least samples of a rank.",
                f"minimum={self.minimum}.",
                "Write a number of samples that is not below the minimum.",
            )
        raise PlacementError(
            f"{name}={short(value)} is not understood.", "", f"Write {_FORMS[name]}."
        )

    @property
    def how(self) -> str:
        """Where the speeds come from, as ranks compare it."""
        if isinstance(self.speeds, str):
            started = self.start is not None
            return f"{self.speeds} from given speeds" if started else self.speeds
        return "function" if callable(self.speeds) else "numbers"

    @property
    def adapts(self) -> bool:
        """Whether shares change between epochs."""
        return self.speeds == "adapt"

    def speed_of(self, device: Device, node: Node, measured: float | None) -> float:
        """Return how fast a device of the node is; 1 where nothing tells.

        measured: what gpumap.measure() found, if it was asked.

        Raises:
            DeviceError: A speed is for a device that is not there.
            PlacementError: This device has no speed, or it is not above 0.
        """
        if self.how == "measure":
            return 1.0 if measured is None else measured
        name = "start" if self.adapts else "speeds"
        speeds: Scores | None = getattr(self, name)
        if speeds is None:
            return 1.0
        found = number_of(speeds, device, node, name)
        if found > 0:
            return found
        raise PlacementError(
            f"the speed of {device} is {found:g}.",
            f"{name}={short(speeds)}.",
            "Write numbers above 0, such as samples per second; leave a device that "
            "should do nothing out of gpus=[…].",
        )

    def most_of(self, device: Device, node: Node) -> int | None:
        """Return how many samples a device of the node can take; None for any number.

        Raises:
            DeviceError: A bound is for a device that is not there.
            PlacementError: This device has no bound, or it is no number of samples.
        """
        if self.most is None:
            return None
        if isinstance(self.most, int):
            return self.most
        found = number_of(cast("Scores", self.most), device, node, "most")
        if found < self.minimum or found != int(found):
            raise PlacementError(
                f"the most samples of {device} are {found:g}.",
                f"most={short(self.most)}, minimum={self.minimum}.",
                "Write a whole number of samples that is not below the minimum.",
            )
        return int(found)

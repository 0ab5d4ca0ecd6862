"""Balance: a batch that ranks of unequal speed split among them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import repr as short
from typing import Literal, cast

from gpumap.errors import PlacementError
from gpumap.mapping.device_refs import DeviceRef
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.policy import Scores
from gpumap.mapping.scores import scores_of

__all__ = ["Balance", "number_of"]

Most = (
    int
    | Mapping[DeviceRef, int]
    | Mapping[str, int]
    | Mapping[int, int]
    | Callable[[Device], int]
)


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
        PlacementError: A number is below 1 or none, or parts contradict each other.
    """

    batch: int
    speeds: Scores | Literal["measure", "adapt"] = "adapt"
    start: Scores | None = None
    minimum: int = 1
    most: Most | None = None
    count: Callable[[tuple[object, ...], Mapping[str, object]], int] | None = None

    def __post_init__(self) -> None:
        """Check the numbers at once."""
        for name in ("batch", "minimum"):
            value: object = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PlacementError(
                    f"{name}={short(value)} is not a number of samples.",
                    "",
                    f"Write a whole number from 1 on: {name}=256."
                    if name == "batch"
                    else f"Write a whole number from 1 on: {name}=1.",
                )
        if self.start is not None and self.speeds != "adapt":
            raise PlacementError(
                'start=… goes with speeds="adapt" only.',
                f"speeds={short(self.speeds)} counts from the first step on.",
                'Leave start out, or write speeds="adapt".',
            )

    @property
    def how(self) -> str:
        """Where the speeds come from: "adapt", "measure" or "speeds"."""
        named = isinstance(self.speeds, str) and self.speeds in ("adapt", "measure")
        return str(self.speeds) if named else "speeds"

    def speed_of(self, device: Device, node: Node, measured: float | None) -> float:
        """Return how fast a device of the node is; 1 where nothing tells.

        measured: what gpumap.measure() found, if it was asked.

        Raises:
            DeviceError: A speed is for a device that is not there.
            PlacementError: This device has no speed, or it is not above 0.
        """
        if self.how == "measure":
            return 1.0 if measured is None else measured
        name = "start" if self.how == "adapt" else "speeds"
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
            found: float = self.most
        else:
            found = number_of(cast("Scores", self.most), device, node, "most")
        if isinstance(self.most, bool) or found < self.minimum or found != int(found):
            raise PlacementError(
                f"the most samples of {device} are {found:g}.",
                f"most={short(self.most)}, minimum={self.minimum}.",
                "Write a whole number of samples that is not below the minimum.",
            )
        return int(found)


def number_of(numbers: Scores, device: Device, node: Node, name: str) -> float:
    """Return a device's number, as scores give it; the CPU's is named "cpu".

    Raises:
        DeviceError: A number is for a device that is not there.
        PlacementError: This device has no number, or one that is not finite.
    """
    named = cast("object", numbers)
    if device.kind == "cpu" and isinstance(named, Mapping) and "cpu" in named:
        return cast("Mapping[str, float]", numbers)["cpu"]
    return scores_of(numbers, (device,), node, name)[device.index]

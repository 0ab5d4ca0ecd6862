"""The device of one rank, and conflicts of ranks on one device."""

from collections.abc import Sequence

from gpumap.errors import PlacementError
from gpumap.mapping.base import FrozenModel, Index
from gpumap.mapping.devices import Device
from gpumap.mapping.launch import Launch

__all__ = ["Conflict", "Placement", "ranks_in_words", "shared_devices"]


_MOST_NAMED = 20


class Placement(FrozenModel):
    """One rank's device, and the reason for it.

    Attributes:
        launch: The rank's launch.
        device: The device that it trains on; torch's own object is device.torch.
        strategy: The strategy's name, or the function's.
        why: The reason, in one sentence.
        cpus: The CPUs that it is bound to, if binding was asked for.
    """

    raises = PlacementError

    launch: Launch
    device: Device
    strategy: str
    why: str
    cpus: tuple[Index, ...] | None = None


class Conflict(FrozenModel):
    """One device on which several ranks are placed.

    Attributes:
        hostname: The node's name.
        device: The device.
        ranks: The ranks on it, in the order of their local ranks.
    """

    raises = PlacementError

    hostname: str
    device: Device
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """Return a sentence that names the ranks, the device and the host."""
        both = "both " if len(self.ranks) == 2 else ""  # noqa: PLR2004 - the word "both"
        return (
            f"{ranks_in_words(self.ranks)} are {both}placed on {self.device} "
            f"on host {self.hostname}"
        )


def shared_devices(
    hostname: str, ranks: Sequence[int], devices: Sequence[Device]
) -> list[Conflict]:
    """Return the devices on which more than one of these ranks is placed."""
    indices = [device.index for device in devices]
    if len(set(indices)) == len(indices):
        return []
    return [
        Conflict(
            hostname=hostname,
            device=devices[indices.index(index)],
            ranks=tuple(r for r, i in zip(ranks, indices, strict=True) if i == index),
        )
        for index in dict.fromkeys(indices)
        if indices.count(index) > 1
    ]


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return "rank 1, rank 2 and rank 3"; of many, the first 20 and how many more."""
    more = len(ranks) - _MOST_NAMED
    named = [f"rank {rank}" for rank in ranks[:_MOST_NAMED]]
    *most, last = [*named, f"{more} more"] if more > 0 else named
    return f"{', '.join(most)} and {last}"

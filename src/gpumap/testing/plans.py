"""Checking on which device each rank is placed, with a difference to read."""

from collections.abc import Iterator, Mapping, Sequence

from gpumap.mapping.device_refs import DeviceRef, plain
from gpumap.mapping.devices import Device
from gpumap.mapping.placement import Placement
from gpumap.mapping.tables import aligned

__all__ = ["assert_plan"]

_MOST_TOLD = 20


def assert_plan(
    placements: Sequence[Placement],
    expected: Mapping[int, DeviceRef] | Sequence[DeviceRef],
) -> None:
    """Check that ranks are placed on the devices expected.

    Args:
        placements: A plan, or what ranks returned as gpumap.current().placement.
        expected: The device of every rank, in their order; or by rank, of some. An int
            is an index as torch counts it, a str is "cuda:2", "cpu", or a UUID or the
            start of one.

    Raises:
        AssertionError: A rank is on another device, or is not there; a line for each.
        DeviceError: What is expected is not a device.

    >>> import gpumap
    >>> plan = gpumap.plan([gpumap.machine("dgx-a100")], [2], gpus=[6, 2])
    >>> assert_plan(plan, [6, "GPU-a1000002"])
    >>> assert_plan(plan, {1: "cuda:2"})
    """
    __tracebackhide__ = True
    placed = {placement.launch.rank: placement for placement in placements}
    if not isinstance(expected, Mapping):
        if len(expected) != len(placed):
            raise AssertionError(
                f"{len(expected)} ranks are expected, and there are {len(placed)}.\n"
                "To check some of them, write {rank: device}."
            )
        expected = dict(zip(sorted(placed), expected, strict=True))
    rows = list(_differences(placed, expected))
    if rows:
        more = len(rows) - _MOST_TOLD
        table = aligned([["rank", "expected", "is on", "why"], *rows[:_MOST_TOLD]])
        raise AssertionError(
            f"another device is expected for {len(rows)} of {len(expected)} ranks.\n"
            + table
            + (f"\nand {more} more" if more > 0 else "")
        )


def _differences(
    placed: Mapping[int, Placement], expected: Mapping[int, DeviceRef]
) -> Iterator[list[str]]:
    """Yield rank, expected device, device and reason for each that differs."""
    for rank, ref in expected.items():
        wanted, found = plain(ref), placed.get(rank)
        if found is None:
            yield [f"{rank}", f"{wanted}", "-", f"there are {len(placed)} ranks"]
        elif not _is(found.device, wanted):
            yield [f"{rank}", f"{wanted}", f"{found.device}", found.why]


def _is(device: Device, ref: int | str) -> bool:
    if isinstance(ref, int):
        return device.kind != "cpu" and device.index == ref
    if device.kind == "cpu":
        return ref == "cpu"
    uuid = (device.uuid or "").lower()
    return ref == f"{device.kind}:{device.index}" or uuid.startswith(ref.lower())

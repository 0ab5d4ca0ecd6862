"""The scores of devices, for the strategy "scored"."""

import math
from collections.abc import Mapping
from numbers import Real
from reprlib import repr as short
from typing import cast

from gpumap.errors import PlacementError
from gpumap.mapping.device_refs import DeviceRef, resolve_all
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.policy import Scores, called
from gpumap.words import plural

__all__ = ["number_of", "scores_of"]

_NOUNS = {"scores": "score", "most": "bound"}


def scores_of(
    scores: Scores | None, pool: tuple[Device, ...], node: Node
) -> dict[int, float]:
    """Return the score of each device in the pool, by its index.

    Raises:
        DeviceError: A score is for a device that is not there.
        PlacementError: A device of the pool has no score, or one that is no number.
    """
    found = _found(scores, pool, node, "scores")
    without = [d for d in pool if found[d.index] is None]
    if without:
        raise PlacementError(
            f"{', '.join(map(str, without))} has no score.",
            f"scores={scores!r} covers {len(pool) - len(without)} of {len(pool)} "
            "devices in the pool.",
            "Add a score for each, or name the pool with gpus=[…].",
        )
    return {index: _number(score, scores, "scores") for index, score in found.items()}


def number_of(numbers: Scores, device: Device, node: Node, name: str) -> float:
    """Return a device's number, given as scores are; the CPU's is named "cpu".

    name is that of the argument, for messages: "speeds", "start" or "most".

    Raises:
        DeviceError: A number is for a device that is not there.
        PlacementError: This device has no number, or one that is not finite.
    """
    named: object = numbers
    by_device = isinstance(named, Mapping)
    others = numbers
    found: object
    if by_device:
        given = cast("Mapping[object, float]", named)
        others = cast("Scores", {ref: given[ref] for ref in given if ref != "cpu"})
    if by_device and device.kind == "cpu":
        found = cast("Mapping[str, float]", named).get("cpu")
    else:
        found = _found(others, (device,), node, name)[device.index]
    if found is not None:
        return _number(found, numbers, name)
    noun = _NOUNS.get(name, "speed")
    raise PlacementError(
        f"{device} has no {noun}.",
        f"{name}={short(numbers)}.",
        f'Write {name}={{"cpu": 1}} where ranks train on the CPU.'
        if device.kind == "cpu"
        else f"Write a {noun} for each device that a rank trains on, or leave this one "
        "out of gpus=[…].",
    )


def _number(score: object, scores: object, name: str) -> float:
    """Return a score as a float.

    Raises:
        PlacementError: It is no finite number.
    """
    if _is_number(score):
        return float(cast("float", score))
    noun = _NOUNS.get(name, "speed")
    raise PlacementError(
        f"{score!r} is not a {noun}.",
        f"{name}={scores!r}.",
        f"A {noun} is a finite number"
        + ("; the highest is placed first." if noun == "score" else "."),
    )


def _found(
    scores: Scores | None, pool: tuple[Device, ...], node: Node, name: str
) -> dict[int, float | None]:
    if scores == "memory":
        return {d.index: d.total_memory for d in pool}
    if scores == "multiprocessors":
        return {d.index: d.multiprocessors for d in pool}
    if callable(scores):
        return {d.index: called(scores, d, whose=str(d)) for d in pool}
    if scores is None or not hasattr(scores, "items"):
        raise PlacementError(
            f"{name}={scores!r} is not understood.",
            "",
            'Write {device: number}, "memory", "multiprocessors" or a function.',
        )
    return _named(scores, pool, node, name)


def _named(
    scores: Mapping[DeviceRef, float] | Mapping[str, float] | Mapping[int, float],
    pool: tuple[Device, ...],
    node: Node,
    name: str,
) -> dict[int, float | None]:
    indices = [device.index for device in resolve_all(scores, node)]
    if len(set(indices)) < len(indices):
        raise PlacementError(
            f"a device has two {_NOUNS.get(name, 'speed')}s.",
            f"{name}={scores!r} names {len(set(indices))} "
            f"{plural('device', len(set(indices)))}.",
            "Name each device once, by index or by UUID.",
        )
    named = dict(zip(indices, scores.values(), strict=True))
    return {device.index: named.get(device.index) for device in pool}


def _is_number(score: object) -> bool:
    if isinstance(score, bool) or not isinstance(score, Real):
        return False
    try:
        return math.isfinite(score)
    except OverflowError:  # an int that is larger than any float
        return False

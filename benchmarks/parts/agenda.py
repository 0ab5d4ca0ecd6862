"""What the ranks measure: rank 0's sizes, and where each strategy would place them."""

import os
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.distributed import Store

import gpumap
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.errors import GpumapError
from gpumap.mapping.base import FrozenModel
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.placement import Placement
from gpumap.mapping.pool import Pool
from parts.figures import Outcome, Seating, Way
from parts.limits import loopback_tcp, memory_copy
from parts.links import choice_of, links_among
from parts.options import Options

__all__ = ["Word", "agenda", "agree"]


class Word(FrozenModel):
    """What one rank says: where each strategy places it, or why it does not."""

    node: Node
    node_rank: int | None
    placements: dict[str, Placement]
    refused: dict[str, str]

    def on(self, node_rank: int) -> "Word":
        """Return this with a number for its node, which some launchers do not tell."""
        placements = {
            name: placement.model_copy(
                update={
                    "launch": placement.launch.model_copy(
                        update={"node_rank": node_rank}
                    )
                }
            )
            for name, placement in self.placements.items()
        }
        return self.model_copy(
            update={"node_rank": node_rank, "placements": placements}
        )


def agree(options: Options, session: gpumap.Session, backend: str) -> Outcome:
    """Return what is to be measured, by rank 0's word, and no figures yet.

    Every rank tells rank 0 once and hears from it once.
    """
    store, device = session.store, session.device.type
    store.set(
        f"word/{session.rank}", _word(options, session, backend).model_dump_json()
    )
    if session.rank == 0:
        words = [_heard(store, rank) for rank in range(session.world_size)]
        store.set(
            "agenda",
            agenda(options.on(device), words, backend, device).model_dump_json(),
        )
    return Outcome.model_validate_json(store.get("agenda"))


def _heard(store: Store, rank: int) -> Word:
    return Word.model_validate_json(store.get(f"word/{rank}"))


def _word(options: Options, session: gpumap.Session, backend: str) -> Word:
    launch, node = session.launch, session.node
    placements: dict[str, Placement] = {}
    refused: dict[str, str] = {}
    for name in options.strategies:
        try:
            policy = choice_of(name, options)
            pool = Pool.of(policy, node, launch)
            placement = pool.place(launch)
            pool.refuse_conflicts(launch, backend)
        except GpumapError as error:
            refused[name] = error.happened
        else:
            placements[name] = placement
    return Word(
        node=node,
        node_rank=launch.node_rank,
        placements=placements,
        refused=refused,
    )


def agenda(
    options: Options, words: Sequence[Word], backend: str, device: str
) -> Outcome:
    """Return what is measured, given what each rank said, in the order of the ranks."""
    places = list(dict.fromkeys((word.node_rank, word.node.hostname) for word in words))
    words = [
        word.on(places.index((word.node_rank, word.node.hostname))) for word in words
    ]
    refused = {name: why for word in words for name, why in word.refused.items()}
    refused |= dict.fromkeys(_shared(options, words), "two ranks share a device")
    asked = [{*word.placements, *word.refused} for word in words]
    unasked = set(options.strategies) - set[str].intersection(*asked)
    refused |= dict.fromkeys(unasked, "not every rank was asked for it")
    usable = [name for name in options.strategies if name not in refused]
    seatings = _seatings(usable, words)
    ways: dict[frozenset[object], list[Seating]] = {}
    for seating in seatings:
        used = frozenset[object]() if device == "cpu" else _used(seating, words)
        ways.setdefault(used, []).append(seating)
    return Outcome(
        options=options,
        world_size=len(words),
        backend=backend,
        device=device,
        torch=torch.__version__,
        rehearsal=os.environ.get(REHEARSAL) or None,
        ways=tuple(Way(seatings=tuple(same)) for same in ways.values()),
        refused=refused,
        limits=_measured_limits() if device == "cpu" else _class_limits(seatings),
    )


def _shared(options: Options, words: Sequence[Word]) -> list[str]:
    """Return the strategies that give two ranks one accelerator, on whatever node."""
    found = []
    for name in options.strategies:
        used = [
            _identity(word, word.placements[name].device)
            for word in words
            if name in word.placements and word.placements[name].device.kind != "cpu"
        ]
        found += [name] if len(set(used)) < len(used) else []
    return found


def _seatings(names: Iterable[str], words: Sequence[Word]) -> list[Seating]:
    """Return each different seating, with the strategies that give it."""
    found: dict[tuple[Device, ...], list[str]] = {}
    for name in names:
        devices = tuple(word.placements[name].device for word in words)
        found.setdefault(devices, []).append(name)
    nodes = {word.node_rank or 0: word.node for word in words}
    return [
        _seating(same, [word.placements[same[0]] for word in words], nodes)
        for same in found.values()
    ]


def _seating(
    names: Sequence[str], placements: Sequence[Placement], nodes: Mapping[int, Node]
) -> Seating:
    lines: list[str] = []
    rings: list[tuple[float, str]] = []
    for node_rank, node in nodes.items():
        here = [p for p in placements if (p.launch.node_rank or 0) == node_rank]
        if any(p.launch.devices_bound for p in here):
            continue  # each rank sees its own devices, and nobody their links
        links, ring = links_among([p.device for p in here], node)
        if ring is not None:
            lines.append(
                f"{node.hostname}: {links}; the best ring's slowest: {ring[1]}"
            )
            rings.append(ring)
    return Seating(
        strategies=tuple(names),
        placements=tuple(placements),
        hosts={node_rank: node.hostname for node_rank, node in nodes.items()},
        links=tuple(lines),
        ring=min(rings, default=None),
    )


def _used(seating: Seating, words: Sequence[Word]) -> frozenset[object]:
    """Return the devices in use, whichever rank is on which."""
    devices = [placement.device for placement in seating.placements]
    return frozenset(map(_identity, words, devices))


def _identity(word: Word, device: Device) -> object:
    """Return what tells a device from all others of the job."""
    return word.node_rank, device.uuid or device.pci_bus_id or device.index


def _measured_limits() -> dict[str, float]:
    return {"memory copy": memory_copy(), "loopback TCP": loopback_tcp()}


def _class_limits(seatings: Iterable[Seating]) -> dict[str, float]:
    rings = {seating.ring for seating in seatings if seating.ring}
    return {f"a ring over {name}, by its class": speed for speed, name in sorted(rings)}

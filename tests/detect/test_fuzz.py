"""Whatever an environment contains, gpumap returns a value or raises a GpumapError.

The seeds are fixed, so that a failure can be repeated.
"""

import contextlib
import json
import logging
import math
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from gpumap.detect.launchers import LAUNCHERS, detect_launch, launched_on
from gpumap.detect.rehearsal import machine
from gpumap.errors import GpumapError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch, store_address
from gpumap.mapping.plan import plan
from gpumap.mapping.policy import Policy
from gpumap.mapping.pool import Pool, place
from gpumap.mapping.visibility import ALL_MASKS, doubt, visible
from helpers.captured import jobs

# For each of five seeds.
ENVIRONMENTS = 20_000
MASKS = 20_000
CHOICES = 20_000
PLANS = 5_000

NUMBERS = [str(n) for n in range(-2, 9)]
ODD = [
    *("", " ", "0x1", "1.0", "1e3", "+1", "٣", "²", "1\n", "\0", "\x1b[2J", "x\udce9"),
    *("9" * 30, "9" * 5000, "-" * 9, "2(x3)", "2(x0)", "n[1-3]", "n[3-1]", "n[", "]"),
    *("n[1-99999999]", "[1-9][1-9][1-9][1-9][1-9][1-9]", '["a"]', "[" * 3000, "{}"),
    *("auto", "none", "None", "null", "True", "10.0.0.1", "::1", "fe80::1", "h:1"),
    *("0,1", "1,0", "0-3", "0,,1", "GPU-", "MIG-", "GPU-a1000002", "NoDevFiles"),
]
NAMES = sorted(
    {name for row in LAUNCHERS for name in row.marks}
    | {n for row in LAUNCHERS for names in row.numbers.values() for n in names}
    | {n for row in LAUNCHERS for n in row.job_id}
    | set(ALL_MASKS)
    | {name for job in jobs().values() for environ in job for name in environ}
    | {"GPUMAP_LAUNCHER", "GPUMAP_JOB_ID", "GPUMAP_GPUS", "PET_NPROC_PER_NODE"}
)
MACHINES = [machine(name) for name in ("dgx-a100", "dgx1-v100", "rtx3090-gtx1080")]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Silence the log, which would have a warning for many of the environments."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def seeded(number: int) -> random.Random:
    """Return a generator that draws the same values in every run."""
    return random.Random(number)  # noqa: S311 - no secret hangs on it


def value(dice: random.Random) -> str:
    """Return a number as launchers write them, or a text that none would write."""
    return dice.choice(NUMBERS if dice.random() < 0.7 else ODD)


def of_vendor(dice: random.Random) -> Node:
    """Return a node of up to nine random devices of one vendor."""
    vendor = dice.choice(["cuda", "rocm", "xpu", "npu", "mps", "odd"])
    uuids = ["GPU-a1000002", "GPU-a1", "GPU-XX", "MIG-1", None]
    return Node(
        hostname="n1",
        devices=tuple(
            Device(
                kind="cuda" if vendor == "rocm" else vendor,
                rocm=vendor == "rocm",
                index=n,
                physical_index=dice.choice([n, None]),
                uuid=dice.choice(uuids),
                mig=dice.choice([None, None, "GPU-a1", "0000:07:00.0"]),
                pci_bus_id=dice.choice([None, f"0000:0{n}:00.0"]),
                name=dice.choice([None, "A", "B"]),
                multiprocessors=dice.choice([None, 20, 108]),
                compute_capability=dice.choice([None, (8, 0), (7, 5)]),
                total_memory=dice.choice([None, 1, 2**36]),
            )
            for n in range(dice.randrange(10))
        ),
    )


@pytest.mark.parametrize("seed", [12, 121, 122, 123, 124])
def test_environments_give_a_launch_or_an_error_of_gpumaps(seed: int) -> None:
    """Altered captures and random variables give a launch or a GpumapError."""
    dice = seeded(seed)
    captured = [environ for job in jobs().values() for environ in job]
    outcomes = {True: 0, False: 0}
    for _ in range(ENVIRONMENTS):
        environ: dict[str, str] = {}
        if dice.random() < 0.6:
            environ = dict(dice.choice(captured))
            for name in dice.sample(sorted(environ), min(2, len(environ))):
                if dice.random() < 0.3:
                    del environ[name]
        for name in dice.sample(NAMES, dice.randrange(6)):
            environ[name] = value(dice)
        for name in dice.sample(sorted(environ), min(3, len(environ))):
            environ[name] = value(dice)
        outcomes[is_answered(environ, dice)] += 1
    assert min(outcomes.values()) > ENVIRONMENTS / 10, outcomes


def is_answered(environ: Mapping[str, str], dice: random.Random) -> bool:
    """Detect, mask and place as a session does; tell whether there was a launch."""
    try:
        launch = detect_launch(environ)
    except GpumapError as error:
        if not (error.happened and error.hint):
            raise AssertionError(error) from error
        return False
    with contextlib.suppress(GpumapError):
        node = visible(dice.choice(MACHINES), environ)
        launch = launched_on(node, launch, environ)
        doubt(node, environ)
        place(launch, node)
        store_address(launch)
    return True


def test_masks_leave_devices_or_an_error_of_gpumaps() -> None:
    """Masks of several vendors leave devices indexed from 0, or raise a GpumapError."""
    dice = seeded(13)
    for _ in range(MASKS):
        environ = {name: value(dice) for name in ALL_MASKS if dice.random() < 0.4}
        if dice.random() < 0.3:
            environ["ZE_FLAT_DEVICE_HIERARCHY"] = dice.choice(["COMPOSITE", "flat", ""])
        environ["NVIDIA_VISIBLE_DEVICES"] = value(dice)
        whole = of_vendor(dice)
        with contextlib.suppress(GpumapError):
            seen = visible(whole, environ)
            assert [d.index for d in seen.devices] == list(range(len(seen.devices)))
            assert len(seen.devices) <= len(whole.devices)
            doubt(seen, environ)


def anything(dice: random.Random, depth: int = 0) -> Any:
    """Return a value that somebody may write where a device belongs."""
    plain = [
        *(0, 1, 2, 7, -1, 10**400, True, None, 1.5, math.nan, "0", "cuda:1", "cuda:x"),
        *("GPU-a1000002", "GPU", "", " ", "\0", "0000:0f:00.0", b"0", object()),
        *(Fraction(1), "memory", "multiprocessors", {}, [], (), set(), range(3), "٣"),
    ]
    if depth < 2 and dice.random() < 0.5:
        several = [anything(dice, depth + 1) for _ in range(dice.randrange(5))]
        with contextlib.suppress(TypeError):  # unhashable, so no key
            return dice.choice(
                [several, tuple(several), dict.fromkeys(several, dice.choice(plain))]
            )
    return dice.choice(plain)


def test_choices_give_a_device_or_an_error_of_gpumaps() -> None:
    """Any gpus, scores, strategy and oversubscribe give a device or a GpumapError."""
    dice = seeded(14)
    names: list[Any] = ["local_rank", "explicit", "modulo", "scored", "linked", None]
    for _ in range(CHOICES):
        size = dice.randrange(1, 10)
        local_rank = dice.randrange(size)
        launch = Launch(
            launcher="torchrun",
            rank=local_rank,
            world_size=size,
            local_rank=dice.choice([local_rank, None]),
            local_world_size=dice.choice([size, None]),
            node_ranks=dice.choice([None, tuple(range(size))]),
            devices_bound=dice.random() < 0.2,
        )
        node = dice.choice([*MACHINES, of_vendor(dice)])
        asked: dict[str, Any] = {
            "gpus": anything(dice) if dice.random() < 0.7 else None,
            "scores": anything(dice) if dice.random() < 0.3 else None,
            "oversubscribe": dice.choice([False, False, True, 1, "yes"]),
        }
        with contextlib.suppress(GpumapError):
            placed = place(launch, node, dice.choice(names), **asked)
            assert placed.device in node.devices or placed.device.kind == "cpu"
            pool = Pool.of(_policy(placed.strategy, asked), node, launch)
            assert pool.place(launch) == placed
            pool.refuse_conflicts(launch, dice.choice(["nccl", "gloo"]))
            pool.idle(launch)
            pool.warnings(launch)


def _policy(strategy: Any, asked: Mapping[str, Any]) -> Policy:
    return Policy.of(
        strategy, asked["gpus"], asked["scores"], oversubscribe=asked["oversubscribe"]
    )


def test_plans_are_plans_or_errors_of_gpumaps() -> None:
    """Plans of random nodes and sizes place every rank, or raise a GpumapError."""
    dice = seeded(15)
    for _ in range(PLANS):
        nodes = [
            dice.choice([*MACHINES, of_vendor(dice)]) for _ in range(dice.randrange(4))
        ]
        sizes = [dice.choice([0, 1, 2, 4, 8, 9, -1]) for _ in nodes]
        if dice.random() < 0.1:
            sizes.append(1)
        with contextlib.suppress(GpumapError):
            asked: dict[str, Any] = {
                "strategy": dice.choice([None, "modulo", "linked", "odd"]),
                "gpus": anything(dice) if dice.random() < 0.4 else None,
                "distribution": dice.choice(["block", "cyclic", "odd"]),
                "oversubscribe": dice.choice([False, True]),
            }
            whole = plan(nodes, sizes, **asked)
            assert len(list(whole)) == sum(sizes)
            whole.conflicts()
            whole.explain()


def test_descriptions_of_machines_are_nodes_or_errors_of_gpumaps() -> None:
    """A rehearsal's JSON with random fields is a Node or a GpumapError."""
    dice = seeded(16)
    text = MACHINES[0].keeping([0, 1]).model_dump(mode="json")
    for _ in range(5_000):
        changed = json.loads(json.dumps(text))
        part = dice.choice([changed, changed["devices"][0], changed["links"][0]])
        for name in dice.sample(sorted(part), 2):
            part[name] = dice.choice([None, -1, 0, 1, "x", [], {}, 2**70, [[1]], 1.5])
        with contextlib.suppress(GpumapError):
            Node.model_validate(changed)

"""The rules that say which device a rank gets: a table, and one function over it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpumap.errors import DeviceError, LaunchError, PlacementError
from gpumap.mapping.best_links import best_linked
from gpumap.mapping.device_refs import resolve, resolve_all
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Policy, called
from gpumap.mapping.scores import scores_of

__all__ = [
    "STRATEGIES",
    "allowed_devices",
    "by_rank",
    "in_words",
    "pick",
    "pool_of",
]


@dataclass(frozen=True)
class _Rule:
    """One row: how the pool is ordered, which place counts in it, and that in words."""

    order: Callable[[Policy, Launch, tuple[Device, ...], Node], tuple[Device, ...]]
    place: Literal["local_rank", "rank"]
    words: str


def _as_listed(
    _choice: Policy, _launch: Launch, pool: tuple[Device, ...], _node: Node
) -> tuple[Device, ...]:
    return pool


def _best_first(
    policy: Policy, _launch: Launch, pool: tuple[Device, ...], node: Node
) -> tuple[Device, ...]:
    scores = scores_of(policy.scores, pool, node)
    return tuple(sorted(pool, key=lambda d: (-scores[d.index], d.index)))


def _best_linked(
    policy: Policy, launch: Launch, pool: tuple[Device, ...], node: Node
) -> tuple[Device, ...]:
    if launch.devices_bound:
        return pool
    processes = 1 if launch.world_size == 1 else launch.local_world_size
    if processes is None:
        raise LaunchError(
            f'strategy "{policy.name}" depends on the number of processes on this '
            "node, and the launcher does not say it.",
            f"{launch.launcher}: rank={launch.rank}, world_size={launch.world_size}.",
            "Set LOCAL_WORLD_SIZE for each process, or start with torchrun.",
            ("LOCAL_WORLD_SIZE",),
        )
    return best_linked(node, processes, [device.index for device in pool])


# More than any node runs; an error lists no more.
_MOST_RANKS = 4096
_HOW_TO_SHARE = (
    " To share one on purpose, list it more than once, with oversubscribe=True and "
    'backend="gloo".'
)

STRATEGIES: dict[str, _Rule] = {
    # torch.distributed.run's documentation: device index = LOCAL_RANK.
    "local_rank": _Rule(_as_listed, "local_rank", "pool[local_rank]"),
    # The same over a list of the user's: what DDP's device_ids are filled from.
    "explicit": _Rule(_as_listed, "local_rank", "gpus[local_rank]"),
    # Global rank, as it is usually written: rank % torch.cuda.device_count().
    "modulo": _Rule(_as_listed, "rank", "pool[rank % {devices}]"),
    "scored": _Rule(_best_first, "local_rank", "the pool by score, [local_rank]"),
    # What an all-reduce runs at: the slowest link of the best ring.
    "linked": _Rule(
        _best_linked,
        "local_rank",
        "the best-linked {devices} of the pool, [local_rank]",
    ),
}


def allowed_devices(policy: Policy, launch: Launch, node: Node) -> tuple[Device, ...]:
    """Return the devices that gpus names, or all that are visible.

    Raises:
        DeviceError: gpus names a device that is not there.
    """
    listed = policy.listed(node, launch.node_rank)
    return node.devices if listed is None else resolve_all(listed, node)


def pool_of(policy: Policy, launch: Launch, node: Node) -> tuple[Device, ...]:
    """Return the devices that the choice's strategy picks from, in its order.

    Raises:
        DeviceError: gpus or scores names a device that is not there.
        PlacementError: A device is listed twice, or has no score, or there are fewer
            devices than processes that each want one.
    """
    pool = allowed_devices(policy, launch, node)
    if not pool:
        raise DeviceError(
            f'strategy "{policy.name}" has no device to choose from.',
            node.visible,
            "Start where an accelerator is visible, or with GPUMAP_REHEARSAL=dgx-a100.",
        )
    indices = [device.index for device in pool]
    different = len(set(indices))
    if different < len(pool) and not policy.oversubscribe:
        twice = next(d for d in pool if indices.count(d.index) > 1)
        raise PlacementError(
            f"{twice} is listed twice in gpus on {node.hostname}.",
            f"gpus={policy.listed(node, launch.node_rank)!r} has {len(pool)} entries "
            f"for {different} devices.",
            "List each device once. Sharing one needs oversubscribe=True and a backend "
            "that can (gloo).",
        )
    if not isinstance(policy.strategy, str):
        return pool
    rule = STRATEGIES[policy.strategy]
    if _is_only_one(launch, pool):
        return pool
    if rule.place == "local_rank" and not launch.devices_bound:
        _refuse_more_processes(policy, launch, pool, node)
    return rule.order(policy, launch, pool, node)


def pick(
    policy: Policy, launch: Launch, node: Node, pool: tuple[Device, ...]
) -> Device:
    """Return the rank's device out of the strategy's pool.

    Raises:
        LaunchError: The strategy counts by local_rank, which the launcher does not say.
        DeviceError: The user's function returned no visible device.
        PlacementError: It returned a device that is not in the pool.
    """
    if not isinstance(policy.strategy, str):
        device = _from_function(policy, launch, node)
        if device.index not in [allowed.index for allowed in pool]:
            raise PlacementError(
                f'strategy "{policy.name}" gave {device} for rank {launch.rank}, which '
                "is not in gpus.",
                f"The pool on {node.hostname} is {', '.join(map(str, pool))}.",
                "Return one of these, or add it to gpus=[…].",
                (launch.rank,),
            )
        return device
    if STRATEGIES[policy.strategy].place == "rank":
        return pool[launch.rank % len(pool)]
    if launch.devices_bound or _is_only_one(launch, pool):
        return pool[0]
    return pool[_local_rank(launch)]


def _is_only_one(launch: Launch, pool: tuple[Device, ...]) -> bool:
    """Tell whether there is one device, and no local rank that says it is another's.

    The roll call finds out where two such ranks are on one device.
    """
    return len(pool) == 1 and launch.local_rank is launch.local_world_size is None


def _local_rank(launch: Launch) -> int:
    if launch.local_rank is not None:
        return launch.local_rank
    if launch.world_size == 1:
        return 0
    raise LaunchError(
        f"which GPU rank {launch.rank} trains on depends on its local rank, and the "
        "launcher does not say it.",
        f"{launch.launcher}: rank={launch.rank}, world_size={launch.world_size}, no "
        "local_rank.",
        "Set LOCAL_RANK and LOCAL_WORLD_SIZE for each process, or start with torchrun, "
        "which does; or pass launch=gpumap.Launch(…) with local_rank and "
        "local_world_size.",
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    )


def _refuse_more_processes(
    policy: Policy, launch: Launch, pool: tuple[Device, ...], node: Node
) -> None:
    processes = launch.local_world_size or _local_rank(launch) + 1
    if processes <= len(pool):
        return
    names = ", ".join(map(str, pool))
    several = [pool[place % len(pool)].index for place in range(min(processes, 8))]
    share = (
        f"list one for each process, gpus={several}"
        if policy.oversubscribe and processes == len(several)
        else f"list {processes} devices in gpus=[…]"
    )
    raise PlacementError(
        f"{processes} processes on {node.hostname} have {len(pool)} "
        f"device{'s'[: len(pool) > 1]}: local rank {len(pool)} and up would have none.",
        f'strategy "{policy.name}" gives {STRATEGIES[policy.name].words}; '
        f"the pool is {names}.",
        f"Start {len(pool)} on each node ({launch.command(len(pool))}), or {share}."
        + _HOW_TO_SHARE * (not policy.oversubscribe),
        tuple(range(launch.world_size)[-processes:][:_MOST_RANKS])
        if launch.one_node
        else (),
    )


def _from_function(policy: Policy, launch: Launch, node: Node) -> Device:
    assert callable(policy.strategy)  # noqa: S101 - for the type checkers
    where = (
        f"rank {launch.rank} (node_rank {launch.node_rank}, "
        f"local_rank {launch.local_rank})"
    )
    answer = called(policy.strategy, launch, node, whose=where)
    if isinstance(answer, Device):
        if answer in node.devices:
            return answer
        answer = answer.uuid or answer.index
    try:
        return resolve(answer, node)
    except DeviceError as error:
        hint = "Return an index, a UUID or a PCI bus ID of a device listed."
        if isinstance(answer, int) and answer >= len(node.devices):
            hint = (
                "A device index counts on its own node: it contains neither node_rank "
                "nor the global rank. Return launch.local_rank, or any index listed."
            )
        raise DeviceError(
            f'strategy "{policy.name}" gave {answer!r} for {where}: {error.happened}',
            error.seen,
            hint,
        ) from None


def by_rank(policy: Policy) -> bool:
    """Tell whether the answer depends on more than the node and the local rank."""
    if not isinstance(policy.strategy, str):
        return True
    return STRATEGIES[policy.strategy].place == "rank"


def in_words(policy: Policy, pool: tuple[Device, ...]) -> str:
    """Return the rule as a user would write it."""
    if not isinstance(policy.strategy, str):
        return f"{policy.name}(launch, node)"
    return STRATEGIES[policy.strategy].words.format(devices=len(pool))

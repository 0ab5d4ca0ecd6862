"""Pool: the devices that a policy gives to the ranks of one node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from gpumap.errors import DeviceError, LaunchError, PlacementError
from gpumap.mapping.device_refs import DeviceRef, resolve, resolve_all
from gpumap.mapping.devices import CPU, Device, Node, one_per_gpu
from gpumap.mapping.diagnostics import advice, idle_devices
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import (
    Placement,
    ranks_in_words,
    shared_devices,
)
from gpumap.mapping.policy import Gpus, Policy, Scores, Strategy, called
from gpumap.mapping.scores import scores_of
from gpumap.mapping.strategies import STRATEGIES
from gpumap.words import plural

__all__ = ["Pool", "can_share", "place"]

# Backends that allow one rank per device, and otherwise fail or hang.
_ONE_RANK_A_DEVICE = ("nccl", "xccl", "hccl")
_NCCL_SHARES = "NCCL_MULTI_RANK_GPU_ENABLE"
# More ranks than any node runs; an error's ranks are cut to this many.
_MOST_RANKS = 4096
_HOW_TO_SHARE = (
    " To share one on purpose, list it more than once, with oversubscribe=True and "
    'backend="gloo".'
)


@dataclass(frozen=True)
class Pool:
    """The devices that a policy gives to the ranks of one node, in its order.

    Attributes:
        policy: What the user asked for.
        node: The node.
        allowed: The devices that gpus names, or all visible ones.
        devices: What ranks get, indexed by the strategy's number (local_rank or rank);
            empty if they train on the CPU.
        scores: The score of each allowed device, by its index, if scores order them.
        decided: Whether one rank of the node decided for all; then devices are indexed
            by local_rank, whatever the strategy.
    """

    policy: Policy
    node: Node
    allowed: tuple[Device, ...] = ()
    devices: tuple[Device, ...] = ()
    scores: Mapping[int, float] = field(default_factory=dict[int, float])
    decided: bool = False

    @classmethod
    def dealt(
        cls, policy: Policy, node: Node, launch: Launch, names: Sequence[DeviceRef]
    ) -> "Pool":
        """Return the pool as another rank of the node has dealt it, by local rank.

        Raises:
            DeviceError: A device that was dealt is not visible here.
        """
        if not names:
            return cls(policy, node)
        devices = resolve_all(names, node)
        return cls(policy, node, _allowed(policy, node, launch), devices, decided=True)

    @classmethod
    def of(cls, policy: Policy, node: Node, launch: Launch) -> "Pool":
        """Return the pool of the node that a launch is on.

        Raises:
            LaunchError: The strategy needs a number that the launcher does not set.
            DeviceError: gpus or scores names a device that is not there.
            PlacementError: A device is listed twice, or has no score, or there are
                fewer devices than processes that each need one.
        """
        if _runs_on_cpu(policy, node):
            return cls(policy, node)
        allowed = _allowed(policy, node, launch)
        pool = cls(policy, node, allowed, allowed)
        pool._refuse_twice(policy.listed(node, launch.node_rank))
        if not isinstance(policy.strategy, str):
            return pool
        if pool._is_only_one(launch) and policy.strategy != "idle":
            return pool
        rule = STRATEGIES[policy.strategy]
        if rule.place == "local_rank" and not launch.devices_bound:
            pool._refuse_more_processes(launch)
        scores: dict[int, float] = {}
        if policy.strategy == "scored":
            scores = scores_of(policy.scores, allowed, node)
        devices = rule.order(launch, allowed, node, scores)
        return cls(policy, node, allowed, devices, scores)

    def place(self, launch: Launch) -> Placement:
        """Return the placement of one of the node's ranks, with its reason.

        Raises:
            LaunchError: The strategy uses local_rank, which the launcher does not set.
            DeviceError: The user's function returned no visible device.
            PlacementError: It returned a device that is not allowed.
        """
        device = self.device_of(launch)
        if device is CPU:
            why = f"no accelerator is visible on {self.node.hostname}"
        elif launch.devices_bound and not self.by_rank:
            why = f"{launch.launcher} gave this process its own device"
        elif launch.local_rank is None and len(self.allowed) == 1 and not self.by_rank:
            why = (
                f"it is the only device in reach; {launch.launcher} tells no local rank"
            )
        else:
            why = f"{self.policy.name}: {self.in_words}"
        return Placement(
            launch=launch, device=device, strategy=self.policy.name, why=why
        )

    def device_of(self, launch: Launch) -> Device:
        """Return the device of one of the node's ranks; raise what place() raises."""
        strategy = self.policy.strategy
        if not self.devices:
            return CPU
        if self.decided:
            return self.devices[_local_rank(launch)]
        if not isinstance(strategy, str):
            return self._from_function(launch)
        if STRATEGIES[strategy].place == "rank":
            return self.devices[launch.rank % len(self.devices)]
        if launch.devices_bound or self._is_only_one(launch):
            return self.devices[0]
        return self.devices[_local_rank(launch)]

    def devices_here(self, launch: Launch) -> list[Device]:
        """Return the devices of the node's ranks, as far as one rank knows them."""
        here = launch.local_world_size
        if here is None or self.by_rank or launch.devices_bound:
            return [self.device_of(one) for one in launch.neighbours]
        return list(self.devices[:here])

    def refuse_conflicts(
        self, launch: Launch, backend: str, environ: Mapping[str, str] | None = None
    ) -> None:
        """Check, with what one rank knows, that no two ranks share a device.

        If the backend cannot share a device, oversubscribe=True is refused too.

        Raises:
            PlacementError: Two local ranks are on one device. The other ranks of the
                node find the same, each for itself, unless the launcher deals ranks to
                nodes in an order that they cannot know; then the roll call finds it.
        """
        if not self.devices:
            return
        shares = can_share(backend, environ)
        if self.policy.oversubscribe:
            if not shares:
                raise PlacementError(
                    "oversubscribe=True, and the backend cannot run two ranks on one "
                    "device.",
                    "NCCL and its kin want a device for each rank, MIG slices of one "
                    "GPU included.",
                    'Leave it out, or choose backend="gloo". From NCCL 2.30 on, '
                    f"{_NCCL_SHARES}=1 lets ranks share a GPU.",
                )
            return
        ranks = [neighbour.rank for neighbour in launch.neighbours]
        devices = [self.device_of(neighbour) for neighbour in launch.neighbours]
        shared = shared_devices(self.node.hostname, ranks, devices)
        n = launch.local_world_size or len(ranks)
        count = len(self.allowed if self.decided else self.devices)
        crowded = n > count and not launch.devices_bound
        if not shared and not crowded:
            if not shares:
                self._refuse_slices_of_one_gpu(ranks, devices)
            return
        hint = (
            f"Start {count} processes per node ({launch.command(count)}), or list {n} "
            "devices in gpus=[…]."
        )
        if not crowded:
            share = "; or let them share with oversubscribe=True" * shares
            hint = (
                "Give each local rank a device of its own, for instance with "
                f'strategy="local_rank"{share}.'
            )
        raise PlacementError(
            f"{shared[0]}."
            if shared
            else f"{n} local ranks share {count} devices on host {self.node.hostname}.",
            f'strategy "{self.policy.name}" gives {self.in_words} for {n} local ranks.',
            hint,
            shared[0].ranks if shared else (),
        )

    def idle(self, launch: Launch) -> str | None:
        """Return a sentence on devices that no process of the node will use."""
        if not self.devices:
            return None
        strategy = self.policy.strategy
        chooses = isinstance(strategy, str) and STRATEGIES[strategy].chooses
        devices = self.devices if chooses else self.allowed
        return idle_devices(launch, devices, self.node)

    def warnings(self, launch: Launch) -> list[str]:
        """Return a sentence for each doubt about the devices of the node's ranks."""
        if not self.devices:
            return []
        devices = self.devices_here(launch)
        return advice(devices, self.allowed, self.node, self.policy.name)

    @property
    def by_rank(self) -> bool:
        """Whether ranks with equal local ranks on equal nodes can differ in device."""
        strategy = self.policy.strategy
        by_local_rank = self.decided or (
            isinstance(strategy, str) and STRATEGIES[strategy].place == "local_rank"
        )
        return not by_local_rank

    @property
    def in_words(self) -> str:
        """The rule as a user would write it."""
        strategy = self.policy.strategy
        if not isinstance(strategy, str):
            return f"{self.policy.name}(launch, node)"
        rule = STRATEGIES[strategy]
        by = self.allowed if rule.place == "rank" else self.devices
        return rule.words.format(devices=len(by))

    def _is_only_one(self, launch: Launch) -> bool:
        """Tell whether there is one device, and nothing is known of other local ranks.

        If two such ranks are on one device, the roll call finds out.
        """
        unknown = launch.local_rank is launch.local_world_size is None
        return len(self.devices) == 1 and unknown

    def _refuse_twice(self, listed: object) -> None:
        indices = [device.index for device in self.allowed]
        different = len(set(indices))
        if different < len(indices) and not self.policy.oversubscribe:
            twice = next(d for d in self.allowed if indices.count(d.index) > 1)
            raise PlacementError(
                f"{twice} is listed twice in gpus on {self.node.hostname}.",
                f"gpus={listed!r} has {len(indices)} entries for {different} "
                f"{plural('device', different)}.",
                "List each device once. Sharing one needs oversubscribe=True and a "
                "backend that can (gloo).",
            )

    def _refuse_more_processes(self, launch: Launch) -> None:
        count = len(self.devices)
        processes = launch.local_world_size or _local_rank(launch) + 1
        if processes <= count:
            return
        names = ", ".join(map(str, self.devices))
        several = [self.devices[n % count].index for n in range(min(processes, 8))]
        share = (
            f"list one for each process, gpus={several}"
            if self.policy.oversubscribe and processes == len(several)
            else f"list {processes} devices in gpus=[…]"
        )
        raise PlacementError(
            f"{processes} processes on {self.node.hostname} have {count} "
            f"{plural('device', count)}: local rank {count} and up would have none.",
            f'strategy "{self.policy.name}" gives {self.in_words}; '
            f"the pool is {names}.",
            f"Start {count} on each node ({launch.command(count)}), or {share}."
            + _HOW_TO_SHARE * (not self.policy.oversubscribe),
            tuple(range(launch.world_size)[-processes:][:_MOST_RANKS])
            if launch.one_node
            else (),
        )

    def _refuse_slices_of_one_gpu(
        self, ranks: Sequence[int], devices: Sequence[Device]
    ) -> None:
        for device in devices:
            pairs = zip(ranks, devices, strict=True)
            crowd = tuple(rank for rank, other in pairs if other.mig == device.mig)
            if device.mig and len(crowd) > 1:
                apart = one_per_gpu(self.devices)
                raise PlacementError(
                    f"{ranks_in_words(crowd)} are on MIG slices of one GPU, "
                    f"{device.mig}, on host {self.node.hostname}.",
                    "NCCL refuses two ranks on one GPU, slices of it included.",
                    "Give each rank a slice of a GPU of its own, of which there are "
                    f"{len(apart)}: gpus={[d.index for d in apart]}; or choose "
                    'backend="gloo".',
                    crowd,
                )

    def _from_function(self, launch: Launch) -> Device:
        policy, node = self.policy, self.node
        assert callable(policy.strategy)  # noqa: S101 - for the type checkers
        where = (
            f"rank {launch.rank} (node_rank {launch.node_rank}, "
            f"local_rank {launch.local_rank})"
        )
        answer = called(policy.strategy, launch, node, whose=where)
        if isinstance(answer, Device) and answer not in node.devices:
            answer = answer.uuid or answer.index
        try:
            device = answer if isinstance(answer, Device) else resolve(answer, node)
        except DeviceError as error:
            hint = "Return an index, a UUID or a PCI bus ID of a device listed."
            if isinstance(answer, int) and answer >= len(node.devices):
                hint = (
                    "A device index counts on its own node: it contains neither "
                    "node_rank nor the global rank. Return launch.local_rank, or any "
                    "index listed."
                )
            raise DeviceError(
                f'strategy "{policy.name}" gave {answer!r} for {where}: '
                f"{error.happened}",
                error.seen,
                hint,
            ) from None
        if device.index not in [allowed.index for allowed in self.allowed]:
            raise PlacementError(
                f'strategy "{policy.name}" gave {device} for rank {launch.rank}, which '
                "is not in gpus.",
                f"The pool on {node.hostname} is {', '.join(map(str, self.allowed))}.",
                "Return one of these, or add it to gpus=[…].",
                (launch.rank,),
            )
        return device


def place(
    launch: Launch,
    node: Node,
    strategy: Strategy | None = None,
    *,
    gpus: Gpus | None = None,
    scores: Scores | None = None,
    oversubscribe: bool = False,
) -> Placement:
    """Return the device that a rank trains on, in time independent of the world size.

    If the node has no accelerator, and none was asked for, that is the CPU.

    Raises:
        LaunchError: The strategy needs a number that the launcher does not set.
        DeviceError: A device is named that is not there.
        PlacementError: There is no device for this rank or for its neighbours.

    >>> cards = tuple(Device(kind="cuda", index=i) for i in range(4))
    >>> launch = Launch(launcher="torchrun", rank=1, world_size=2, local_rank=1)
    >>> place(launch, Node(hostname="n1", devices=cards), gpus=[2, 3]).device.index
    3
    """
    policy = Policy.of(strategy, gpus, scores, oversubscribe=oversubscribe)
    return Pool.of(policy, node, launch).place(launch)


def can_share(backend: str, environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether a process group's backend lets two ranks use one device.

    NCCL does where its user has told it to, from 2.30 on. Source: NCCL's user guide,
    environment variables.
    """
    told = (environ or {}).get(_NCCL_SHARES) == "1"
    alone = [name for name in _ONE_RANK_A_DEVICE if not (told and name == "nccl")]
    return not any(name in backend.lower() for name in alone)


def _allowed(policy: Policy, node: Node, launch: Launch) -> tuple[Device, ...]:
    """Return the devices that gpus names on this node, or all visible ones."""
    listed = policy.listed(node, launch.node_rank)
    allowed = node.devices if listed is None else resolve_all(listed, node)
    if allowed:
        return allowed
    raise DeviceError(
        f'strategy "{policy.name}" has no device to choose from.',
        node.visible,
        "Start where an accelerator is visible, or with GPUMAP_REHEARSAL=dgx-a100.",
    )


def _runs_on_cpu(policy: Policy, node: Node) -> bool:
    """Tell whether there is no accelerator, and none was asked for.

    The scores {"cpu": …} that measure() returns for the CPU ask for none.
    """
    scores = policy.scores
    unscored = scores is None or (
        isinstance(scores, Mapping)
        and list(cast("Mapping[object, float]", scores)) == ["cpu"]
    )
    return not node.devices and policy.gpus is None and unscored


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

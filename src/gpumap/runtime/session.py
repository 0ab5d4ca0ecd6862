"""A session, as its block sees it, and which one is open."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Unpack

from gpumap.errors import SessionError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.seconds import seconds_of
from gpumap.runtime.block import leave
from gpumap.runtime.ddp_options import DDPOptions
from gpumap.runtime.inside import First, Inside
from gpumap.runtime.launch_numbers import number_of

if TYPE_CHECKING:
    from gpumap.runtime.balanced_batch import BalancedBatch

__all__ = ["Session", "current", "make_current"]


@dataclass(frozen=True)
class Session:
    """An open session.

    It is a value: what it opens and closes belongs to the process, which has one open
    session at most.

    Attributes:
        device: The torch.device in use; the CPU in a rehearsal.
        launch: The rank, local rank and so on of this process.
        node: This host and its devices.
        placement: The device of this process, and why; in a rehearsal, pretended.
        store: A torch store that all ranks share, with keys of this session alone.
        inside: What the methods of the session work on.
        balanced: The batch that the ranks split by their speeds, if they do.
    """

    device: torch.device
    launch: Launch
    node: Node = field(repr=False)
    placement: Placement = field(repr=False)
    store: dist.Store = field(repr=False)
    inside: Inside = field(repr=False, compare=False)
    balanced: "BalancedBatch | None" = None

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.launch.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.launch.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints, saves and downloads for all."""
        return self.rank == 0

    @property
    def local_rank(self) -> int:
        """This process's place among those of its node.

        Raises:
            LaunchError: The launcher leaves it open, here and in the next three.
        """
        return number_of(self.launch, "local_rank")

    @property
    def local_world_size(self) -> int:
        """Number of processes on this node."""
        return number_of(self.launch, "local_world_size")

    @property
    def node_rank(self) -> int:
        """Place of this node among the nodes."""
        return number_of(self.launch, "node_rank")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return number_of(self.launch, "num_nodes")

    def wrap(
        self, model: nn.Module, **ddp: Unpack[DDPOptions]
    ) -> DistributedDataParallel:
        """Return a model wrapped in DistributedDataParallel, on this rank's device.

        Every rank wraps the same models, any number of them, in the same order; the
        ranks compare them before torch's constructor. The session lets go of the
        wrapped model at its end, when `m.module` is the trained one.

        Args:
            model: The module to train, not wrapped yet.
            ddp: Passed on to DistributedDataParallel.

        Raises:
            RollCallError: The ranks' models or options differ, or a rank does not come
                within the time that a collective may take, fails, or comes to its end.
                Every rank that waits raises the same.
            SessionError: The model cannot be wrapped; the session is over, has a
                balance, or its other ranks wait for this one.
            TypeError: DistributedDataParallel has no such option.
        """
        return self.inside.wrap(model, ddp)

    def rank_zero_first(
        self, *, local: bool = False, timeout: float | timedelta = 1800.0
    ) -> AbstractContextManager[None]:
        """Let rank 0 run a block before all others: a download, a cache, a build.

        The others wait for it at the store, without a collective, and then run the
        block too. If it raises, every other rank raises a SessionError that names rank
        0 and its error. Every rank uses it equally often; no collective may be in it.

        Args:
            local: Let local rank 0 of each node go first, for a disk of the node's own.
            timeout: Seconds that the others wait for the first rank.

        Raises:
            SessionError: The first rank failed or died, or the time has passed.
            LaunchError: With local, the launcher does not say this rank's local rank.
        """
        return First(self.inside, local=local, seconds=seconds_of("timeout", timeout))

    def close(self) -> None:
        """Leave the session now, as the end of its block would; once is enough.

        What start() returned is left so. In a `finally`, the error on its way out is
        what the session is left with. The end of a block, after this, does nothing.

        Raises:
            SessionError: Another rank failed, died, or did not come to its end.
        """
        if any(self is one for one in _current):
            leave()

    @property
    def batch_size(self) -> int:
        """This rank's share of the batch, in samples.

        Raises:
            SessionError: The session has no balance.
        """
        return self.shares[self.rank]

    @property
    def shares(self) -> tuple[int, ...]:
        """Each rank's share of the batch, in samples; together the whole batch.

        Raises:
            SessionError: The session has no balance.
        """
        return self._balanced.shares

    def split(self, total: int) -> tuple[int, ...]:
        """Return each rank's share of a batch of another size, in the same proportion.

        Raises:
            SessionError: The session has no balance; or total is above its batch, and
                the devices have bounds of their own.
            PlacementError: There are fewer samples than ranks.
        """
        return self._balanced.split(total)

    def rebalance(self) -> None:
        """Split the batch anew, between epochs, by the speeds of the steps since.

        Every rank calls it; it does nothing unless speeds="adapt".

        Raises:
            SessionError: The session has no balance.
        """
        self._balanced.rebalance()

    @property
    def _balanced(self) -> "BalancedBatch":
        if self.balanced is None:
            raise SessionError(
                "this session has no batch to split.",
                "It was opened without balance=….",
                "Write ddp_session(model, balance=gpumap.Balance(batch=256)).",
            )
        return self.balanced


_current: list[Session] = []


def current() -> Session:
    """Return the session that this code runs in.

    Raises:
        SessionError: No session is open.
    """
    if not _current:
        raise SessionError(
            "no session is open.",
            "current() was called outside of one.",
            "Call it inside `with gpumap.session(…):` or gpumap.ddp_session(…), or "
            "after gpumap.start(…).",
        )
    return _current[-1]


def make_current(session: Session | None) -> None:
    """Make a session the one that current() returns; None: no session is open."""
    _current[:] = [] if session is None else [session]

"""The batch that a session's ranks split by their speeds."""

import logging
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpumap.mapping.balance import Balance
from gpumap.mapping.batches import split_batch
from gpumap.runtime.local_setup import LocalSetup
from gpumap.runtime.pace import Pace
from gpumap.runtime.weights import Weights

__all__ = ["BalancedBatch"]

log = logging.getLogger(__name__)


class BalancedBatch:
    """The ranks' shares of a batch, and what makes a step on them exact.

    Attributes:
        shares: Each rank's samples of the batch, the same on all ranks.
    """

    def __init__(
        self, balance: Balance, setup: LocalSetup, shares: tuple[int, ...]
    ) -> None:
        """Begin with the shares that the roll call has found."""
        self.shares = shares
        self._balance = balance
        self._setup = setup
        self._weights: Weights | None = None
        self._pace: Pace | None = None
        self._log()

    def attach(self, wrapped: DistributedDataParallel) -> None:
        """Weigh the gradients of a model, and time its steps if shares may change.

        A single process has the whole batch, and nothing to weigh.
        """
        if len(self.shares) == 1:
            return
        balance = self._balance
        if balance.how == "adapt":
            self._pace = Pace(wrapped)
        self._weights = Weights(
            wrapped,
            balance.batch,
            count=balance.count,
            computed=self._pace.computed if self._pace else lambda _: None,
        )

    def detach(self) -> None:
        """Remove what attach() has installed."""
        for installed in (self._weights, self._pace):
            if installed is not None:
                installed.remove()
        self._weights = self._pace = None

    def split(self, total: int) -> tuple[int, ...]:
        """Return the ranks' shares of a batch of another size."""
        if total == self._balance.batch:
            return self.shares
        return split_batch(total, self.shares)

    def rebalance(self) -> None:
        """Split the batch anew by the speeds of the steps since the last time.

        Every rank calls it. If some rank has trained no step, the shares stay.
        """
        if self._pace is None:
            return
        batch, most = self._balance.batch, self._setup.most
        speeds = self._from_all(self._pace.samples_per_second() or 0.0)
        limits = self._from_all(batch if most is None else most)
        if not all(speeds):
            return
        self.shares = split_batch(
            batch,
            speeds,
            minimum=self._balance.minimum,
            most=[int(limit) for limit in limits],
        )
        self._log()

    def _from_all(self, mine: float) -> list[float]:
        """Return each rank's number."""
        own = torch.tensor(mine, dtype=torch.float32, device=self._setup.device)
        every = [torch.empty_like(own) for _ in self.shares]
        cast("Any", dist).all_gather(every, own)
        return [number.item() for number in every]

    def _log(self) -> None:
        if self._setup.launch.rank == 0 and len(self.shares) > 1:
            batch, shares = self._balance.batch, ", ".join(map(str, self.shares))
            log.info("a batch of %d is split among the ranks as %s", batch, shares)

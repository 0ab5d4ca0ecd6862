"""The batch that a session's ranks split by their speeds."""

import logging
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpumap.errors import SessionError
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
        self._has_looked = balance.count is not None
        self._log()

    def attach(self, wrapped: DistributedDataParallel) -> None:
        """Weigh the gradients of a model, and time its steps if shares may change.

        A single process has the whole batch, and nothing to weigh.
        """
        if len(self.shares) == 1:
            return
        balance = self._balance
        if balance.adapts:
            self._pace = Pace(wrapped)
        self._weights = Weights(
            wrapped, balance.batch, count=balance.count, computed=self._computed
        )

    def detach(self) -> None:
        """Remove what attach() has installed."""
        for installed in (self._weights, self._pace):
            if installed is not None:
                installed.remove()
        self._weights = self._pace = None

    def split(self, total: int) -> tuple[int, ...]:
        """Return the ranks' shares of a batch of another size.

        Of a smaller one no rank gets more than its share of the whole batch, and each
        gets the minimum if there are enough samples for that, else 1 or more.

        Raises:
            PlacementError: There are fewer samples than ranks, or more than they take.
            SessionError: The batch is larger, and each rank knows its own bound only.
        """
        balance, shares = self._balance, self.shares
        if total == balance.batch:
            return shares
        # Of a smaller batch no quota, rounded up, is more than the share.
        most = balance.most if total > balance.batch and len(shares) > 1 else None
        if most is not None and not isinstance(most, int):
            raise SessionError(
                f"a batch of {total} is larger than the balance's, {balance.batch}.",
                "How much of it each rank can take was asked for that one.",
                f"Split at most {balance.batch}, or open the session with "
                f"Balance(batch={total}, …).",
            )
        enough = total >= balance.minimum * len(shares)
        minimum = balance.minimum if enough else 1
        return split_batch(total, shares, minimum=minimum, most=most)

    def rebalance(self) -> None:
        """Split the batch anew by the speeds of the steps since the last time.

        Every rank calls it. If some rank has trained no step, the shares stay.
        """
        if self._pace is None:
            return
        batch, most = self._balance.batch, self._setup.most
        pace = self._pace.samples_per_second() or 0.0
        speeds = self._from_all(pace, torch.float32)
        limits = self._from_all(batch if most is None else most, torch.int64)
        if not all(speeds):
            return
        self.shares = split_batch(
            batch,
            speeds,
            minimum=self._balance.minimum,
            most=[int(limit) for limit in limits],
        )
        self._log()

    def _computed(self, samples: int) -> None:
        """Note that this rank has the gradients of a call with so many samples."""
        if not self._has_looked:
            self._look_at(samples)
        if self._pace is not None:
            self._pace.computed(samples)

    def _look_at(self, samples: int) -> None:
        """Warn once if the first call is neither of this rank's share nor of a part."""
        self._has_looked = True
        rank = self._setup.launch.rank
        if self.shares[rank] % samples:
            log.warning(
                "rank %d's first call of the model had %d samples, its share is %d; "
                "unless the batch was a smaller one, tell how to count them: "
                "Balance(…, count=lambda args, kwargs: …)",
                rank,
                samples,
                self.shares[rank],
            )

    def _from_all(self, mine: float, dtype: torch.dtype) -> list[float]:
        """Return each rank's number."""
        own = torch.tensor(mine, dtype=dtype, device=self._setup.device)
        every = [torch.empty_like(own) for _ in self.shares]
        cast("Any", dist).all_gather(every, own)
        return [number.item() for number in every]

    def _log(self) -> None:
        if self._setup.launch.rank == 0 and len(self.shares) > 1:
            batch, shares = self._balance.batch, ", ".join(map(str, self.shares))
            log.info("a batch of %d is split among the ranks as %s", batch, shares)

"""A batch sampler that gives each rank its share of every global batch."""

from collections.abc import Iterator, Mapping, Sized
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch.utils.data import Sampler

from gpumap.errors import SessionError
from gpumap.mapping.steps import Steps
from gpumap.runtime.session import current
from gpumap.words import plural

__all__ = ["Balanced", "BalancedSampler"]


class Balanced(Protocol):
    """A session whose ranks share each batch by their speeds."""

    @property
    def rank(self) -> int:
        """This process's rank."""
        ...

    @property
    def shares(self) -> tuple[int, ...]:
        """Number of samples of each rank; together they are the global batch."""
        ...

    def split(self, total: int) -> tuple[int, ...]:
        """Return the shares of this batch or a smaller one, 1 or more each."""
        ...

    def rebalance(self) -> None:
        """Split the batch anew; all ranks call this together."""
        ...


class BalancedSampler(Sampler[list[int]]):
    """Yields the indices of this rank's share of each global batch.

    Use it as `DataLoader(data, batch_sampler=BalancedSampler(data))`. In an epoch, each
    index comes once on one rank, and all ranks make the same number of steps. Together
    the ranks' shares of step k are the k-th batch of one process that shuffles with
    torch.randperm and the seed + epoch, as DistributedSampler does. If the last batch
    would be smaller than the number of ranks, the batches before it give it samples.

    Each iteration is an epoch of its own, so the data are shuffled anew also without
    set_epoch. It begins when the first batch is asked for, in the process that iterates
    over the loader, with session.rebalance(): all ranks must iterate together. The
    shares then stay as they are till the iteration's end.

    Arguments:
        data: The data set; only its length is used.
        session: The balanced session; None for the one that this code runs in.
        shuffle: Whether to shuffle; otherwise the indices come in order.
        seed: The same on all ranks.
        drop_last: Whether to leave out the last batch if it is smaller.

    Raises:
        SessionError: There is no balanced session, or the data are too few for all
            ranks to train on one sample or more in each step.
    """

    def __init__(
        self,
        data: Sized,
        session: Balanced | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """Begin with epoch 0."""
        super().__init__()
        self._data = data
        self._session: Balanced = current() if session is None else session
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._at = _Place(epoch=0, first=0)
        self._steps()

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch, on each rank."""
        return self._steps().count

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the rest of the epoch that was loaded or set, or else the next one."""
        # All of this is run by the first next(): a DataLoader with workers calls iter()
        # twice, and throws the first iterator away.
        self._session.rebalance()
        begun = self._at.yielded is not None
        at = _Place(self._at.epoch + 1, first=0) if begun else self._at
        at = self._at = at._replace(yielded=0)
        steps, order, rank = self._steps(), self._order(at.epoch), self._session.rank
        starts = [steps.start(step) for step in range(at.first, steps.count + 1)]
        # Split now: another sampler may rebalance the session in the middle of this.
        sizes = {end - start for start, end in pairwise(starts)}
        shares = {size: self._session.split(size) for size in sizes}
        for yielded, (start, end) in enumerate(pairwise(starts), 1):
            if self._at is at:  # no other epoch was set, and none begun, meanwhile
                at = self._at = at._replace(yielded=yielded)
            mine = start + sum(shares[end - start][:rank])
            after = mine + shares[end - start][rank]
            yield order[mine:after].tolist()  # pyright: ignore[reportUnknownMemberType] - torch does not say of what

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch; one that was loaded still goes on."""
        if epoch != self._at.epoch or self._at.yielded is not None:
            self._at = _Place(epoch, first=0)

    def state_dict(self, steps: int | None = None) -> dict[str, int]:
        """Return where to go on, to be stored in a checkpoint.

        steps: how many batches of this iteration were trained on, as enumerate(loader,
        1) counts them. Without it, as many as were yielded: with DataLoader workers
        those are more, since the loader fetches ahead.

        Raises:
            SessionError: This iteration has yielded fewer batches.
        """
        epoch, first, yielded = self._at.epoch, self._at.first, self._at.yielded or 0
        if steps is not None and not 0 <= steps <= yielded:
            raise SessionError(
                f"steps={steps} were not all yielded.",
                f"This iteration over the sampler has yielded {yielded} "
                f"{plural('step', yielded)}"
                f"{f', from step {first} on' if first else ''}.",
                "Count the steps of this iteration: for steps, batch in "
                "enumerate(loader, 1).",
            )
        step = first + (yielded if steps is None else steps)
        if step == len(self):
            epoch, step = epoch + 1, 0
        return {"epoch": epoch, "step": step, **self._identity(step)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration go on where a state was taken; shares may differ.

        Raises:
            SessionError: The state is of another order of the data, or of another
                division into batches.
        """
        wanted = {"epoch", "step", *self._identity(0)}
        if set(state) != wanted:
            raise SessionError(
                "this is not the state of a BalancedSampler.",
                f"It has {', '.join(map(repr, state)) or 'no entries'}.",
                "Pass what state_dict() has returned.",
            )
        here = self._identity(state["step"])
        other = [name for name in here if here[name] != state[name]]
        if other:
            raise SessionError(
                "the state is of other batches than this sampler's.",
                f"It has {', '.join(f'{name} {state[name]}' for name in other)}; "
                f"here is {', '.join(f'{name} {here[name]}' for name in other)}.",
                "Go on with the same data, batch, seed and options, or start a new "
                f"epoch: sampler.set_epoch({state['epoch'] + 1}).",
            )
        self._at = _Place(state["epoch"], first=state["step"])

    def _identity(self, step: int) -> dict[str, int]:
        """Return what decides which samples were trained on before a step."""
        steps = self._steps()
        return {
            "samples": steps.start(step),
            "batch": steps.batch,
            "length": len(self._data),
            "seed": self._seed,
            "shuffle": int(self._shuffle),
        }

    def _steps(self) -> Steps:
        shares = self._session.shares
        return Steps(
            length=len(self._data),
            batch=sum(shares),
            ranks=len(shares),
            drop_last=self._drop_last,
        )

    def _order(self, epoch: int) -> torch.Tensor:
        """Return the order of the indices in an epoch."""
        if not self._shuffle:
            return torch.arange(len(self._data), device="cpu")
        generator = torch.Generator()
        generator.manual_seed(self._seed + epoch)
        return torch.randperm(len(self._data), generator=generator, device="cpu")


class _Place(NamedTuple):
    """The epoch of an iteration, its first step, and how many batches it has yielded.

    None is the number of an iteration that has not begun.
    """

    epoch: int
    first: int
    yielded: int | None = None

"""The steps of an epoch: how a data set is cut into global batches."""

from dataclasses import dataclass

from gpumap.errors import SessionError
from gpumap.words import plural

__all__ = ["Steps"]


@dataclass(frozen=True)
class Steps:
    """The samples of each step: a batch, and what is left in the last one.

    In each step each rank gets one sample or more. If the last step would have fewer,
    the steps before it give it samples, the last of them first.

    Attributes:
        length: Number of samples in the data set.
        batch: Number of samples in a step, of all ranks together; one or more each.
        ranks: Number of ranks.
        drop_last: Whether the last step is left out if it is smaller than a batch.

    Raises:
        SessionError: There is no step, or a step with fewer samples than ranks.

    >>> steps = Steps(length=17, batch=5, ranks=3, drop_last=False)
    >>> [steps.start(step) for step in range(steps.count + 1)]
    [0, 5, 10, 14, 17]
    """

    length: int
    batch: int
    ranks: int
    drop_last: bool

    def __post_init__(self) -> None:
        """Check that each step has a sample for each rank."""
        length, batch, ranks = self.length, self.batch, self.ranks
        if length < ranks:
            raise SessionError(
                f"{length} {plural('sample', length)} cannot be shared by {ranks} "
                f"{plural('rank', ranks)}.",
                "In each step each rank trains on one sample or more.",
                f"Use a data set of at least {ranks}, or fewer ranks.",
            )
        if not self.count:
            raise SessionError(
                f"drop_last=True leaves none of {length} {plural('sample', length)}.",
                f"A batch is {batch}.",
                f"Use a batch of at most {length}, or drop_last=False.",
            )
        if length < self.count * ranks:
            enough = -(-length // (length // ranks))
            raise SessionError(
                f"{length} samples in {self.count} {plural('step', self.count)} do not "
                f"give each of {ranks} ranks a sample in each step.",
                f"A batch is {batch}, and in the last step {length % batch} "
                f"{'is' if length % batch == 1 else 'are'} left.",
                f"Use a batch of at least {enough}, fewer ranks, or drop_last=True.",
            )

    @property
    def count(self) -> int:
        """Number of steps."""
        whole, left = divmod(self.length, self.batch)
        return whole + (left > 0 and not self.drop_last)

    def start(self, step: int) -> int:
        """Return how many samples the steps before this one have."""
        still_needed = (self.count - step) * self.ranks
        return min(step * self.batch, self.length - still_needed)

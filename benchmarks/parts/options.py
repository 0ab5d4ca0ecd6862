"""What is asked of a measurement."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpumap.errors import SessionError
from gpumap.mapping.base import Count, FrozenModel, Index
from gpumap.mapping.device_refs import Plain

__all__ = ["ITEM_SIZES", "MOST_RANKS", "Options", "Type"]

ITEM_SIZES = {"float": 4, "double": 8, "half": 2, "bfloat16": 2}
# Partial sums are whole numbers up to 6 a rank; beyond these worlds they would round.
MOST_RANKS = {"float": 2_796_202, "double": 2**32, "half": 341, "bfloat16": 42}
# On a CPU an all-reduce takes as long as its bytes: larger sizes get fewer iterations.
_CPU_BYTES = 32 * 2**20
_MOST_BYTES = {"cpu": 256 * 2**20}

Type = Literal["float", "double", "half", "bfloat16"]


class Options(FrozenModel):
    """What is measured; rank 0's hold for all.

    Attributes:
        minbytes: The smallest size; maxbytes the largest, factor the step between.
            Without maxbytes 256 MiB on a CPU, 1 GiB elsewhere.
        iterations: All-reduces in one measurement, at most.
        warm_ups: All-reduces before it, at most.
        rounds: How often each way is measured, in turn with the others.
        type: Of the elements, as nccl-tests call it.
        strategies: Which to compare.
        gpus: Their pool.
        scores: For "scored".
        backend: Of the process group; the device's own without it.
    """

    minbytes: Count = 4 * 2**10
    maxbytes: Count | None = None
    factor: Annotated[int, Field(ge=2)] = 2
    iterations: Count = 20
    warm_ups: Index = 5
    rounds: Count = 5
    type: Type = "float"
    strategies: tuple[str, ...]
    gpus: tuple[Plain, ...] | None = None
    scores: Literal["memory", "multiprocessors"] = "memory"
    backend: str | None = None

    def on(self, device: str) -> "Options":
        """Return these with the largest size filled in."""
        if self.maxbytes is not None:
            return self
        most = max(self.minbytes, _MOST_BYTES.get(device, 2**30))
        return self.model_copy(update={"maxbytes": most})

    def counts(self) -> list[int]:
        """Return the numbers of elements to reduce, smallest first."""
        item, size, found = ITEM_SIZES[self.type], self.minbytes, dict[int, None]()
        while size <= (self.maxbytes or self.minbytes):
            found[max(1, size // item)] = None
            size *= self.factor
        return list(found)

    def repeats(self, count: int, device: str) -> tuple[int, int]:
        """Return the warm-ups and the iterations of a measurement."""
        if device != "cpu":
            return self.warm_ups, self.iterations
        fit = max(2, _CPU_BYTES // (count * ITEM_SIZES[self.type]))
        return min(self.warm_ups, fit // 2), min(self.iterations, fit)

    @model_validator(mode="after")
    def _has_a_size(self) -> Self:
        if self.maxbytes is not None and self.maxbytes < self.minbytes:
            raise SessionError(
                f"there is no size from {self.minbytes} to {self.maxbytes} bytes.",
                "-b is the smallest, -e the largest.",
                "Write -b 4K -e 256M, for instance.",
            )
        return self

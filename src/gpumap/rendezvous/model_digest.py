"""What the models of all ranks must have in common, and where two differ.

DistributedDataParallel compares shapes only, and over the group: if models differ, one
rank gets an error that says so; the others see a closed connection, or wait.
"""

import base64
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from gpumap.mapping.base import FrozenModel

__all__ = ["Likeness", "Model", "difference", "model_of"]

# Limits of one value on a store; of a longer table only the beginning is kept.
_MOST_PACKED, _MOST_BYTES = 30_000, 2**24


class Likeness(NamedTuple):
    """A rank's model and DDP options, as far as all ranks must agree on them.

    Attributes:
        rows: One for each tensor of the model; none in a session without a model.
        options: DDP's own options, as text.
    """

    rows: Sequence[str] = ()
    options: Mapping[str, str] = {}

    @property
    def digest(self) -> str:
        """A digest that is equal if the models are, whatever the tensors' names."""
        kinds = "\n".join(row.partition("\t")[0] for row in self.rows)
        return hashlib.sha256(kinds.encode()).hexdigest()[:16] if kinds else ""


class Model(FrozenModel):
    """The tensors of a rank's model, for the ranks whose digest differs.

    Attributes:
        packed: The rows, or the first of very many.
        count: How many rows there are.
    """

    packed: str
    count: int


def model_of(rows: Sequence[str]) -> Model:
    """Return rows in a form that fits into one value on a store."""
    told = rows
    while len(packed := _packed(told)) > _MOST_PACKED:
        told = told[: len(told) // 2]
    return Model(packed=packed, count=len(rows))


def difference(theirs: Model, rows: Sequence[str]) -> tuple[str, str]:
    """Return the first row in which their model and these rows differ, from each."""
    unpacked = zlib.decompressobj().decompress(
        base64.b85decode(theirs.packed), _MOST_BYTES
    )
    told = unpacked.decode().splitlines()
    for one, other in zip_longest(told, rows, fillvalue=""):
        if not one and len(told) < theirs.count:
            break
        if one.partition("\t")[0] != other.partition("\t")[0]:
            return _in_words(one), _in_words(other)
    return f"something else after its first {len(told)} tensors", "none of it"


def _packed(rows: Sequence[str]) -> str:
    return base64.b85encode(zlib.compress("\n".join(rows).encode())).decode()


def _in_words(row: str) -> str:
    kind, _, name = row.partition("\t")
    return f"{name} {kind}" if row else "no further one"

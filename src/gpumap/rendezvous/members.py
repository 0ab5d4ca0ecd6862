"""Who the ranks are, and what all of them must have in common."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from gpumap.mapping.base import FrozenModel
from gpumap.mapping.identity import Identity

__all__ = ["KIND", "Member", "Signed", "Stranger", "Terms", "named"]


class Member(FrozenModel):
    """Who claims a rank and a device.

    Attributes:
        rank: The rank claimed.
        hostname: The node's name.
        pid: The process id there.
        device: The device's name, for people.
        identity: What tells this device from all others; None where ranks may share.
        sight: Why it trains on the CPU, if it does.
        scores: The scores that placed it, if any did, by the devices' own names.
        rehearsal: The machine pretended, if one is.
        hint: What this rank would change if its device turned out to be taken.
        pid_space: Where the process id counts.
    """

    rank: int
    hostname: str
    pid: int
    device: str
    identity: Identity | None = None
    sight: str = ""
    scores: Mapping[str, float] = Field(default_factory=dict)
    rehearsal: str = ""
    hint: str = ""
    pid_space: str | None = None

    def __str__(self) -> str:
        """Return rank, host and process."""
        return f"rank {self.rank} (pid {self.pid} on {self.hostname})"


KIND = "the kind of device"


class Terms(FrozenModel):
    """What all ranks must have in common.

    Attributes:
        world_size: Number of ranks.
        kind: The kind of device that the rank trains on, also a pretended one.
        on_cpu_as_asked: Whether the user wants this rank on the CPU.
        rehearsal: Whether the rank pretends its machine.
        backend: The process group's backend.
        strategy: The strategy's name.
        ddp: DistributedDataParallel's own options, in words.
        model: The digest of the model; "" in a session without one.
    """

    world_size: int
    kind: str
    on_cpu_as_asked: bool
    rehearsal: bool
    backend: str
    strategy: str
    ddp: Mapping[str, str] = Field(default_factory=dict)
    model: str = ""

    def different(self, other: "Terms") -> list[str]:
        """Return the names of what two ranks have otherwise than each other."""
        mine, theirs = self.in_words(), other.in_words()
        names = [
            n for n in dict.fromkeys([*mine, *theirs]) if mine.get(n) != theirs.get(n)
        ]
        # One backend may join a CPU and devices, where the user wants it so.
        wanted = self.on_cpu_as_asked or other.on_cpu_as_asked
        if wanted and self.backend == other.backend:
            names = [name for name in names if name != KIND]
        return names

    def in_words(self) -> dict[str, str]:
        """Return all of it that can be said in a word, by name."""
        return {
            "world_size": str(self.world_size),
            "GPUMAP_REHEARSAL": "it" if self.rehearsal else "none",
            KIND: repr(self.kind),
            "backend": repr(self.backend),
            "strategy": repr(self.strategy),
            "session": "ddp_session()" if self.model else "session()",
            **self.ddp,
        }


class Signed(FrozenModel):
    """The terms of one rank."""

    member: Member
    terms: Terms


class Stranger(FrozenModel):
    """A process that came for a rank, and left because it looked like another job's."""

    seen: str


def named(ranks: Sequence[int], count: int) -> str:
    """Return so many ranks in words, by the numbers of the first of them."""
    if not ranks:
        return f"{count} ranks"
    more = f" and {count - len(ranks)} more" if count > len(ranks) else ""
    return f"rank{'' if count == 1 else 's'} {', '.join(map(str, ranks))}{more}"

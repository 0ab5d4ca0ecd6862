"""What each rank tells the others about itself, and what all must have in common."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from gpumap.mapping.base import Count, FrozenModel
from gpumap.mapping.identity import Identity
from gpumap.rendezvous.procfs import is_gone, is_halted, state_of

__all__ = ["KIND", "Member", "Signed", "Split", "Stranger", "Terms", "named"]


class Member(FrozenModel):
    """A process that claims a rank and a device.

    Attributes:
        rank: The rank claimed.
        hostname: The node's name.
        pid: The process id there.
        device: The device's name, for messages.
        identity: The device's identifier; None if ranks may share the device.
        sight: Why it trains on the CPU, if it does.
        scores: The scores that placed it, if any did, by the devices' own names.
        rehearsal: The rehearsed machine, if there is one.
        hint: What to change on this rank if its device is taken by another.
        pid_space: The PID namespace of pid, as in procfs.
        speed: How fast it trains, beside the others, if the batch is split by that.
        most: The most samples of a batch that it can take, if that is bounded.
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
    speed: float | None = None
    most: int | None = None

    def __str__(self) -> str:
        """Return rank, process id and host."""
        return f"rank {self.rank} (pid {self.pid} on {self.hostname})"

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended; False if that cannot be seen from here."""
        return is_gone(self.pid, self.pid_space)

    @property
    def is_halted(self) -> bool:
        """Whether its process has ended or is stopped, as far as is seen from here."""
        return is_halted(self.pid, self.pid_space)

    @property
    def state(self) -> str:
        """The state of its process, as text."""
        return state_of(self.pid, self.pid_space)


class Split(FrozenModel):
    """A batch that the ranks split by their speeds.

    Attributes:
        batch: Its number of samples, of all ranks together.
        minimum: The least samples of a rank.
        how: Where the speeds come from, in a word.
    """

    batch: Count
    minimum: Count
    how: str

    def __str__(self) -> str:
        """Return it as a user would write it, nearly."""
        return f"Balance(batch={self.batch}, minimum={self.minimum}, {self.how})"


KIND = "the kind of device"


class Terms(FrozenModel):
    """What all ranks must have in common.

    Attributes:
        world_size: Number of ranks.
        kind: The kind of device that the rank trains on, even if rehearsed.
        on_cpu_as_asked: Whether the user asked for this rank to be on the CPU.
        rehearsal: Whether the rank rehearses a machine.
        backend: The process group's backend.
        strategy: The strategy's name.
        ddp: DistributedDataParallel's own options, as text.
        model: The digest of the model; "" in a session without one.
        split: The batch that the ranks split among them, if they do.
        claim: Whether devices are claimed.
        bind: How ranks are bound to CPUs, if they are.
    """

    world_size: int
    kind: str
    on_cpu_as_asked: bool
    rehearsal: bool
    backend: str
    strategy: str
    ddp: Mapping[str, str] = Field(default_factory=dict)
    model: str = ""
    split: Split | None = None
    claim: bool = False
    bind: str | None = None

    def different(self, other: "Terms") -> list[str]:
        """Return the names of the terms in which two ranks differ."""
        mine, theirs = self.in_words(), other.in_words()
        names = [
            n for n in dict.fromkeys([*mine, *theirs]) if mine.get(n) != theirs.get(n)
        ]
        # If the user asked for it, a CPU and devices may share a group of one backend.
        wanted = self.on_cpu_as_asked or other.on_cpu_as_asked
        if wanted and self.backend == other.backend:
            names = [name for name in names if name != KIND]
        return names

    def in_words(self) -> dict[str, str]:
        """Return the terms as text, by name; the model's digest is left out."""
        return {
            "world_size": str(self.world_size),
            "GPUMAP_REHEARSAL": "it" if self.rehearsal else "none",
            KIND: repr(self.kind),
            "backend": repr(self.backend),
            "strategy": repr(self.strategy),
            "session": "ddp_session()" if self.model else "session()",
            "balance": str(self.split or "none"),
            "claim": str(self.claim),
            "bind": repr(self.bind),
            **self.ddp,
        }


class Signed(FrozenModel):
    """The terms of one rank, and which rank that is."""

    member: Member
    terms: Terms


class Stranger(FrozenModel):
    """A process that came as a rank, and left because it looked like another job's."""

    seen: str


def named(ranks: Sequence[int], count: int) -> str:
    """Return `count` ranks as text, of which the first numbers are given."""
    if not ranks:
        return f"{count} ranks"
    more = f" and {count - len(ranks)} more" if count > len(ranks) else ""
    return f"rank{'' if count == 1 else 's'} {', '.join(map(str, ranks))}{more}"

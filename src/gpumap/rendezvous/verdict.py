"""The possible verdicts of the roll call: go, or one error for all ranks."""

from collections.abc import Sequence

from gpumap.errors import GpumapError, PlacementError, RollCallError
from gpumap.mapping.base import FrozenModel
from gpumap.rendezvous.members import KIND, Member, Signed, Stranger, Terms, named
from gpumap.rendezvous.messages import described

__all__ = [
    "Verdict",
    "cannot_start",
    "claimed_twice",
    "disagreement",
    "gone",
    "machines_differ",
    "missing",
    "models_differ",
    "no_split",
    "one_device",
    "took_too_long",
]

_MOST_SCORES = 8
# The limit of each text, so that three fit into one value on the store.
_MOST_CHARACTERS = 2000


class Verdict(FrozenModel):
    """The result of the roll call for all ranks; without an error it means go.

    Attributes:
        happened: What is wrong.
        seen: What shows it.
        hint: What to change.
        ranks: Which ranks it is about.
        absent: How many ranks will not come to read it.
        shares: Each rank's samples of a batch, if the ranks split one.
    """

    happened: str = ""
    seen: str = ""
    hint: str = ""
    ranks: tuple[int, ...] = ()
    absent: int = 0
    shares: tuple[int, ...] = ()

    @property
    def error(self) -> RollCallError | None:
        """The error that every rank raises."""
        if not self.happened:
            return None
        return RollCallError(self.happened, self.seen, self.hint, self.ranks)


def claimed_twice(holder: Member, me: Member) -> Verdict:
    """Return the error that two processes claim one rank."""
    return Verdict(
        happened=f"rank {me.rank} is claimed twice: by pid {holder.pid} on "
        f"{holder.hostname} and by pid {me.pid} on {me.hostname}.",
        seen=f"{holder.device} and {me.device}.",
        hint="Start each rank once: look for a launcher inside a launcher "
        "(mp.spawn under srun or torchrun), a script started twice, or two jobs "
        "with one MASTER_PORT.",
        ranks=(me.rank,),
    )


def one_device(holder: Member, me: Member, name: str) -> Verdict:
    """Return the error that two ranks claim one device, with this name."""
    pair = tuple(sorted((holder.rank, me.rank)))
    seen = f"{holder} calls it {holder.device}; {me} calls it {me.device}."
    hint = me.hint
    changed = [name for name, x in me.scores.items() if holder.scores.get(name, x) != x]
    if holder.hostname == me.hostname and changed:
        scored = ", ".join(
            f"{name} {holder.scores[name]:g} and {me.scores[name]:g}"
            for name in changed[:_MOST_SCORES]
        )
        seen += f" Rank {holder.rank} and rank {me.rank} scored {scored}."
        hint = (
            "The ranks have different scores: work them out once, before the ranks "
            "start, and give all the same numbers; or pass a function of Device, which "
            "one rank calls for its node."
        )
    return Verdict(
        happened=f"rank {pair[0]} and rank {pair[1]} are both on one device, {name}.",
        seen=seen,
        hint=hint,
        ranks=pair,
    )


def disagreement(first: Signed, me: Member, terms: Terms, name: str) -> Verdict:
    """Return the error that two ranks differ in one of their terms."""
    theirs, mine = first.terms.in_words(), terms.in_words()
    if name == KIND and "cpu" in (first.terms.kind, terms.kind):
        return _half_on_cpu(first.member, me)
    values = [values.get(name, "not given") for values in (theirs, mine)]
    return Verdict(
        happened=f"the ranks disagree on {name}: {first.member} has {values[0]}, {me} "
        f"has {values[1]}.",
        hint=f"Give every rank the same {name}.",
        ranks=(first.member.rank, me.rank),
    )


def _half_on_cpu(one: Member, other: Member) -> Verdict:
    """Return the error that one of two ranks is on the CPU."""
    on_cpu, on_device = (one, other) if one.sight else (other, one)
    return Verdict(
        happened=f"{on_cpu} trains on the CPU, and {on_device} on {on_device.device}.",
        seen=f"On rank {on_cpu.rank}: {on_cpu.sight}",
        hint=f"Let rank {on_cpu.rank} see a device of its own, or let every rank train "
        'on the CPU with device="cpu".',
        ranks=tuple(sorted((one.rank, other.rank))),
    )


def machines_differ(one: Member, other: Member) -> Verdict:
    """Return the error that two ranks of a node rehearse different machines."""
    return Verdict(
        happened=f"the ranks of one node pretend different machines: {one} pretends "
        f"{_short(one.rehearsal)}, {other} {_short(other.rehearsal)}.",
        hint="Set GPUMAP_REHEARSAL alike on all ranks of a node; one file may describe "
        "several nodes.",
        ranks=(one.rank, other.rank),
    )


def models_differ(first: Member, me: Member, parts: tuple[str, str]) -> Verdict:
    """Return the error that two ranks' models differ, with the differing parts."""
    return Verdict(
        happened=f"the ranks' models differ: {first} has {parts[0]}, {me} has "
        f"{parts[1]}.",
        hint="Build the same model on every rank, from the same arguments.",
        ranks=(first.rank, me.rank),
    )


def no_split(error: PlacementError) -> Verdict:
    """Return the error that the ranks' speeds and bounds do not fit the batch."""
    return Verdict(
        happened=f"the batch cannot be split among the ranks: {error.happened}",
        seen=error.seen,
        hint=error.hint,
        ranks=error.ranks,
    )


def cannot_start(me: Member, error: BaseException) -> Verdict:
    """Return the error that this rank cannot start, because of an error of its own."""
    happened, seen, hint = described(error), "", ""
    if isinstance(error, GpumapError):
        happened, seen, hint = error.happened, error.seen, error.hint
    return Verdict(
        happened=f"{me} cannot start: {_short(happened)}",
        seen=_short(seen),
        hint=_short(hint),
        ranks=(me.rank,),
    )


def gone(member: Member) -> Verdict:
    """Return the error that a rank ended or was stopped before all had come."""
    on = f", on {member.device}" if member.device else ""
    return Verdict(
        happened=f"{member}{on}, did not stay for the roll call: {member.state}.",
        hint="It failed, or did not wait as long as the others: see what it said last.",
        ranks=(member.rank,),
        absent=1,
    )


def missing(
    ranks: Sequence[int],
    count: int,
    world_size: int,
    seconds: float,
    stranger: Stranger | None,
    remark: str,
) -> Verdict:
    """Return the error that `count` ranks, these first, did not come in time."""
    return Verdict(
        happened=f"{named(ranks, count)} of {world_size} did not come within "
        f"{seconds:g} s.",
        seen=f"{world_size - count} of {world_size} ranks are there."
        + (f" One came and left as another job's. {stranger.seen}" if stranger else ""),
        hint="If it is of this job after all, set GPUMAP_JOB_ID alike on all ranks."
        if stranger
        else remark
        or "See whether these processes were started, and what they say. "
        "start_timeout=… gives slow ones more time.",
        ranks=tuple(ranks),
        absent=count,
    )


def took_too_long(world_size: int, seconds: float) -> Verdict:
    """Return the error that no verdict was written in time."""
    return Verdict(
        happened=f"the roll call of {world_size} ranks took more than {seconds:g} s.",
        hint="See what the other ranks say.",
        absent=world_size - 1,
    )


def _short(text: str) -> str:
    return text[:_MOST_CHARACTERS].encode(errors="backslashreplace").decode()

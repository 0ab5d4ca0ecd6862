"""Every rank says who it is and which device it claims; all agree, or all fail alike.

Each rank makes the same few requests of the store, whatever the world size:

    rank/R      compare_set: who is rank R
    device/D    compare_set: who trains on device D
    terms       compare_set: what the first to arrive takes for granted
    present     add: how many have claimed; the last one writes the verdict
    verdict     compare_set: "go", or the one error that every rank raises
"""

import os
import socket
import time

from gpumap.errors import GpumapError, RollCallError
from gpumap.mapping.values import Value
from gpumap.runtime.board import Board, described
from gpumap.runtime.witness import is_halted, state_of

__all__ = ["Member", "Stranger", "Terms", "answer", "roll_call"]

# How long the store's host stays after an error, so that the others hear of it.
_STAY_SECONDS = 30.0
# How long the verdict may take once the time is up and one rank is writing it.
_SETTLE_SECONDS = 10.0
_MOST_NAMED = 20


class Member(Value):
    """Who claims a rank and a device.

    Attributes:
        rank: The rank claimed.
        hostname: The node's name.
        pid: The process id there.
        device: The device's name, for people.
        identity: What tells this device from all others; None where ranks may share.
        hint: What this rank would change if its device turned out to be taken.
        pid_space: Where the process id counts.
    """

    rank: int
    hostname: str
    pid: int
    device: str
    identity: str | None = None
    hint: str = ""
    pid_space: str | None = None

    def __str__(self) -> str:
        """Return rank, host and process."""
        return f"rank {self.rank} (pid {self.pid} on {self.hostname})"


class Terms(Value):
    """What all ranks must have in common."""

    world_size: int
    backend: str
    strategy: str


class Stranger(Value):
    """A process that came for a rank, and left because it looked like another job's."""

    seen: str


class _Signed(Value):
    member: Member
    terms: Terms


class _Verdict(Value):
    """The answer for all; go when there is no error.

    absent is the number of ranks that will not come to hear it.
    """

    happened: str = ""
    seen: str = ""
    hint: str = ""
    ranks: tuple[int, ...] = ()
    absent: int = 0

    @property
    def error(self) -> RollCallError | None:
        """The error that every rank raises."""
        if not self.happened:
            return None
        return RollCallError(self.happened, self.seen, self.hint, self.ranks)


def roll_call(
    board: Board, me: Member, terms: Terms, seconds: float, *, hosted: bool
) -> None:
    """Return once every rank is there, each with its own rank and its own device.

    Raises:
        RollCallError: A rank or a device is claimed twice, ranks disagree on the terms,
            a rank could not start, or ranks are missing when the seconds have passed.
            Every rank that is there raises the same.
    """
    deadline = time.monotonic() + seconds
    wrong = _wrong(board, me, terms)
    if wrong is not None and board.claim("verdict", wrong).error is None:
        # The others have started without this process: it was one too many.
        raise RollCallError(wrong.happened, wrong.seen, wrong.hint, wrong.ranks)
    if wrong is None and board.count("present") == terms.world_size:
        board.claim("verdict", _Verdict())
    left = max(deadline - time.monotonic(), 0.0)
    verdict = board.wait("verdict", _Verdict, left)
    if verdict is None:
        verdict = _settle(board, me, terms.world_size, seconds)
    if verdict.error is not None:
        others = terms.world_size - 1 - verdict.absent
        stay = deadline - time.monotonic()
        _let_others_hear(board, others, stay, hosted=hosted)
        raise verdict.error


def answer(
    board: Board,
    rank: int,
    world_size: int,
    error: BaseException,
    seconds: float,
    *,
    hosted: bool,
) -> None:
    """Tell the others that this rank cannot start, so that nobody waits for it."""
    happened, seen, hint = described(error), "", ""
    if isinstance(error, GpumapError):
        happened, seen, hint = error.happened, error.seen, error.hint
    board.claim(
        "verdict",
        _Verdict(
            happened=f"rank {rank} (pid {os.getpid()} on {socket.gethostname()}) "
            f"cannot start: {_short(happened)}",
            seen=_short(seen),
            hint=_short(hint),
            ranks=(rank,),
        ),
    )
    _let_others_hear(board, world_size - 1, seconds, hosted=hosted)


def _short(text: str) -> str:
    return text[:2000].encode(errors="backslashreplace").decode()


def _wrong(board: Board, me: Member, terms: Terms) -> _Verdict | None:
    holder = board.claim(f"rank/{me.rank}", me)
    if holder != me:
        return _Verdict(
            happened=f"rank {me.rank} is claimed twice: by pid {holder.pid} on "
            f"{holder.hostname} and by pid {me.pid} on {me.hostname}.",
            seen=f"{holder.device} and {me.device}.",
            hint="Start each rank once: look for a launcher inside a launcher "
            "(mp.spawn under srun or torchrun), a script started twice, or two jobs "
            "with one MASTER_PORT.",
            ranks=(me.rank,),
        )
    first = board.claim("terms", _Signed(member=me, terms=terms))
    for name in Terms.model_fields:
        theirs, mine = getattr(first.terms, name), getattr(terms, name)
        if theirs != mine:
            return _Verdict(
                happened=f"the ranks disagree on {name}: {first.member} has "
                f"{theirs!r}, {me} has {mine!r}.",
                hint=f"Give every rank the same {name}.",
                ranks=(first.member.rank, me.rank),
            )
    if me.identity is None:
        return None
    holder = board.claim(f"device/{me.identity}", me)
    if holder == me:
        return None
    pair = tuple(sorted((holder.rank, me.rank)))
    return _Verdict(
        happened=f"rank {pair[0]} and rank {pair[1]} are both on one device, "
        f"{me.identity}.",
        seen=f"{holder} calls it {holder.device}; {me} calls it {me.device}.",
        hint=me.hint,
        ranks=pair,
    )


def _settle(board: Board, me: Member, world_size: int, seconds: float) -> _Verdict:
    """Name who is missing; one rank counts, the others read what it wrote."""
    if board.claim("settling", me) == me:
        missing = tuple(r for r in range(world_size) if not board.has(f"rank/{r}"))
        if missing:
            return board.claim("verdict", _missing(board, missing, world_size, seconds))
        halted = _halted(board, world_size)
        if halted:
            return board.claim("verdict", halted)
    late = board.wait("verdict", _Verdict, min(seconds, _SETTLE_SECONDS))
    if late is not None:
        return late
    return _Verdict(
        happened=f"the roll call of {world_size} ranks took more than {seconds:g} s.",
        hint="See what the other ranks say.",
        absent=world_size - 1,
    )


def _halted(board: Board, world_size: int) -> _Verdict | None:
    """Name a rank that claimed its device and died or was stopped before it counted."""
    for rank in range(world_size):
        member = board.wait(f"rank/{rank}", Member, 1.0)
        if member is not None and is_halted(member.pid, member.pid_space):
            return _Verdict(
                happened=f"{member}, on {member.device}, failed first: "
                f"{state_of(member.pid, member.pid_space)}, during the roll call.",
                hint="See what it said last.",
                ranks=(rank,),
                absent=1,
            )
    return None


def _missing(
    board: Board, missing: tuple[int, ...], world_size: int, seconds: float
) -> _Verdict:
    key = f"stranger/{missing[0]}"
    stranger = board.wait(key, Stranger, 1.0) if board.has(key) else None
    named = ", ".join(map(str, missing[:_MOST_NAMED]))
    more = f" and {len(missing) - _MOST_NAMED} more" * (len(missing) > _MOST_NAMED)
    return _Verdict(
        happened=f"rank{'s'[: len(missing) > 1]} {named}{more} of {world_size} did not "
        f"come within {seconds:g} s.",
        seen=f"{world_size - len(missing)} of {world_size} ranks are there."
        + (f" One came and left as another job's. {stranger.seen}" if stranger else ""),
        hint="If it is of this job after all, set GPUMAP_JOB_ID alike on all ranks."
        if stranger
        else "See whether these processes were started, and what they say. "
        "start_timeout=… gives slow ones more time.",
        ranks=missing,
        absent=len(missing),
    )


def _let_others_hear(
    board: Board, others: int, seconds: float, *, hosted: bool
) -> None:
    if hosted:
        board.wait_for_count("heard", others, min(max(seconds, 1.0), _STAY_SECONDS))
    else:
        board.count("heard")

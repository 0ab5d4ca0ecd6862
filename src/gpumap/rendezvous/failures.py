"""The ways in which a session fails, each with the text that every rank gets."""

import time
from collections.abc import Sequence

from gpumap.errors import GpumapError
from gpumap.mapping.base import FrozenModel
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.messages import described
from gpumap.rendezvous.procfs import pid_space
from gpumap.time_limits import PROCESS_GOES

__all__ = [
    "Answer",
    "Fault",
    "gone",
    "host_lost",
    "late",
    "missing_at_end",
    "own",
    "too_long",
    "uneven",
    "unheard",
]

_EVENLY = (
    "Every rank must make the same number of steps: deal the data out evenly "
    "(DistributedSampler, drop_last=True), or train inside `with m.join():`."
)
_SLOW = "See what it did meanwhile; timeout=… gives a slow rank more time."
_MOST_NAMED = 3


class Answer(FrozenModel):
    """What a rank is doing.

    Attributes:
        made: How many collectives of the whole group the rank has begun; None if that
            was not recorded.
        stands_in: The collective that the rank has begun and not finished.
        number: That collective's number, from 1.
        ended: Whether the rank's body has ended.
        main_thread: Where the rank's main thread is.
    """

    made: int | None = None
    stands_in: str | None = None
    number: int = 0
    ended: bool = False
    main_thread: str = ""


class Fault(FrozenModel):
    """What ended the session: the first failure.

    Attributes:
        text: Which rank failed, and how; no full stop.
        hint: What to do about it, where that is known.
        ranks: The ranks that failed.
    """

    text: str
    hint: str = ""
    ranks: tuple[int, ...] = ()


def own(me: Member, error: BaseException) -> Fault:
    """Return the fault of this rank, whose own body raised an error."""
    told = (
        f"{type(error).__name__}: {error.happened}"
        if isinstance(error, GpumapError)
        else described(error)
    )
    if type(error) is SystemExit:
        code = told.removeprefix("SystemExit").removeprefix(": ")
        return Fault(
            text=f"{me}, on {me.device}, left its block by sys.exit({code})",
            hint="Leave it on all ranks alike, and exit after the block.",
            ranks=(me.rank,),
        )
    text = f"{me}, on {me.device}, failed first: {' '.join(told.split()).rstrip('.')}"
    return Fault(text=text, ranks=(me.rank,))


def gone(member: Member) -> Fault:
    """Return the fault of a rank whose process has ended, or has been stopped."""
    text = f"{member}, on {member.device}, failed first: {member.state}"
    hint = (
        "SIGKILL is mostly the system's, out of memory: see the kernel's log. "
        "SIGSEGV and SIGABRT come from a library."
    )
    return Fault(text=text, hint=hint, ranks=(member.rank,))


def host_lost(host: Member | None, keeper: str) -> Fault:
    """Return the fault of a store that does not answer."""
    if host is None:
        return Fault(text=f"{keeper} does not answer", hint="See what it says.")
    _let_it_go(host)
    answers = "and" if host.is_gone else "and does not answer:"
    return Fault(
        text=f"{host}, on {host.device}, hosts the store, {answers} {host.state}",
        hint="It failed, or it left because another rank did not come in time: see "
        "what it said last.",
        ranks=(host.rank,),
    )


def _let_it_go(member: Member) -> None:
    """Wait a moment for the end of a process that is ending."""
    deadline = time.monotonic() + PROCESS_GOES
    while (
        member.pid_space == pid_space()
        and not member.is_halted
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)


def uneven(ended: Member, theirs: Answer, stuck: Member, mine: Answer) -> Fault:
    """Return the fault of a rank in a collective that an ended rank will not join."""
    return Fault(
        text=f"{ended}, on {ended.device}, had come to its end after "
        f"{theirs.made or 0} collectives, while {stuck}, on {stuck.device}, stood in "
        f"{mine.stands_in or 'a collective'}, its "
        f"{ordinal(mine.number or mine.made or 0)}",
        hint=_EVENLY,
        ranks=(ended.rank, stuck.rank),
    )


def unheard(members: Sequence[Member]) -> Fault:
    """Return the fault of ranks that did not answer when they were asked."""
    return Fault(
        text=_listed(
            [f"{m}, on {m.device}, was not heard of: {m.state}" for m in members]
        ),
        hint=_SLOW,
        ranks=tuple(member.rank for member in members),
    )


def missing_at_end(
    members: Sequence[tuple[Member, Answer]], waiter: Member, seconds: float
) -> Fault:
    """Return the fault of ranks that did not come to the end of the session in time."""
    return Fault(
        text=_listed(
            [f"{m}, on {m.device}, {_does(m, answer)}" for m, answer in members]
        )
        + f", and did not come to the end of the session within {seconds:g} s after "
        f"{waiter}",
        hint="See what they say; end_timeout=… gives them more time.",
        ranks=tuple(member.rank for member, _ in members),
    )


def late(
    members: Sequence[tuple[Member, Answer]], waiter: Member, mine: Answer
) -> Fault:
    """Return the fault of ranks that did not come to a collective in time."""
    made = mine.made or 0
    return Fault(
        text=_listed(
            [
                f"{m}, on {m.device}, {_does(m, answer)}, after {answer.made or 0} "
                "collectives"
                for m, answer in members
            ]
        )
        + f", while {waiter} waited for it in its {ordinal(made)}",
        hint=_SLOW,
        ranks=tuple(member.rank for member, _ in members),
    )


def too_long(me: Member, mine: Answer) -> Fault:
    """Return the fault of a rank that waited too long, although none is behind it."""
    where = "the start of the process group"
    if mine.stands_in is not None:
        where = f"{mine.stands_in}, its {ordinal(mine.number)}"
    return Fault(
        text=f"{me}, on {me.device}, stood in {where}, for longer than its time-out, "
        "and no rank is behind it",
        hint="Ranks may have called different collectives, or cannot reach each other. "
        + _SLOW,
        ranks=(me.rank,),
    )


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, 11th and so on."""
    teen = number % 100 in (11, 12, 13)
    ending = "th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _does(member: Member, answer: Answer) -> str:
    """Say what a rank is doing, by its own answer if there is one."""
    return f"is {answer.main_thread}" if answer.main_thread else member.state


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    shown = list(texts[:_MOST_NAMED]) + ([f"and {more} more"] if more > 0 else [])
    return "; ".join(shown)

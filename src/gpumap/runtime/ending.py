"""How ranks part: together when all went well, else told which one failed first."""

import logging

from gpumap.errors import RollCallError, SessionError
from gpumap.mapping.values import Value
from gpumap.runtime.board import Board, StoreLostError, described
from gpumap.runtime.rollcall import Member

__all__ = ["Fault", "explain", "part", "stay_for_others"]

log = logging.getLogger("gpumap")

# How long the host of the store stays for ranks that have yet to read from it.
_STAY_SECONDS = 10.0


class Fault(Value):
    """Which rank failed first, and how."""

    member: Member
    error: str

    def __str__(self) -> str:
        """Return rank, process, host, device and error."""
        return f"{self.member}, on {self.member.device}, failed first: {self.error}"


class _End(Value):
    """How the session ended for all: without a fault, or with one."""

    fault: Fault | None = None


def part(board: Board, me: Member, world_size: int, seconds: float) -> None:
    """Return once every rank has come to the end of its session.

    Raises:
        SessionError: Another rank failed, or did not come within the seconds.
    """
    try:
        board.write(f"ended/{me.rank}", me)
        if board.count("ended") == world_size:
            board.claim("end", _End())
        end = board.wait("end", _End, seconds)
        missing = end is None and [
            rank for rank in range(world_size) if not board.has(f"ended/{rank}")
        ]
    except StoreLostError as error:
        raise SessionError(
            "rank 0, which hosts the store, went before the other ranks had ended.",
            f"{error}.",
            "See what rank 0 says.",
        ) from None
    if missing:
        raise SessionError(
            f"ranks {', '.join(map(str, missing))} did not come to the end of the "
            f"session within {seconds:g} s.",
            f"rank {me.rank} has ended and waited for them.",
            "See what they say; timeout=… gives them more time.",
        )
    if end is not None and end.fault is not None:
        raise SessionError(
            "another rank failed while this one had already come to its end.",
            f"{end.fault}.",
            "Correct that rank's error; this one had none.",
        )


def explain(error: BaseException, board: Board, me: Member, world_size: int) -> None:
    """Note on an error where it was raised, and which rank failed first.

    The other ranks learn of it before the group is abandoned, so that they can tell
    why their connection closed.
    """
    error.add_note(f"gpumap: raised on {me} of {world_size}, {me.device}")
    text = described(error)
    try:
        first = board.claim("fault", Fault(member=me, error=text))
        board.claim("end", _End(fault=first))
    except (StoreLostError, RollCallError) as failure:
        error.add_note(f"gpumap: rank 0's store does not answer: {failure}")
        return
    known = isinstance(error, SessionError) and str(first) in str(error)
    if first.member != me and not known:
        error.add_note(f"gpumap: {first}")


def stay_for_others(
    board: Board, me: Member, world_size: int, seconds: float, *, hosted: bool
) -> list[str]:
    """Leave the store; its host stays for a while until the others have left.

    Returns which ranks did not leave meanwhile.
    """
    try:
        board.write(f"left/{me.rank}", me)
        if board.count("left") == world_size:
            board.write("all left", _End())
        stay = min(seconds, _STAY_SECONDS)
        if not hosted or board.wait("all left", _End, stay) is not None:
            return []
        return [
            _name(board, rank)
            for rank in range(world_size)
            if not board.has(f"left/{rank}")
        ]
    except (StoreLostError, RollCallError) as failure:
        log.debug(
            "the store was gone, or written to, before this rank left: %s", failure
        )
        return []


def _name(board: Board, rank: int) -> str:
    """Return a rank as it introduced itself at the roll call."""
    return str(board.wait(f"rank/{rank}", Member, 1.0) or f"rank {rank}")

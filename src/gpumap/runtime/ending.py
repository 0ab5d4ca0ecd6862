"""How ranks part: together when all went well, else told which one failed first."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from gpumap.errors import RollCallError, SessionError
from gpumap.mapping.values import Value
from gpumap.runtime.board import Board, StoreLostError, described
from gpumap.runtime.rollcall import Member
from gpumap.runtime.witness import is_gone, is_halted, state_of

__all__ = ["Ending", "Fault"]

log = logging.getLogger("gpumap")

# How long the host of the store stays for ranks that have yet to read from it.
_STAY_SECONDS = 10.0
# How long a rank that failed waits to learn which others say nothing.
_SILENCE_SECONDS = 3.0
# How often a rank that waits looks whether its neighbours' processes are still there.
_LOOK_SECONDS = 1.0
_MOST_NAMED = 20


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


class _Silent(Value):
    """The ranks that said nothing after another had failed."""

    members: tuple[Member, ...]


@dataclass
class Ending:
    """One rank's way out of a session.

    Attributes:
        board: Where the ranks of the session write.
        me: This rank.
        world_size: How many there are.
        neighbours: The ranks of this node, as far as they are known.
        seconds: How long the others may take to come to the end.
        hosted: Whether this process hosts the store, and must leave last.
        keeper: Who hosts it, in words.
        host: The rank that hosts it, where a rank does.
    """

    board: Board
    me: Member
    world_size: int
    neighbours: Sequence[int]
    seconds: float
    hosted: bool
    keeper: str
    host: Member | None
    _heard: bool = field(default=False, init=False)
    _named: tuple[Member, ...] = field(default=(), init=False)

    def part(self) -> None:
        """Return once every rank has come to the end of its session.

        Raises:
            SessionError: Another rank failed, died, or did not come in time.
        """
        try:
            self.board.write(f"ended/{self.me.rank}", self.me)
            self._be_heard()
            if self.board.count("ended") == self.world_size:
                self.board.claim("end", _End())
            end = self._wait_for_end()
            missing = end is None and [
                rank
                for rank in range(self.world_size)
                if not self.board.has(f"ended/{rank}")
            ]
        except StoreLostError as error:
            raise SessionError(
                f"{self._lost()}, before the other ranks had ended.",
                f"{error}.",
                "See what it says.",
            ) from None
        if missing:
            raise SessionError(
                f"rank{'s'[: len(missing) > 1]} {', '.join(map(str, missing))} did not "
                f"come to the end of the session within {self.seconds:g} s.",
                f"rank {self.me.rank} has ended and waited for them.",
                "See what they say; timeout=… gives them more time.",
            )
        if end is not None and end.fault is not None:
            raise SessionError(
                "another rank failed while this one had already come to its end.",
                f"{end.fault}.",
                "Correct that rank's error; this one had none.",
            )

    def explain(self, error: BaseException) -> None:
        """Note on an error where it was raised, and which rank failed first.

        The other ranks learn of it before the group is abandoned, so that they can tell
        why their connection closed.
        """
        error.add_note(
            f"gpumap: raised on {self.me} of {self.world_size}, {self.me.device}"
        )
        try:
            own = Fault(member=self.me, error=described(error))
            first = self.board.claim("fault", own)
            self.board.claim("end", _End(fault=first))
            self._be_heard()
        except (StoreLostError, RollCallError) as failure:
            if self._lost() not in str(error):
                error.add_note(f"gpumap: {self._lost()}: {failure}")
            return
        known = isinstance(error, SessionError) and str(first) in str(error)
        if first.member != self.me and not known:
            error.add_note(f"gpumap: {first}")

    def name_the_silent(self, error: BaseException) -> None:
        """Note which ranks say nothing: one that was killed cannot say it failed."""
        try:
            silent = self._named = self._silent()
        except (StoreLostError, RollCallError) as failure:
            log.debug("the store was gone before the silent were named: %s", failure)
            return
        gone = [m for m in silent if is_gone(m.pid, m.pid_space)]
        for member in gone or silent:
            if str(member) in str(error):
                continue
            error.add_note(
                f"gpumap: {member}, on {member.device}, "
                f"{'failed first' if gone else 'was not heard of'}: "
                f"{state_of(member.pid, member.pid_space)}"
            )

    def stay_for_others(self) -> None:
        """Leave the store; its host stays for a while until the others have left."""
        try:
            self.board.count("left")
            if self.hosted:
                others = self.world_size - len(self._named)
                self.board.wait_for_count(
                    "left", others, min(self.seconds, _STAY_SECONDS)
                )
        except StoreLostError as failure:
            log.debug("the store was gone before this rank left: %s", failure)

    def _lost(self) -> str:
        """Say what is known of a store that does not answer."""
        host = self.host
        if host is None:
            return f"{self.keeper} does not answer"
        halted = is_halted(host.pid, host.pid_space)
        return (
            f"{host}, on {host.device}, hosts the store and "
            f"{'failed first' if halted else 'does not answer'}: "
            f"{state_of(host.pid, host.pid_space)}"
        )

    def _be_heard(self) -> None:
        """Count as a rank that has said how it ended, once."""
        if not self._heard:
            self._heard = True
            self.board.write(f"heard/{self.me.rank}", self.me)
            if self.board.count("parted") == self.world_size:
                self.board.claim("silent", _Silent(members=()))

    def _wait_for_end(self) -> _End | None:
        """Wait for the end, unless a neighbour's process is gone before it came."""
        deadline = time.monotonic() + self.seconds
        while True:
            left = deadline - time.monotonic()
            end = self.board.wait("end", _End, min(left, _LOOK_SECONDS))
            if end is not None or left <= _LOOK_SECONDS:
                return end
            for rank in self.neighbours:
                if not self._is_heard(rank) and (member := self._gone(rank)):
                    raise SessionError(
                        f"{member}, on {member.device}, failed first: its process is "
                        "gone, and did not come to the end of its session.",
                        f"rank {self.me.rank} has ended and waited for it.",
                        "SIGKILL is mostly the system's, out of memory: see the "
                        "kernel's log.",
                    )

    def _silent(self) -> tuple[Member, ...]:
        """Return who has said nothing within a few seconds; one rank finds it out."""
        known = self._wait_for_silent()
        if known is None and self.board.claim("naming", self.me) == self.me:
            unheard = (r for r in range(self.world_size) if not self._is_heard(r))
            members = map(self._member, islice(unheard, _MOST_NAMED))
            found = _Silent(members=tuple(m for m in members if m is not None))
            known = self.board.claim("silent", found)
        elif known is None:
            known = self.board.wait("silent", _Silent, _SILENCE_SECONDS)
        return () if known is None else known.members

    def _wait_for_silent(self) -> _Silent | None:
        """Wait for all to be heard, or a while, or until no more can be."""
        deadline = time.monotonic() + min(self.seconds, _SILENCE_SECONDS)
        while True:
            left = deadline - time.monotonic()
            known = self.board.wait("silent", _Silent, min(left, _LOOK_SECONDS / 2))
            if known is not None or left <= 0:
                return known
            if len(self.neighbours) == self.world_size and all(
                self._is_heard(rank) or self._gone(rank) for rank in self.neighbours
            ):
                return None

    def _is_heard(self, rank: int) -> bool:
        return self.board.has(f"heard/{rank}")

    def _gone(self, rank: int) -> Member | None:
        """Return a rank whose process has ended; None where it has not, or may not."""
        member = self._member(rank)
        if member is not None and is_gone(member.pid, member.pid_space):
            return member
        return None

    def _member(self, rank: int) -> Member | None:
        return self.board.wait(f"rank/{rank}", Member, _LOOK_SECONDS)

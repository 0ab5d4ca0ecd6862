"""What a rank needs of the place where the ranks of a job meet."""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import closing
from typing import NoReturn, Protocol

from gpumap.errors import GpumapError, RollCallError
from gpumap.mapping.launch import Launch
from gpumap.notes import note
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.messages import described
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.procfs import pid_space
from gpumap.rendezvous.roll_call import withdraw
from gpumap.time_limits import TELL_THE_OTHERS

__all__ = ["Meeting", "NoMeeting", "node_of", "tell_the_others", "unplaced"]

log = logging.getLogger(__name__)


class Meeting(Protocol):
    """Where the ranks of one job meet; opened once, when it is first needed.

    Attributes:
        keeper: Who hosts the store, as text, once it is open.
        is_open: Whether this rank has come there already.
    """

    @property
    def keeper(self) -> str: ...  # noqa: D102 - as above
    @property
    def is_open(self) -> bool: ...  # noqa: D102 - as above

    def peers(self, me: Member, seconds: float) -> Peers:
        """Return all ranks, on a new connection."""
        ...


class NoMeeting:
    """What there is instead of a meeting where a rank is to meet nobody."""

    keeper, is_open = "nobody", False

    def __init__(self, refusal: Callable[[int], GpumapError]) -> None:
        """Refusal returns the error for a rank that would have to meet others."""
        self._refusal = refusal

    def peers(self, me: Member, seconds: float) -> NoReturn:  # noqa: ARG002 - as Meeting
        """Refuse to meet others.

        Raises:
            GpumapError: Always.
        """
        raise self._refusal(me.rank)


def node_of(launch: Launch) -> int | None:
    """Return this node's rank, if it is certain."""
    return 0 if launch.one_node else launch.node_rank


def unplaced(launch: Launch) -> Member:
    """Return this process as it tells the others of itself before it has a device."""
    return Member(
        rank=launch.rank,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        device="",
        pid_space=pid_space(),
    )


def tell_the_others(
    launch: Launch, error: BaseException, meeting: Meeting, seconds: float
) -> None:
    """Tell the other ranks that this one cannot start; a failure to is a note.

    A rank that is interrupted tells those only that may wait for its decision.
    """
    interrupted = not isinstance(error, Exception)
    if launch.world_size == 1 or (interrupted and not meeting.is_open):
        return
    if not isinstance(error, RollCallError):
        # The whole error is raised once the other ranks know.
        happened = described(error).partition("\n")[0]
        log.error(
            "rank %d cannot start, and tells the others: %s", launch.rank, happened
        )
    seconds = min(seconds, TELL_THE_OTHERS)
    try:
        peers = meeting.peers(unplaced(launch), seconds)
        with closing(peers.store):
            withdraw(peers, error, seconds)
    except Exception as failure:  # noqa: BLE001 - the error itself is what matters
        note(error, f"gpumap: the other ranks could not be told: {described(failure)}")

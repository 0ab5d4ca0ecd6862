"""Where the ranks of one job meet before their scripts start, without torch."""

from collections.abc import Mapping
from contextlib import closing
from typing import Self

from gpumap.errors import RollCallError
from gpumap.mapping.launch import Launch
from gpumap.rendezvous import keys
from gpumap.rendezvous.meeting_place import MeetingPlace, find_place, restart_of, sign
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.peers import Peers, neighbours_of
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.store_client import Client, StoreLostError
from gpumap.rendezvous.store_server import StoreServer
from gpumap.time_limits import ANY_ANSWER, HOST_STAYS, LEAVE_FOR_SCRIPTS

__all__ = ["Gathering"]


class Gathering:
    """Where the ranks of one job meet before their scripts start.

    Rank 0 hosts a store for as long as the ranks are together, unless torchrun has one.
    """

    def __init__(self, launch: Launch, environ: Mapping[str, str]) -> None:
        """Prepare; nothing is opened yet."""
        self._launch = launch
        self._environ = environ
        self._place: MeetingPlace | None = None
        self._server: StoreServer | None = None
        self._prefix = ""

    def __enter__(self) -> Self:
        """Return the gathering."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close what is open; the others have a moment to read why."""
        self._close(HOST_STAYS)

    @property
    def is_open(self) -> bool:
        """Whether this rank has come there already."""
        return self._place is not None

    @property
    def keeper(self) -> str:
        """Who hosts the store, as text, once it is open."""
        return "the store" if self._place is None else self._place.keeper

    def peers(self, me: Member, seconds: float) -> Peers:
        """Return all ranks, on a new connection; the first one opens the gathering.

        seconds: how long to wait for rank 0, and the store may take for each answer.

        Raises:
            LaunchError: The master address or port is missing, or is not this host's.
            RollCallError: Rank 0 does not answer in time, or another job does.
            SessionError: Another program has the port.
            StoreLostError: The store does not answer any more.
        """
        place = self._place or self._opened(seconds)
        return Peers(
            store=SessionStore(_connected(place, seconds), self._prefix),
            me=me,
            world_size=self._launch.world_size,
            host=place.host,
            here=neighbours_of(self._launch),
        )

    def disperse(self, peers: Peers, seconds: float) -> None:
        """Close the gathering, on every rank, after a good roll call.

        When this returns on any rank, nothing of gpumap's listens at the address. peers
        is the last connection of this rank, and is closed.

        Raises:
            RollCallError: Rank 0 was lost, or has not closed the store in time.
        """
        with closing(peers.store):
            try:
                self._close_door(peers, seconds)
            except StoreLostError as error:
                raise error.of(self.keeper, "after the roll call") from None
        # The clients have closed first: the port is not kept by what is left of them.
        self._close(LEAVE_FOR_SCRIPTS)

    def _opened(self, seconds: float) -> MeetingPlace:
        restart = restart_of(self._environ)
        root = f"gpumap/run/{restart}"
        place = find_place(self._launch, seconds, self._environ, f"{root}/1")
        if place.listener is not None:
            self._server = StoreServer(place.listener)
            sign(self._launch, place.address, seconds)
        number = 1
        if place.host is None:
            # A shell may gather several times under one torchrun, on one store.
            with closing(SessionStore(_connected(place, seconds), root)) as store:
                number = store.count(keys.gathered(self._launch.rank))
        self._prefix = f"{root}/{number}"
        self._place = place
        return place

    def _close_door(self, peers: Peers, seconds: float) -> None:
        if self._server is not None:
            self._server.close_door()
            peers.store.write(keys.DOOR, peers.me)
            return
        closed = peers.host is None or peers.store.comes(keys.DOOR, seconds)
        if not closed:
            raise RollCallError(
                f"{self.keeper} did not close it within {seconds:g} s.",
                "All ranks came, and its port is not free for their scripts yet.",
                "See what it says: it may be stopped.",
                (0,),
            )

    def _close(self, seconds: float) -> None:
        """End this process's store once the others have left, within these seconds."""
        if self._server is not None:
            self._server.wait_until_left(seconds)
            self._server.close()
            self._server = None


def _connected(place: MeetingPlace, seconds: float) -> Client:
    try:
        return Client(*place.address, min(seconds, ANY_ANSWER))
    except OSError as error:
        raise StoreLostError(str(error)) from None

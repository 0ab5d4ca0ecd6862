"""Where the ranks of one session meet: on the store that torch will use."""

from gpumap.mapping.launch import Launch
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.peers import Peers, neighbours_of
from gpumap.rendezvous.rendezvous import Rendezvous, meet, meet_in_group
from gpumap.runtime.session_options import SessionOptions

__all__ = ["SessionMeeting", "peers_of"]


class SessionMeeting:
    """Where the ranks of one session meet; opened once, when it is first needed."""

    def __init__(
        self, options: SessionOptions, launch: Launch, *, adopted: bool
    ) -> None:
        """Prepare; adopted: a process group exists already, whose store is used."""
        self._options = options
        self._launch = launch
        self._adopted = adopted
        self._rendezvous: Rendezvous | None = None

    @property
    def is_open(self) -> bool:
        """Whether this rank has come there already."""
        return self._rendezvous is not None

    @property
    def keeper(self) -> str:
        """Who hosts the store, as text, once it is open."""
        return "the store" if self._rendezvous is None else self._rendezvous.keeper

    def opened(self, seconds: float) -> Rendezvous:
        """Return the session's part of the store, within so many seconds."""
        if self._rendezvous is None:
            self._rendezvous = (
                meet_in_group()
                if self._adopted
                else meet(self._launch, seconds, self._options.environ)
            )
        return self._rendezvous

    def peers(self, me: Member, seconds: float) -> Peers:
        """Return all ranks, on a new connection."""
        return peers_of(self.opened(seconds), self._launch, me, seconds)


def peers_of(
    rendezvous: Rendezvous, launch: Launch, me: Member, patience: float
) -> Peers:
    """Return all ranks, on a new connection, as Rendezvous.connect opens it."""
    return Peers(
        store=rendezvous.connect(patience),
        me=me,
        world_size=launch.world_size,
        host=rendezvous.host,
        here=neighbours_of(launch),
    )

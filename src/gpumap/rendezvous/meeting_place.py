"""Where the ranks of one job meet over TCP: who hosts the store, and for which job."""

import socket
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass

from gpumap.errors import RollCallError
from gpumap.mapping.launch import Launch, store_address
from gpumap.rendezvous import keys
from gpumap.rendezvous.fingerprint import Fingerprint, fingerprint_of, mismatch
from gpumap.rendezvous.members import Stranger
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.store_client import Client, StoreLostError
from gpumap.rendezvous.tcp import connect, foreign, listen
from gpumap.time_limits import ANY_ANSWER, OWNER_IS_KNOWN

__all__ = ["MeetingPlace", "find_place", "restart_of", "sign"]

# A store may be that of a script which has ended here and not yet on rank 0; when it
# goes, waiting goes on for rank 0's next one.
_STORES = 2
_NAME_THE_JOB = (
    "Give each job its own MASTER_PORT. If this is one job, set GPUMAP_JOB_ID to the "
    "same name on all of its ranks."
)


@dataclass(frozen=True)
class MeetingPlace:
    """The address of a store, and who hosts it.

    Attributes:
        address: Its host and port.
        keeper: Who hosts it, as text.
        host: The rank that does; None if none does.
        listener: A socket that listens there, if this process is to host it.
    """

    address: tuple[str, int]
    keeper: str
    host: int | None = None
    listener: socket.socket | None = None


def find_place(
    launch: Launch, seconds: float, environ: Mapping[str, str], prefix: str
) -> MeetingPlace:
    """Return where the ranks of a job meet, once it is known to be of this job.

    On one machine rank 0 listens on the loopback address only; on several, on the
    master address only; under torchrun its agent listens. Rank 0 is to host the store
    and then to sign it.

    prefix: that of the job's first keys, for a note if the store is another job's.

    Raises:
        LaunchError: The master address or port is missing, or is not this host's.
        RollCallError: Rank 0 does not answer in time, or another job does.
        SessionError: Another program has the port.
    """
    host, port = store_address(launch)
    tells = launch.local_rank in (0, None) or launch.rank == 1
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        address = (launch.master_addr or host, port)
        connect(*address, seconds, tells=tells).close()
        return MeetingPlace(address, _hosting(launch.launcher))
    listener = listen(host, port, launch) if launch.rank == 0 else None
    if listener is not None:
        return MeetingPlace((host, port), "this process", 0, listener)
    deadline = time.monotonic() + seconds
    for _ in range(_STORES if launch.rank else 1):
        left = max(deadline - time.monotonic(), 0.0)
        with suppress(StoreLostError):
            owner = _owner(launch, host, port, left, prefix, tells=tells)
            return MeetingPlace((host, port), _hosting(owner), 0)
    raise foreign(host, port)


def sign(launch: Launch, address: tuple[str, int], seconds: float) -> None:
    """Write to the store that this process hosts which job it is for."""
    with closing(Client(*address, min(seconds, ANY_ANSWER))) as client:
        SessionStore(client, "gpumap").write("owner", fingerprint_of(launch))


def restart_of(environ: Mapping[str, str]) -> str:
    """Return how often torchrun has restarted the ranks; its store outlives them."""
    return environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _hosting(who: object) -> str:
    return f"{who}, which hosts the store,"


def _owner(
    launch: Launch, host: str, port: int, seconds: float, prefix: str, *, tells: bool
) -> Fingerprint:
    """Return the fingerprint of the store's host; refuse one of another job.

    Raises StoreLostError if the store goes before it is known whose it is.
    """
    with closing(connect(host, port, seconds, tells=tells)) as client:
        try:
            owner = SessionStore(client, "gpumap").wait(
                "owner", Fingerprint, min(seconds, OWNER_IS_KNOWN)
            )
        except RollCallError:
            owner = None
        if owner is None:
            raise foreign(host, port)
        mine = fingerprint_of(launch)
        unlike = mismatch(owner, mine)
        if unlike is None:
            return owner
        seen = f"There is {owner}, here is {mine}; {unlike}."
        # If the owner waits for this rank in vain, its error can then say why.
        SessionStore(client, prefix).claim(
            keys.stranger(mine.rank), Stranger(seen=seen)
        )
        raise RollCallError(
            f"another job answers at {host}:{port}.", seen, _NAME_THE_JOB, (mine.rank,)
        )

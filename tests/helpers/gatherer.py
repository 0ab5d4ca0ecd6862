"""One rank that gathers with the others, and then is a script that uses the port."""

import os
import socket
import sys
import time
from contextlib import closing

from gpumap.detect.launchers import detect_launch
from gpumap.errors import GpumapError
from gpumap.mapping.launch import Launch
from gpumap.rendezvous.gathering import Gathering
from gpumap.rendezvous.members import Member, Terms
from gpumap.rendezvous.procfs import pid_space
from gpumap.rendezvous.roll_call import roll_call, withdraw
from gpumap.rendezvous.store_client import StoreLostError


def main() -> None:
    """Gather as often as asked: with the case "hang" go no further than the roll call.

    With "fail" the last rank withdraws; with "leave" nobody disperses.
    """
    case, times = sys.argv[1], int(sys.argv[2])
    launch = detect_launch(os.environ)
    seconds = float(os.environ.get("START_TIMEOUT", "40"))
    try:
        for _ in range(times):
            _gather(case, launch, seconds)
    except (GpumapError, StoreLostError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(1)
    finally:
        print("torch" if "torch" in sys.modules else "no torch", flush=True)


def _gather(case: str, launch: Launch, seconds: float) -> None:
    last = launch.rank == launch.world_size - 1
    me = Member(
        rank=launch.rank,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        device=f"cuda:{launch.rank}",
        pid_space=pid_space(),
    )
    with Gathering(launch, os.environ) as gathering:
        peers = gathering.peers(me, seconds)
        if case == "fail" and last:
            error = ValueError("no such device")
            with closing(peers.store):
                withdraw(peers, error, seconds)
            print("withdrawn", flush=True)
            return
        try:
            roll_call(peers, _terms(launch), seconds)
        except BaseException:
            peers.store.close()
            raise
        print(f"rank {launch.rank} met {launch.world_size - 1}", flush=True)
        if case == "hang" and launch.rank == 0:
            time.sleep(60)
        if case == "leave":
            peers.store.close()
            return
        gathering.disperse(peers, seconds)
    _script(launch)


def _terms(launch: Launch) -> Terms:
    return Terms(
        world_size=launch.world_size,
        kind="cuda",
        on_cpu_as_asked=False,
        rehearsal=True,
        backend="nccl",
        strategy="local_rank",
    )


def _script(launch: Launch) -> None:
    """Use the port as a script would that knows nothing of sockets' options."""
    if launch.master_port is None or "TORCHELASTIC_USE_AGENT_STORE" in os.environ:
        return  # the port is torchrun's
    address = ("127.0.0.1", launch.master_port)
    if launch.rank > 0:
        _connected(address)
        return
    with socket.socket() as listener:
        listener.bind(address)
        listener.listen()
        others = [listener.accept()[0] for _ in range(launch.world_size - 1)]
    for other in others:
        other.sendall(b"the port is the script's")
    for other in others:
        with other:
            other.recv(1)  # it closes first


def _connected(address: tuple[str, int]) -> None:
    deadline = time.monotonic() + 20
    while True:
        with socket.socket() as connection:
            connection.settimeout(20)
            try:
                connection.connect(address)
                said = connection.recv(100)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
                continue
        print(said.decode(), flush=True)
        return


if __name__ == "__main__":
    main()

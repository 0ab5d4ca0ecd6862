"""A rank's variables before another program takes its process."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib import import_module

from gpumap.detect.before_run import before_run
from gpumap.detect.launchers import detect_launch
from gpumap.detect.without_torch import node_without_torch
from gpumap.errors import SessionError
from gpumap.mapping.devices import Device
from gpumap.mapping.environment import environment
from gpumap.mapping.launch import Launch, store_address
from gpumap.rendezvous.gathering import Gathering
from gpumap.rendezvous.model_digest import Likeness
from gpumap.rendezvous.nodes import numbered
from gpumap.rendezvous.procfs import host_name
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.runtime.deciding import decision_for
from gpumap.runtime.meeting import Meeting, NoMeeting, tell_the_others
from gpumap.runtime.own_member import member_of
from gpumap.runtime.placed import Placed, place_rank, usual_backend
from gpumap.runtime.roll import call_the_roll, seconds_left
from gpumap.runtime.session_options import SessionOptions
from gpumap.time_limits import VERDICT_IS_WRITTEN

__all__ = ["Prepared", "Rank"]


@dataclass(frozen=True)
class Prepared:
    """A rank whose device is decided, and on which all ranks agree.

    Attributes:
        placed: The rank and its device.
        variables: What a program needs to find both.
    """

    placed: Placed
    variables: dict[str, str]


@dataclass(frozen=True)
class Rank:
    """This process, before it becomes another program.

    Attributes:
        options: What a session would be asked for.
        own: Whether its device alone is left visible.
        meets: Whether the ranks meet and compare.
        held: Keeps what is claimed until the program takes over.
    """

    options: SessionOptions
    own: bool
    meets: bool
    held: ExitStack

    def prepared(self, settle: Callable[[Placed], Mapping[str, str]]) -> Prepared:
        """Return the variables of this rank, once all ranks agree.

        settle is called before they do; it may refuse, and returns more variables. Once
        this returns, nothing of gpumap's listens any more, on whichever rank.

        Raises:
            GpumapError: What a session would raise; where the ranks meet, all raise it.
        """
        options = self.options
        options.check_types()
        launch = detect_launch(options.environ)
        if launch.world_size > 1:
            store_address(launch)  # without one, the others could not be told
        with ExitStack() as stack:
            gathering = Gathering(launch, options.environ)
            meeting = (
                stack.enter_context(gathering) if self.meets else NoMeeting(_unmet)
            )
            together = self.meets and launch.world_size > 1
            began = time.monotonic()
            try:
                placed = self._placed(launch, meeting)
                variables = self._variables(placed, placed.launch)
                more = settle(placed)
            except BaseException as error:
                if self.meets:
                    tell_the_others(launch, error, meeting, options.start_seconds)
                raise
            if together:
                seconds = seconds_left(options, placed, began)
                complete = self._agreed(placed, gathering, seconds)
                variables = self._variables(placed, complete)
        return Prepared(placed, {**variables, **more})

    def _placed(self, launch: Launch, meeting: Meeting) -> Placed:
        node = None
        if self.options.scores != "multiprocessors":  # which NVML does not tell
            node = node_without_torch(launch, self.options.environ)
        if node is None:
            _import_torch()
        options = replace(self.options, node=node)
        decide = decision_for(options, meeting, self.held, of_all=not self.own)
        return place_rank(options, launch, decide, usual_backend)

    def _variables(self, placed: Placed, launch: Launch) -> dict[str, str]:
        """Return what a program needs; a world of one gets an address of its own."""
        found = environment(
            placed.placement,
            launch,
            devices=_devices(placed),
            own=self.own,
            environ=before_run(self.options.environ),
        )
        if "MASTER_PORT" in found:
            return found
        return found | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}

    def _agreed(self, placed: Placed, meeting: Gathering, seconds: float) -> Launch:
        """Return this rank's launch, with the node's number, once all ranks agree."""
        launch = placed.launch
        try:
            peers = meeting.peers(member_of(placed, self.options), seconds)
            with closing(peers.store):
                call_the_roll(self.options, placed, peers, Likeness(), seconds)
                # All are there: what is left to say takes no time to speak of.
                soon = min(seconds, VERDICT_IS_WRITTEN)
                known = None not in (launch.node_rank, launch.num_nodes)
                if launch.local_rank is not None and not known:
                    place, count = numbered(peers, launch, host_name(), soon)
                    told = {"node_rank": place, "num_nodes": count}
                    launch = launch.model_copy(update=told)
                meeting.disperse(peers, soon)
        except StoreLostError as error:
            raise error.of(meeting.keeper, "during the roll call") from None
        return launch


def _unmet(rank: int) -> SessionError:
    """Return the error of a rank that is not to meet those that it decides with."""
    return SessionError(
        f"rank {rank} cannot know which devices the others of its node get.",
        "It was not to meet them, and what was asked for is decided by all.",
        "Leave --no-roll-call out.",
    )


def _devices(placed: Placed) -> Sequence[Device]:
    """Return the devices of this node's ranks, by local rank.

    They are those of the whole pool if it is not known how many ranks there are.
    """
    pool, launch = placed.pool, placed.launch
    if launch.local_world_size is None and not (pool.by_rank or launch.devices_bound):
        return pool.devices
    return pool.devices_here(launch)


def _import_torch() -> None:
    """Import torch for its view of the devices, and keep the CPUs of this process.

    Source: libgomp binds the thread that loads it as OMP_PROC_BIND says, and a program
    that is started by exec would inherit that.
    """
    cpus = os.sched_getaffinity(0)
    import_module("torch")
    os.sched_setaffinity(0, cpus)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])

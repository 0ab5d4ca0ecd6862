"""The pool of a node's ranks: worked out by each alone, or decided once for all."""

import logging
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from gpumap.detect.claims import (
    CLAIMS,
    Claims,
    claims_folder,
    held_before,
    holder_of,
    with_holders,
)
from gpumap.detect.cpus import allowed_cpus, bound_cpus, with_cpus
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.detect.tenants import with_tenants
from gpumap.errors import PlacementError
from gpumap.mapping.bound import refuse_unknown_neighbours
from gpumap.mapping.cpu_shares import CpuShare, shares_of_cpus, untold_cores
from gpumap.mapping.cpu_topology import CpuTopology
from gpumap.mapping.cpus import (
    cpu_list,
    cpus_beside,
    no_cpus,
    parse_cpu_list,
)
from gpumap.mapping.devices import CPU, Device, Node
from gpumap.mapping.identity import claimed_as, lasting_name, unclaimable
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Policy
from gpumap.mapping.pool import Pool
from gpumap.mapping.scores import number_of
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.node_decision import Decision, Facts, NodeRanks
from gpumap.rendezvous.procfs import host_name
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.runtime.meeting import Meeting, node_of, unplaced
from gpumap.runtime.placed import Decided
from gpumap.runtime.session_options import SessionOptions
from gpumap.words import one_line

__all__ = ["PoolDecision"]

log = logging.getLogger(__name__)

# One job at a time looks for free devices and claims them, for as long as that may take
# another: two that take the same rest by turns would both find too few.
_GATE, _OTHERS_LOOK, _PAUSE = "looking", 5.0, 0.01


class PoolDecision:
    """Decides which devices the ranks of this node get, by local rank 0 for all.

    A rank decides for itself if nobody else can see its devices, or if its launcher
    does not tell how many processes the node runs.
    """

    def __init__(
        self, options: SessionOptions, meeting: Meeting, held: ExitStack
    ) -> None:
        """Decide for a session; held keeps its claims until it ends."""
        self._options = options
        self._meeting = meeting
        self._held = held

    def of(self, policy: Policy, node: Node, launch: Launch) -> Decided:
        """Return what the ranks of this node go by; raise what Pool.of raises.

        Raises:
            LaunchError: bind is "exclusive", and the launcher does not say how many
                processes the node runs.
            RollCallError: A rank of this node did not come, or cannot start.
            PlacementError: A device is claimed already; or bind is "exclusive", and a
                rank has no CPU of its own.
        """
        if self._options.bind == "exclusive":
            refuse_unknown_neighbours(launch)
        node, mine = self._with_cpus(policy, node), self._facts(launch)
        alone = launch.world_size == 1 or launch.local_rank is None
        ranks = 1 if alone else launch.local_world_size or 1
        seen: Sequence[Member] = ()
        if ranks == 1 or launch.devices_bound:
            pool, decision = self._decide(policy, node, [mine])
        else:
            decision, seen = self._together(
                mine, ranks, lambda facts: self._decide(policy, node, facts)[1]
            )
            pool = Pool.dealt(policy, node, launch, decision.devices)
        if ranks > 1 and launch.devices_bound and self._options.bind:
            # Each has its own device and speed; the CPUs beside them are shared out.
            mine = mine.model_copy(update={"beside": decision.beside[0]})
            of_all, seen = self._together(mine, ranks, _all_beside)
            own = {"speeds": decision.speeds * ranks}
            decision = of_all.model_copy(update=own)
        place = launch.local_rank or 0 if seen else 0
        return Decided(
            pool,
            decision.speeds[place] if decision.speeds else None,
            self._share(pool.device_of(launch), node, mine, decision.beside, place),
            seen,
        )

    def _with_cpus(self, policy: Policy, node: Node) -> Node:
        """Return the node with its CPUs, if they are asked for and not described."""
        asked = self._options.bind is not None or policy.strategy == "closest"
        described = self._options.environ.get(REHEARSAL) or node.cpus is not None
        return with_cpus(node) if asked and not described else node

    def _facts(self, launch: Launch) -> Facts:
        rehearsed = self._options.environ.get(REHEARSAL)
        return Facts(
            member=unplaced(launch),
            launch=launch,
            bound=cpu_list(bound_cpus()),
            allowed=None if rehearsed else cpu_list(allowed_cpus()),
        )

    def _together(
        self,
        mine: Facts,
        ranks: int,
        decide: Callable[[Sequence[Facts]], Decision],
    ) -> tuple[Decision, Sequence[Member]]:
        launch, seconds = mine.launch, self._options.start_seconds
        certain = node_of(launch)
        try:
            peers = self._meeting.peers(mine.member, seconds)
            with closing(peers.store):
                here = NodeRanks(
                    peers=peers,
                    node=host_name() if certain is None else str(certain),
                    local_rank=launch.local_rank or 0,
                    local_world_size=ranks,
                    seconds=seconds,
                )
                return here.decide(mine, decide)
        except StoreLostError as error:
            raise error.of(self._meeting.keeper, "before the roll call") from None

    def _decide(
        self, policy: Policy, node: Node, facts: Sequence[Facts]
    ) -> tuple[Pool, Decision]:
        """Decide by what is seen now, and by what the node's ranks say."""
        options = self._options
        first = facts[0].launch
        if first.node_cpus is None:
            bound = tuple(parse_cpu_list(one.bound) for one in facts)
            first = first.model_copy(update={"node_cpus": bound})
        with ExitStack() as looking:
            claims = options.claims and node.devices
            folder = claims_folder(options.environ) if claims else None
            holder = held_before(options.environ) if claims else None
            if folder is not None:
                looking.enter_context(_turn(folder))
            if policy.strategy == "idle":
                ours = {one.member.pid for one in facts}
                node = _without(ours, with_tenants(node, options.environ))
                node = with_holders(node, options.environ)
                node = node if holder is None else _without({holder}, node)
            pool = Pool.of(policy, node, first)
            devices = [pool.device_of(one.launch) for one in facts]
            chosen = [d for d in dict.fromkeys(devices) if pool.devices]
            if log.isEnabledFor(logging.DEBUG):
                log.debug(
                    "gpumap.place(launch, node, strategy=%r, …) decides on %s by\n"
                    "launch=%s\nnode=%s",
                    policy.name,
                    ", ".join(map(str, devices)),
                    first.model_dump_json(),
                    node.model_dump_json(),
                )
            if folder is not None:
                self._claim(chosen, node, folder, holder)
        topology = node.cpus or CpuTopology()
        return pool, Decision(
            ranks=len(facts),
            devices=tuple(lasting_name(d, node) for d in devices if pool.devices),
            speeds=self._measured(devices, node) if options.measures else (),
            beside=tuple(
                cpu_list(cpus_beside(device, topology, _allowed(one)))
                for device, one in zip(devices, facts, strict=True)
            )
            if options.bind
            else (),
        )

    def _claim(
        self, devices: Sequence[Device], node: Node, folder: Path, before: int | None
    ) -> None:
        """Claim devices, but those that are claimed for this process by another."""
        claims = self._held.enter_context(Claims(folder))
        for device in devices:
            name = claimed_as(device, node)
            if name is None:
                raise unclaimable(device, node)
            if claims.take(name):
                continue
            holder = holder_of(folder, name)
            if before is None or holder is None or holder.pid != before:
                raise PlacementError(
                    f"{device} on {node.hostname} is claimed already.",
                    f"{folder}: by {holder or 'a process that has just ended'}.",
                    "Wait for that job, name other devices in gpus=[…], or let "
                    'strategy="idle" choose; if it is of this job, give each process a '
                    "device of its own. claim=False takes a device whoever has it.",
                )

    def _share(
        self, device: Device, node: Node, mine: Facts, beside: Sequence[str], place: int
    ) -> CpuShare | None:
        """Return the CPUs to bind this rank to; None, with a warning, if none is left.

        Raises:
            PlacementError: bind is "exclusive", and the rank has no CPU of its own.
        """
        bind = self._options.bind
        if bind is None:
            return None
        topology = node.cpus or CpuTopology()
        lists = [parse_cpu_list(cpus) for cpus in beside]
        share = shares_of_cpus(lists, topology, bind)[place]
        if place == 0 and (doubt := untold_cores(lists, topology, bind)):
            log.warning("%s", doubt)
        if share.cpus:
            return share
        error = no_cpus(device, topology, _allowed(mine) or ())
        if bind == "exclusive":
            raise error
        log.warning("%s", one_line(error))
        return None

    def _measured(self, devices: Sequence[Device], node: Node) -> tuple[float, ...]:
        from gpumap.detect.measure import measure  # noqa: PLC0415 - it imports torch

        found = measure(devices=sorted({d.index for d in devices if d is not CPU}))
        return tuple(number_of(found, device, node, "speeds") for device in devices)


def _allowed(facts: Facts) -> tuple[int, ...] | None:
    """Return the CPUs that a rank's cgroup lets it run on; None in a rehearsal."""
    return None if facts.allowed is None else parse_cpu_list(facts.allowed)


def _all_beside(facts: Sequence[Facts]) -> Decision:
    return Decision(ranks=len(facts), beside=tuple(one.beside for one in facts))


def _without(pids: Collection[int], node: Node) -> Node:
    """Return the node without this job's own processes among its devices' tenants."""
    devices = tuple(
        d.model_copy(
            update={"tenants": tuple(t for t in d.tenants if t.pid not in pids)}
        )
        if d.tenants
        else d
        for d in node.devices
    )
    return node.model_copy(update={"devices": devices})


@contextmanager
def _turn(folder: Path) -> Generator[None, None, None]:
    """Wait until no other job looks, within bounds, and let none look meanwhile."""
    end = time.monotonic() + _OTHERS_LOOK
    with Claims(folder) as gate:
        while not gate.take(_GATE):
            if time.monotonic() > end:
                log.warning(
                    "%s looks for devices for more than %.0f s (%s=%s); not waiting",
                    holder_of(folder, _GATE) or "another job",
                    _OTHERS_LOOK,
                    CLAIMS,
                    folder,
                )
                break
            time.sleep(_PAUSE)
        yield

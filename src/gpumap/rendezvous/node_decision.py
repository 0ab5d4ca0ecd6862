"""What one rank of a node decides for all its ranks, before the roll call.

Some facts change while ranks look at them: free memory, who uses a device, how fast it
is. So the ranks of a node say what each knows about itself, local rank 0 decides for
all of them, and the others read its decision from the store.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpumap.errors import RollCallError
from gpumap.mapping.base import FrozenModel
from gpumap.mapping.launch import Launch
from gpumap.rendezvous import keys
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.verdict import Verdict, claimed_twice, gone

__all__ = ["Decision", "Facts", "NodeRanks"]

# What of start_timeout is left for the roll call, so that a missing rank is named here.
_PART = 0.9


class Facts(FrozenModel):
    """What a rank knows about itself.

    Attributes:
        member: The process.
        launch: What its launcher says.
        bound: The logical CPUs that it runs on, as the kernel lists them: "0-7,64-71".
        allowed: Those that its cgroup lets it run on; None in a rehearsal.
        beside: Those beside its device, if the launcher gave it one of its own.
    """

    member: Member
    launch: Launch
    bound: str = ""
    allowed: str | None = None
    beside: str = ""


class Decision(FrozenModel):
    """What is decided for the ranks of a node.

    Attributes:
        ranks: How many ranks it is for.
        devices: The device of each, by local rank, by names that no mask changes; empty
            if each has its own already, or all are on the CPU.
        speeds: How fast each of them is, if that was measured.
        beside: The CPUs beside each rank's device, if that was asked, by local rank.
    """

    ranks: int = 1
    devices: tuple[int | str, ...] = ()
    speeds: tuple[float, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeRanks:
    """The ranks of one node, seen from one of them.

    Attributes:
        peers: All ranks; this one without its device yet.
        node: A name that the ranks of this node alone share.
        local_rank: This rank's place among them.
        local_world_size: How many they are.
        seconds: How long they have to come together.
    """

    peers: Peers
    node: str
    local_rank: int
    local_world_size: int
    seconds: float

    def decide(
        self, mine: Facts, decision_of: Callable[[Sequence[Facts]], Decision]
    ) -> tuple[Decision, Sequence[Member]]:
        """Return what local rank 0 decides from all ranks' facts, and who was seen.

        Raises:
            RollCallError: A rank of the node did not come in time, its process has
                ended, or it does not take part; or a rank of the job cannot start.
        """
        store, me = self.peers.store, mine.member
        holder = store.claim(keys.facts(self.node, self.local_rank), mine).member
        if holder != me:
            raise self._claimed_twice(holder, me)
        deadline = time.monotonic() + _PART * self.seconds
        if self.local_rank > 0:
            decider = self._facts(0, (), deadline).member
            return self._decided(decider, deadline), [decider]
        facts = [mine]
        for local_rank in range(1, self.local_world_size):
            facts.append(self._facts(local_rank, facts, deadline))
        decision = decision_of(facts)
        members = [one.member for one in facts]
        self._look(members)  # deciding may have taken long
        store.write(keys.decision(self.node), decision)
        return decision, members

    def _facts(self, local_rank: int, known: Sequence[Facts], deadline: float) -> Facts:
        """Wait for what another rank of this node says about itself."""
        key = keys.facts(self.node, local_rank)
        left = max(deadline - time.monotonic(), 0.0)
        there = [facts.member for facts in known]

        def look() -> None:
            self._look(there)
            self._refuse_one_that_does_not_decide()

        found = self.peers.store.wait(key, Facts, left, look)
        if found is None:
            raise self._missing(local_rank)
        return found

    def _decided(self, decider: Member, deadline: float) -> Decision:
        """Wait for the decision, as long as the rank that makes it is there."""
        found = self.peers.store.wait(
            keys.decision(self.node),
            Decision,
            max(deadline - time.monotonic(), 0.0),
            lambda: self._look([decider]),
        )
        if found is None:
            raise self._told(
                Verdict(
                    happened=f"{decider} did not decide for the ranks of its node "
                    f"within {_PART * self.seconds:g} s.",
                    seen=f"{decider.state}.",
                    hint="See what it says. start_timeout=… gives it more time.",
                    ranks=(decider.rank,),
                )
            )
        if found.ranks != self.local_world_size:
            raise self._told(
                Verdict(
                    happened=f"the ranks of {self.peers.me.hostname} disagree on how "
                    f"many they are: {decider} knows of {found.ranks}, {self.peers.me} "
                    f"of {self.local_world_size}.",
                    hint="Give every process of a node the same LOCAL_WORLD_SIZE.",
                    ranks=(decider.rank, self.peers.me.rank),
                )
            )
        return found

    def _look(self, members: Sequence[Member]) -> None:
        """Raise the error of a rank of the job, if one cannot start or is gone."""
        store = self.peers.store
        if store.has(keys.VERDICT):
            error = store.read(keys.VERDICT, Verdict).error
            if error is not None:
                raise error
        for member in members:
            if member.is_gone:
                raise self._told(gone(member))

    def _refuse_one_that_does_not_decide(self) -> None:
        """Find a rank of this node that has gone on to the roll call by itself."""
        store = self.peers.store
        at_the_roll_call = [n for n in self.peers.here if store.has(keys.rank(n))]
        if not at_the_roll_call:
            return
        places = range(self.local_world_size)
        told = [keys.facts(self.node, place) for place in places]
        deciding = [
            store.read(key, Facts).member.rank for key in told if store.has(key)
        ]
        for rank in at_the_roll_call:
            if rank not in deciding:
                raise self._told(
                    Verdict(
                        happened=f"{self.peers.me} decides with the other ranks of its "
                        f"node, and {self.peers.member(rank)} by itself.",
                        seen="The ranks of a node decide together for idle, closest, a "
                        "function, a measurement, claim and bind, unless each sees a "
                        "device of its own.",
                        hint="Give every rank of a node the same arguments, the same "
                        "*_VISIBLE_DEVICES and the same LOCAL_WORLD_SIZE.",
                        ranks=tuple(sorted((self.peers.me.rank, rank))),
                    )
                )

    def _missing(self, local_rank: int) -> RollCallError:
        return self._told(
            Verdict(
                happened=f"local rank {local_rank} of {self.local_world_size} on "
                f"{self.peers.me.hostname} did not come within "
                f"{_PART * self.seconds:g} s.",
                seen="The ranks of a node decide together which device each gets.",
                hint="See whether its process was started, with the same arguments of "
                "the session, and what it says. start_timeout=… gives slow ones more "
                "time.",
                absent=1,
            )
        )

    def _claimed_twice(self, holder: Member, me: Member) -> RollCallError:
        if holder.rank == me.rank:
            return self._told(claimed_twice(holder, me))
        return self._told(
            Verdict(
                happened=f"local rank {self.local_rank} on {me.hostname} is claimed "
                f"twice: by {holder} and by {me}.",
                seen="The ranks of a node decide together which device each gets.",
                hint="Give each process of a node its own LOCAL_RANK, and each node a "
                "host name or node rank of its own.",
                ranks=tuple(sorted((holder.rank, me.rank))),
            )
        )

    def _told(self, verdict: Verdict) -> RollCallError:
        """Tell all ranks; return the error that they raise.

        A process that is one too many in a job that has started tells nobody.
        """
        error = self.peers.store.claim(keys.VERDICT, verdict).error or verdict.error
        assert error is not None  # noqa: S101 - the verdict is an error
        return error

"""What an open session does in its block: it wraps models, and lets a rank go first."""

import os
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpumap.errors import SessionError
from gpumap.rendezvous.model_digest import Likeness
from gpumap.rendezvous.procfs import host_name
from gpumap.runtime.arguments import refuse_unknown_options
from gpumap.runtime.comparing import compare_models
from gpumap.runtime.ddp_options import DDPOptions
from gpumap.runtime.launch_numbers import number_of
from gpumap.runtime.meeting import node_of
from gpumap.runtime.session_options import SessionOptions
from gpumap.runtime.shutdown import Alone, Shutdown
from gpumap.runtime.startup import Started
from gpumap.runtime.turns import Turn
from gpumap.runtime.wrapping import let_go, likeness_checked, wrapped_on

if TYPE_CHECKING:
    from gpumap.runtime.balanced_batch import BalancedBatch

__all__ = ["First", "Inside"]


class First(AbstractContextManager[None]):
    """A block that one rank runs before the others: rank 0, or its node's local rank 0.

    It is no generator, for which contextlib sets an attribute of a user's error.
    """

    def __init__(self, inside: "Inside", *, local: bool, seconds: float) -> None:
        """Say who goes first, and how long the others wait for it."""
        self._inside = inside
        self._local = local
        self._seconds = seconds
        self._turns: list[Turn | None] = []

    def __enter__(self) -> None:
        """Begin this rank's turn, or wait for the end of the first one."""
        turn = self._inside.begin_turn(local=self._local, seconds=self._seconds)
        self._turns.append(turn)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """End this rank's turn, if it goes first."""
        turn = self._turns.pop()
        if turn is not None:
            self._inside.end_turn(turn, error)


class Inside:
    """The models of an open session, and its ranks' turns.

    Attributes:
        balanced: The batch that the ranks split by their speeds, if they do.
    """

    def __init__(
        self,
        started: Started,
        options: SessionOptions,
        ending: Shutdown | Alone,
        balanced: "BalancedBatch | None",
    ) -> None:
        """Begin, without a model, once the process group has formed."""
        self.balanced = balanced
        self._started = started
        self._options = options
        self._ending = ending
        self._models: list[DistributedDataParallel] = []
        self._wraps = 0
        self._turns: dict[str, int] = {}
        self._leading = 0
        self._is_over = False
        self._pid = os.getpid()

    def wrap_first(self, model: nn.Module, ddp: DDPOptions) -> DistributedDataParallel:
        """Wrap ddp_session's model, which the roll call has compared already."""
        wrapped = self._wrapped(model, ddp)
        if self.balanced is not None:
            self.balanced.attach(wrapped)
        return wrapped

    def wrap(self, model: nn.Module, ddp: DDPOptions) -> DistributedDataParallel:
        """Wrap another model once all ranks have come with such a one.

        Raises what Session.wrap raises.
        """
        self.refuse_outside("wrap(…)")
        refuse_unknown_options("session.wrap()", ddp)

        def check() -> Likeness:
            self._refuse_here()
            return likeness_checked(model, ddp, self._started.setup.device)

        self._wraps += 1
        if isinstance(self._ending, Shutdown) and not self._leading:
            compare_models(
                self._started, self._options, self._ending, self._wraps, check
            )
        else:
            check()
        return self._wrapped(model, ddp)

    def begin_turn(self, *, local: bool, seconds: float) -> Turn | None:
        """Return this rank's turn if it goes first; else return None after its end.

        Raises what Session.rank_zero_first raises.
        """
        self.refuse_outside("rank_zero_first()")
        launch, ending = self._started.setup.launch, self._ending
        place = number_of(launch, "local_rank") if local else launch.rank
        if not isinstance(ending, Shutdown):
            return None
        turn = self._turn(ending, local=local)
        if place:
            turn.wait(seconds)
            return None
        turn.begin()
        self._leading += 1
        return turn

    def end_turn(self, turn: Turn, error: BaseException | None) -> None:
        """End this rank's turn, with the error that its block raised, if it did."""
        self._leading -= 1
        turn.end(error)

    def close(self) -> None:
        """Let go of all models, which would keep the process group's threads alive."""
        self._is_over = True
        if self.balanced is not None:
            self.balanced.detach()
        while self._models:
            let_go(self._models.pop())

    def refuse_outside(self, call: str) -> None:
        """Refuse a call that belongs into the block.

        Raises:
            SessionError: The session is over, or is that of a process that forked this
                one.
        """
        if self._pid != os.getpid():
            raise SessionError(
                f"this process was forked inside a session, of pid {self._pid}.",
                f"session.{call} was called in the child.",
                "What belongs to that session is used in that process only.",
            )
        if self._is_over:
            raise SessionError(
                "this session is over.",
                f"session.{call} was called after its end.",
                "Call it in the block, or before session.close().",
            )

    def _wrapped(self, model: nn.Module, ddp: DDPOptions) -> DistributedDataParallel:
        wrapped = wrapped_on(self._started.setup.device, model, ddp)
        self._models.append(wrapped)
        return wrapped

    def _refuse_here(self) -> None:
        """Refuse to wrap where other ranks wait for this one, or beside a balance."""
        if self._leading:
            raise SessionError(
                "session.wrap(…) waits for all ranks, which wait for this one.",
                "It was called in a block of rank_zero_first().",
                "Wrap after that block, on every rank.",
            )
        if self.balanced is not None and self._started.setup.launch.world_size > 1:
            raise SessionError(
                "a session with a balance trains one model.",
                "Its gradients are weighed by the samples of that model's calls.",
                "Put the models into one nn.Module, or train with equal batches, "
                "without balance=….",
            )

    def _turn(self, ending: Shutdown, *, local: bool) -> Turn:
        """Return this use of rank_zero_first(), the same on all ranks concerned."""
        launch = self._started.setup.launch
        name, first, who = "turns", [0], "rank 0"
        if local:
            certain = node_of(launch)
            name = f"turns/{host_name() if certain is None else certain}"
            first, who = list(launch.node_ranks or ()), "local rank 0 of its node"
        number = self._turns[name] = self._turns.get(name, 0) + 1
        return Turn(
            self._started,
            ending,
            name=f"{name}/{number}",
            first=first[0] if first else None,
            who=who,
        )

"""session() and start(): a session without a model, as a block or in a flat script."""

from datetime import timedelta

from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Bind, Gpus, Scores, Strategy
from gpumap.runtime.arguments import names_are_checked
from gpumap.runtime.block import Block, enter
from gpumap.runtime.life import life_of
from gpumap.runtime.session import Session
from gpumap.runtime.session_options import SessionOptions

__all__ = ["session", "start"]


@names_are_checked
def session(
    *,
    strategy: Strategy | None = None,
    gpus: Gpus | None = None,
    scores: Scores | None = None,
    device: str = "auto",
    backend: str | None = None,
    timeout: float | timedelta | None = None,
    start_timeout: float | timedelta = 300.0,
    end_timeout: float | timedelta = 86_400.0,
    oversubscribe: bool = False,
    claim: bool | None = None,
    bind: Bind | None = None,
    launch: Launch | None = None,
    node: Node | None = None,
) -> Block[Session]:
    """Open a session without a model: for FSDP, evaluation, or several models.

    Arguments and errors are those of ddp_session. Use it with `with`, or as a decorator
    of a function, each call of which then opens and closes a session. Session.wrap()
    wraps any number of models in it.
    """
    options = SessionOptions(
        strategy=strategy,
        gpus=gpus,
        scores=scores,
        device=device,
        backend=backend,
        timeout=timeout,
        start_timeout=start_timeout,
        end_timeout=end_timeout,
        oversubscribe=oversubscribe,
        claim=claim,
        bind=bind,
        launch=launch,
        node=node,
    )
    return Block(lambda: life_of(options, lambda opened, _: opened))


@names_are_checked
def start(
    *,
    strategy: Strategy | None = None,
    gpus: Gpus | None = None,
    scores: Scores | None = None,
    device: str = "auto",
    backend: str | None = None,
    timeout: float | timedelta | None = None,
    start_timeout: float | timedelta = 300.0,
    end_timeout: float | timedelta = 86_400.0,
    oversubscribe: bool = False,
    claim: bool | None = None,
    bind: Bind | None = None,
    launch: Launch | None = None,
    node: Node | None = None,
) -> Session:
    """Open a session that is left by its close(), or by the end of the script.

    For scripts that are not indented, and notebooks; for `with`, write session().
    Arguments and errors are those of ddp_session. An error that ends the script is what
    the session is left with, as if it had been raised in a block; at a prompt and in a
    notebook an error ends nothing. sys.exit() ends a script without an error: to end
    one rank alone, raise one.
    """
    options = SessionOptions(
        strategy=strategy,
        gpus=gpus,
        scores=scores,
        device=device,
        backend=backend,
        timeout=timeout,
        start_timeout=start_timeout,
        end_timeout=end_timeout,
        oversubscribe=oversubscribe,
        claim=claim,
        bind=bind,
        launch=launch,
        node=node,
    )
    return enter(lambda: life_of(options, lambda opened, _: opened))

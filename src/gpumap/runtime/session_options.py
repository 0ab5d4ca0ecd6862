"""The arguments of a session."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from gpumap.errors import DeviceError, SessionError
from gpumap.mapping.devices import Node
from gpumap.mapping.keywords import list_instead_of
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import (
    Bind,
    Gpus,
    Scores,
    Strategy,
    pool_named,
    refuse_unknown_bind,
)
from gpumap.mapping.seconds import seconds_of, start_seconds

if TYPE_CHECKING:
    from gpumap.mapping.balance import Balance

__all__ = ["SessionOptions"]


@dataclass(frozen=True)
class SessionOptions:
    """The arguments of a session, as the user wrote them.

    Raises:
        SessionError: A time is no positive number of seconds.
    """

    strategy: Strategy | None = None
    gpus: Gpus | None = None
    scores: Scores | None = None
    device: str = "auto"
    backend: str | None = None
    timeout: float | timedelta | None = None
    start_timeout: float | timedelta = 300.0
    end_timeout: float | timedelta = 86_400.0
    oversubscribe: bool = False
    claim: bool | None = None
    bind: Bind | None = None
    launch: Launch | None = None
    node: Node | None = None
    balance: "Balance | None" = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        """Check the times at once, before anything waits for them."""
        start_seconds("start_timeout", self.start_timeout, self.environ)
        seconds_of("end_timeout", self.end_timeout)
        if self.timeout is not None:
            seconds_of("timeout", self.timeout)

    def check_types(self) -> None:
        """Check the types of the arguments.

        Raises:
            SessionError: An argument has another type than it should.
            DeviceError: gpus is a text or a number, as other libraries have it.
        """
        kinds = {"device": str, "backend": str, "launch": Launch, "node": Node}
        for name, kind in (kinds | {"claim": bool}).items():
            self._refuse_another_type(name, kind)
        if self.balance is not None:
            from gpumap.mapping.balance import Balance  # noqa: PLC0415 - who asks pays

            self._refuse_another_type("balance", Balance)
        if self.bind is not None:
            refuse_unknown_bind(self.bind, SessionError)
        if instead := list_instead_of(self.gpus):
            raise DeviceError(
                f"gpus={self.gpus!r} is not a list of devices.",
                f"Its type is {type(self.gpus).__name__}.",
                instead,
            )

    def _refuse_another_type(self, name: str, kind: type) -> None:
        value = getattr(self, name)
        optional = name != "device"
        if not isinstance(value, kind) and not (optional and value is None):
            raise SessionError(
                f"{name}={value!r} is a {type(value).__name__}.",
                "",
                f"Pass a {kind.__name__}"
                + (", or leave it out." if optional else ': "auto", "cuda", "cpu".'),
            )

    @property
    def claims(self) -> bool:
        """Whether devices are claimed for the session: asked for, or by "idle"."""
        return self.strategy == "idle" if self.claim is None else self.claim

    @property
    def measures(self) -> bool:
        """Whether the batch is split by a measurement."""
        return self.balance is not None and self.balance.how == "measure"

    @property
    def pool(self) -> Gpus | None:
        """The devices named by the session, or else by the environment."""
        return pool_named(self.gpus, {} if self.device == "cpu" else self.environ)

    @property
    def start_seconds(self) -> float:
        """Seconds that the ranks have to come together."""
        return start_seconds("start_timeout", self.start_timeout, self.environ)

    @property
    def end_seconds(self) -> float:
        """Seconds that the ranks have to reach the end after the first one has."""
        return seconds_of("end_timeout", self.end_timeout)

    @property
    def group_timeout(self) -> timedelta | None:
        """How long a collective may take; None for torch's own default."""
        if self.timeout is None:
            return None
        return timedelta(seconds=seconds_of("timeout", self.timeout))

"""The roll call of a model that is wrapped in a session: all ranks wrap the same."""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace

import torch.distributed as dist

from gpumap.errors import RollCallError
from gpumap.rendezvous import keys
from gpumap.rendezvous.failures import Fault, ordinal
from gpumap.rendezvous.model_digest import Likeness
from gpumap.rendezvous.rendezvous import Rendezvous
from gpumap.rendezvous.roll_call import roll_call, withdraw
from gpumap.rendezvous.store_client import StoreLostError
from gpumap.rendezvous.verdict import Verdict
from gpumap.runtime.roll import terms_of
from gpumap.runtime.session_options import SessionOptions
from gpumap.runtime.shutdown import Shutdown
from gpumap.runtime.startup import Started
from gpumap.time_limits import DOING, TELL_THE_OTHERS

__all__ = ["compare_models"]


def compare_models(
    started: Started,
    options: SessionOptions,
    ending: Shutdown,
    number: int,
    check: Callable[[], Likeness],
) -> None:
    """Return once every rank has come with such a model, to the number-th wrap.

    check returns what all ranks' models must share, and may refuse. The ranks have as
    long as a collective may take, which torch makes of them next.

    Raises:
        RollCallError: The models or their options differ, or a rank does not come, has
            failed or has come to its end. Every rank that is here raises the same.
    """
    keeper = started.rendezvous.keeper
    at = replace(started, rendezvous=_part(started.rendezvous, f"wrap/{number}"))
    which = f"the session's {ordinal(number)} session.wrap(…)"

    def tell(fault: Fault) -> None:
        """Tell the ranks that wait here of one that will not come."""
        verdict = Verdict(
            happened=f"{fault.text}.",
            seen=f"The others were at {which}.",
            hint=fault.hint or "Every rank wraps the same models, in the same order.",
            ranks=fault.ranks,
        )
        with suppress(StoreLostError, RollCallError):
            peers = at.peers(DOING)
            with closing(peers.store):
                peers.store.claim(keys.VERDICT, verdict)

    try:
        # The session's end sees to it that the store stays for the others: host=None.
        peers = replace(
            at.peers(ending.seconds),
            me=started.me.model_copy(update={"identity": None}),
            host=None,
        )
        with closing(peers.store), ending.telling(tell):
            try:
                likeness = check()
                alone = replace(options, balance=None)
                roll_call(
                    peers,
                    terms_of(alone, started.setup, likeness),
                    ending.seconds,
                    rows=likeness.rows,
                    remark=f"This is {which}: every rank wraps the same models, in the "
                    "same order. timeout=… gives slow ones more time.",
                )
            except RollCallError:
                raise
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                if not isinstance(error, StoreLostError):
                    withdraw(peers, error, TELL_THE_OTHERS)
                raise
    except StoreLostError as error:
        raise error.of(keeper, f"at {which}") from None


def _part(rendezvous: Rendezvous, name: str) -> Rendezvous:
    """Return a part of a session's keys of its own."""
    return replace(
        rendezvous,
        store=dist.PrefixStore(name, rendezvous.store),
        prefix=f"{rendezvous.prefix}/{name}",
    )

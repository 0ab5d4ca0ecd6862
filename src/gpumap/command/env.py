"""`gpumap env`: prints what `gpumap run` sets for a script."""

import json
import os
import shlex
from argparse import Namespace
from contextlib import ExitStack

from gpumap.command.preparation import Prepared, Rank
from gpumap.command.printing import printed
from gpumap.command.run import FAILURES, USED_UP, failed, options_of
from gpumap.runtime.sigterm import Sigterm

__all__ = ["env"]


def env(asked: Namespace) -> int:
    """Print the variables; return 0, 1 if a check failed, 2 if nothing was printed."""
    try:
        options = options_of(asked)
        with ExitStack() as held, Sigterm(options.start_seconds):
            rank = Rank(options, own=asked.own, meets=asked.roll_call, held=held)
            prepared = rank.prepared(lambda _: {})
    except FAILURES as error:
        return failed(error)
    if asked.json:
        text = json.dumps(prepared.variables, indent=2)
    else:
        text = _table(prepared) if asked.table else _exports(prepared)
    return 0 if printed(text) else 2


def _exports(prepared: Prepared) -> str:
    stale = [name for name in USED_UP if name in os.environ]
    lines = [f"unset {name}" for name in stale if name not in prepared.variables]
    for name, value in prepared.variables.items():
        lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join(lines)


def _table(prepared: Prepared) -> str:
    placement = prepared.placed.placement
    launch, variables = placement.launch, prepared.variables
    width = max(map(len, variables))
    lines = [f"  {name:<{width}}  {value}" for name, value in variables.items()]
    rank = f"rank {launch.rank} of {launch.world_size} on {placement.device}"
    return "\n".join([f"{rank}: {placement.why}", *lines])

"""The names of a session's arguments: a wrong one is told before anything happens."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import fields
from functools import wraps
from typing import ParamSpec, TypeVar

from torch.nn.parallel import DistributedDataParallel

from gpumap.errors import SessionError
from gpumap.mapping.keywords import refuse_unknown
from gpumap.runtime.session_options import SessionOptions

__all__ = ["names_are_checked", "refuse_unknown_options"]

P = ParamSpec("P")
R = TypeVar("R")

_STARTED = (
    "A session starts no processes: torchrun --nproc-per-node 2 does, or "
    "gpumap.spawn(function, nprocs=2)."
)
_LAUNCHER = (
    "The launcher says it; without one, pass launch=gpumap.Launch(…) with all numbers."
)
_DEVICES = (
    "Write gpus=[0, 1] for the devices that the job may use; there are as many "
    "processes as the launcher starts."
)
_OF_DDP = (
    "It is an argument of ddp_session(model, …) and of session.wrap(model, …), which "
    "wrap a model."
)

# What Fabric, Accelerate, torch.distributed and mp.spawn call it.
_HABITS = {
    **dict.fromkeys(("nprocs", "num_processes", "num_nodes", "nnodes"), _STARTED),
    **dict.fromkeys(("nproc_per_node", "world_size"), _STARTED),
    **dict.fromkeys(("rank", "local_rank", "node_rank", "init_method"), _LAUNCHER),
    **dict.fromkeys(("master_addr", "master_port", "store"), _LAUNCHER),
    **dict.fromkeys(("devices", "gpu_ids", "device_ids"), _DEVICES),
    "gpu": "Write a list: gpus=[…].",
    "accelerator": 'Write device="cuda", or leave it out for whatever is there.',
    "model": "Write ddp_session(model), or session.wrap(model) in the session.",
    "balance": "ddp_session(model, balance=…) takes it, which weighs the gradients.",
    "args": "Only gpumap.spawn() calls a function: spawn(function, 1, name=2).",
    "precision": "Write `with torch.autocast(…):` around the forward pass.",
    "mixed_precision": _OF_DDP,
}

# Those of the torch that is installed: an older one has fewer, a newer one more.
_OF_THIS_TORCH = tuple(inspect.signature(DistributedDataParallel).parameters)[1:]
_DECIDED_HERE = ("device_ids", "output_device", "process_group", "device_mesh")
_OF_SESSIONS = tuple(x.name for x in fields(SessionOptions) if x.name != "environ")


def names_are_checked(call: Callable[P, R]) -> Callable[P, R]:
    """Return the same call of named arguments, with TypeErrors that say what to write.

    The TypeErrors that the call raises itself pass unchanged.
    """
    name = f"{call.__name__}()"
    taken = tuple(inspect.signature(call).parameters)
    habits = {**dict.fromkeys(_OF_THIS_TORCH, _OF_DDP), **_HABITS}

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if args:
            raise TypeError(_refusal_of(args[0], name))
        refuse_unknown(name, kwargs, taken, habits)
        return call(*args, **kwargs)

    return checked


def refuse_unknown_options(
    call: str, options: Collection[str], others: Collection[str] = ()
) -> None:
    """Check the names of the options that go on to DistributedDataParallel.

    call is named in the error; others are the session's arguments, where it takes them.

    Raises:
        TypeError: DistributedDataParallel has no such option.
        SessionError: gpumap decides it.
    """
    decided = [name for name in ("module", *_DECIDED_HERE) if name in options]
    if decided:
        raise SessionError(
            f"{', '.join(decided)} cannot be passed: gpumap decides it.",
            "",
            "Say which device with strategy=… and gpus=[…].",
        )
    own = [name for name in _OF_THIS_TORCH if name not in _DECIDED_HERE]
    habits = {name: text for name, text in _HABITS.items() if name not in own}
    if not others:
        habits |= {
            name: f"Pass {name}=… when the session is opened, before any wrap."
            for name in _OF_SESSIONS
        }
    refuse_unknown(call, options, [*others, *own], habits)


def _refusal_of(value: object, name: str) -> str:
    """Return what to write instead of an argument without a name."""
    if callable(value) and not hasattr(value, "parameters"):
        return (
            f"{name} takes named arguments only. As a decorator write @gpumap.session()"
        )
    if hasattr(value, "parameters"):
        return (
            f"{name} takes no model. Write ddp_session(model), or session.wrap(model) "
            "in the session."
        )
    return f"{name} takes named arguments only: write gpus=[0, 1], for instance."

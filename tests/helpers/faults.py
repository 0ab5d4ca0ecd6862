"""A training script of which one rank fails: `python faults.py WHEN HOW VICTIM`.

Every rank prints JSON when its session is over: the time, and the error with its notes.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import gpumap
from gpumap.rendezvous.session_store import SessionStore
from gpumap.runtime.shutdown import Shutdown

# A module that imports this one has no such arguments.
WHEN, HOW, VICTIM = [*sys.argv[1:4], "", "", ""][:3]
LIMIT = float(os.environ.get("LIMIT", "4"))
START = float(os.environ.get("START", "4"))


def fail() -> None:
    """Print the time, and fail in the way that HOW names."""
    sys.stdout.write(f"FAULT {time.monotonic()}\n")
    sys.stdout.flush()
    if HOW.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, HOW))
        time.sleep(0.2)  # Python runs a signal handler here
    elif HOW == "raise":
        raise ValueError("bad batch")
    elif HOW == "exit":
        sys.exit(3)
    elif HOW == "hang":
        time.sleep(60)


def failing(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call, preceded by a failure if this process is the victim."""

    def instead(*args: Any, **kwargs: Any) -> Any:
        if str(gpumap.detect_launch().rank) == VICTIM:
            fail()
        return call(*args, **kwargs)

    return instead


def train() -> None:
    """Train in step with the other ranks, and fail in the body if WHEN says so."""
    model = torch.nn.Linear(2, 1)
    with gpumap.ddp_session(
        model, start_timeout=START, timeout=LIMIT, end_timeout=LIMIT
    ) as m:
        device = gpumap.current().device
        for number in range(200):
            m(torch.ones(1, 2, device=device)).sum().backward()
            if WHEN == "body" and number == 3:
                failing(lambda: None)()
            if WHEN != "body" and number == 3:
                break


def main() -> None:
    """Plant the failure, train, and print how the session ended."""
    if WHEN == "before":
        failing(lambda: None)()
    # Inside the roll call: the rank has claimed its device and is not counted yet.
    if WHEN == "roll call":
        SessionStore.count = failing(SessionStore.count)  # type: ignore[method-assign]
    if WHEN == "after":
        dist.init_process_group = failing(dist.init_process_group)
    if WHEN == "leaving":
        Shutdown.meet = failing(Shutdown.meet)  # type: ignore[method-assign]
    said: dict[str, Any] = {"error": None}
    try:
        train()
    except BaseException as error:
        said["error"] = type(error).__name__
        said["text"] = "\n".join([str(error), *getattr(error, "__notes__", [])])
        raise
    finally:
        said["at"] = time.monotonic()
        sys.stdout.write(f"SAID {json.dumps(said)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

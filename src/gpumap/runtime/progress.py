"""How far this process has come: its collectives, and where its main thread is.

torch's flight recorder notes each collective that NCCL or, as of torch 2.13, gloo
begins and finishes; messages from one rank to another are not counted. Where nothing is
noted, nothing is known. Source: torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

import json
import sys
import sysconfig
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from gpumap.runtime.failures import Answer

__all__ = ["begun", "progress"]

# A reader looks for the line of the script, not of a library.
_LIBRARIES = (sysconfig.get_paths()["stdlib"], str(Path(__file__).parent.parent))


def begun(group: str) -> int:
    """Return how much was begun in a group, by torch's name for it; -1 if unknown."""
    status = _recorded(includeCollectives=False).get("pg_status", {}).get(group, {})
    return int(status.get("last_enqueued_collective", -1))


def progress(group: str) -> Answer:
    """Return how far this process has come in a group, by torch's name for it."""
    noted = [
        entry
        for entry in _recorded().get("entries", [])
        if entry["process_group"][0] == group and not entry["is_p2p"]
    ]
    # Groups that follow one another have one name; this number tells them apart.
    latest = max((entry["pg_id"] for entry in noted), default=None)
    noted = [entry for entry in noted if entry["pg_id"] == latest]
    numbers = [int(entry["collective_seq_id"]) for entry in noted]
    standing = next((entry for entry in noted if not entry["retired"]), None)
    return Answer(
        made=max(numbers, default=None),
        stands_in=standing and str(standing["profiling_name"]).rpartition(":")[2],
        number=standing["collective_seq_id"] if standing else 0,
        main_thread=_main_thread(),
    )


def _main_thread() -> str:
    """Return where the main thread is, in words."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - Python has no public way
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_LIBRARIES) and (
            "site-packages" not in code.co_filename
        ):
            name = Path(code.co_filename).name
            return f"in {code.co_name}, {name} line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def _recorded(**options: bool) -> dict[str, Any]:
    c10d: Any = import_module("torch._C._distributed_c10d")
    if not hasattr(c10d, "_dump_fr_trace_json"):
        return {}
    recorded: dict[str, Any] = json.loads(c10d._dump_fr_trace_json(**options))  # noqa: SLF001 - torch has no public way
    return recorded

"""How far this process has come: its collectives, and where its main thread is.

torch's flight recorder notes each collective that gloo, as of torch 2.13, begins and
finishes; messages from one rank to another are not counted. NCCL has a recorder of its
own, which is not read yet: there as in older torch nothing is known. Source:
torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

import json
import sys
import sysconfig
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from gpumap.rendezvous.failures import Answer

__all__ = ["begun", "is_standing", "newest", "progress"]

# A reader looks for the line of the script, not of a library.
_LIBRARIES = (sysconfig.get_paths()["stdlib"], str(Path(__file__).parent.parent))


def begun() -> int:
    """Return how much was begun in all groups; it costs nothing to ask."""
    return sum(int(group["last_enqueued_collective"]) for group in _status().values())


def newest() -> int:
    """Return the number of the newest group in which anything was noted, or -1."""
    return max(map(int, _status()), default=-1)


def is_standing() -> bool:
    """Tell whether anything was begun and not finished; it costs nothing to ask."""
    return any(
        group["last_enqueued_collective"] != group["last_completed_collective"]
        for group in _status().values()
    )


def progress(group: str, after: int) -> Answer:
    """Return how far this process has come in a group, by torch's name for it.

    Groups that follow one another have one name: only those newer than some number
    count. Of all groups' collectives the last 2,000 are kept; where none of this
    group's is among them, and some were dropped, how many it made is not known.
    """
    recorded: list[_Noted] = _recorded().get("entries", [])
    noted = [
        entry
        for entry in recorded
        if entry.group == group and entry.group_number > after and not entry.is_message
    ]
    all_kept = not recorded or recorded[0].record == 0
    latest = max((entry.group_number for entry in noted), default=None)
    noted = [entry for entry in noted if entry.group_number == latest]
    standing = next((entry for entry in noted if not entry.is_over), None)
    return Answer(
        made=max((n.number for n in noted), default=0 if all_kept else None),
        stands_in=standing and standing.operation.rpartition(":")[2],
        number=standing.number if standing else 0,
        main_thread=_main_thread(),
    )


class _Noted(NamedTuple):
    """A collective, as it was noted."""

    group: str
    group_number: int
    record: int
    number: int
    operation: str
    is_over: bool
    is_message: bool


def _read(value: dict[str, Any]) -> Any:  # noqa: ANN401 - as json has it
    """Make an entry small while the text is read: there may be 2,000 of them."""
    if "process_group" not in value:
        return value
    return _Noted(
        group=value["process_group"][0],
        group_number=value["pg_id"],
        record=value["record_id"],
        number=value["collective_seq_id"],
        operation=str(value["profiling_name"]),
        is_over=value["retired"],
        is_message=value["is_p2p"],
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


def _status() -> dict[str, dict[str, str]]:
    """Return how far each group is, by its number, without any entry."""
    status: dict[str, dict[str, str]] = _recorded(includeCollectives=False).get(
        "pg_status", {}
    )
    return status


def _recorded(**options: bool) -> dict[str, Any]:
    c10d: Any = import_module("torch._C._distributed_c10d")
    if not hasattr(c10d, "_dump_fr_trace_json"):
        return {}
    text = c10d._dump_fr_trace_json(**options)  # noqa: SLF001 - torch has no public way
    recorded: dict[str, Any] = json.loads(text, object_hook=_read)
    return recorded

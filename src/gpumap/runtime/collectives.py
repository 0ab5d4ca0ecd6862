"""The progress of this process: its collectives, and where its main thread is.

torch's flight recorders, one for NCCL and, as of torch 2.13, one for gloo, record each
collective that begins and finishes; messages from one rank to another do not count.
Older torch records none of gloo's. Source:
torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

import json
import sys
import sysconfig
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from gpumap.rendezvous.failures import Answer

__all__ = ["begun", "is_standing", "newest", "progress"]

# The place to report is a line of the script, not of a library.
_LIBRARIES = (sysconfig.get_paths()["stdlib"], str(Path(__file__).parent.parent))


def begun() -> int:
    """Return how many collectives all groups have begun; this is cheap."""
    return sum(int(group["last_enqueued_collective"]) for group in _groups())


def newest() -> dict[str, int]:
    """Return the number of the newest group that each recorder has entries of."""
    return {name: max(map(int, _status(name)), default=-1) for name in _recorders()}


def is_standing() -> bool:
    """Tell whether any collective has begun and not finished; this is cheap."""
    return any(
        group["last_enqueued_collective"] != group["last_completed_collective"]
        for group in _groups()
    )


def progress(group: str, after: Mapping[str, int]) -> Answer:
    """Return the progress of this process in the group that torch gives this name.

    Successive groups share a name: only groups newer than `after`, an earlier result of
    newest(), count. The recorders keep the last 2,000 collectives of all groups; if
    none is this group's, and some were dropped, this group's count is not known.
    """
    found = [_of_newest(name, group, after.get(name, -1)) for name in _recorders()]
    noted = [entry for entries, _ in found for entry in entries]
    standing = next((entry for entry in noted if not entry.is_over), None)
    made = [max((n.number for n in entries), default=0) for entries, _ in found]
    is_known = bool(noted) or all(all_kept for _, all_kept in found)
    return Answer(
        # A group of several backends has a recorder, and so a count, for each backend.
        made=sum(made) if is_known else None,
        stands_in=standing and standing.operation.rpartition(":")[2],
        number=standing.number if standing else 0,
        main_thread=_main_thread(),
    )


def _of_newest(recorder: str, group: str, after: int) -> tuple[list["_Noted"], bool]:
    """Return the entries of the newest group of a name, and whether all are kept."""
    recorded: list[_Noted] = _recorded(recorder).get("entries", [])
    noted = [
        entry
        for entry in recorded
        if entry.group == group and entry.group_number > after and not entry.is_message
    ]
    latest = max((entry.group_number for entry in noted), default=None)
    all_kept = not recorded or recorded[0].record == 0
    return [entry for entry in noted if entry.group_number == latest], all_kept


class _Noted(NamedTuple):
    """A flight recorder's entry of one collective."""

    group: str
    group_number: int
    record: int
    number: int
    operation: str
    is_over: bool
    is_message: bool


def _read(value: dict[str, Any]) -> Any:  # noqa: ANN401 - as json has it
    """Make an entry small while JSON is parsed: there may be 2,000 of them."""
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


def _groups() -> list[dict[str, str]]:
    """Return the status of every group of every recorder."""
    return [group for name in _recorders() for group in _status(name).values()]


def _status(recorder: str) -> dict[str, dict[str, str]]:
    """Return the status of each group by its number, without its entries."""
    recorded = _recorded(recorder, includeCollectives=False)
    status: dict[str, dict[str, str]] = recorded.get("pg_status", {})
    return status


def _recorders() -> list[str]:
    """Return the names of torch's dump functions for gloo and NCCL in this build."""
    names = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
    return [name for name in names if hasattr(_c10d(), name)]


def _recorded(recorder: str, **options: bool) -> dict[str, Any]:
    text = getattr(_c10d(), recorder)(**options)
    recorded: dict[str, Any] = json.loads(text, object_hook=_read)
    return recorded


def _c10d() -> Any:  # noqa: ANN401 - a module without types
    return import_module("torch._C._distributed_c10d")

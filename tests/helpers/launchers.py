"""What the tests under real launchers need: programs, and the ranks' reports."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
REPORT = str(HERE / "report.py")
Report = dict[str, Any]
Run = Callable[..., list[Report]]
Shown = Callable[..., list[str]]


def need(*programs: str, root: bool = False) -> None:
    """Skip the test without a program or without root; in CI let it fail."""
    missing = [program for program in programs if shutil.which(program) is None]
    if root and os.geteuid() != 0:
        missing.append("root")
    if missing and os.environ.get("CI"):
        pytest.fail(f"CI must have {', '.join(missing)}")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}; nox -s launchers installs programs")


def reports(text: str) -> list[Report]:
    """Return what each rank reported, in the order of the ranks."""
    found = [json.loads(part.split("\n")[0]) for part in text.split("REPORT ")[1:]]
    found.sort(key=lambda report: report["rank"])
    assert [report["rank"] for report in found] == list(range(len(found))), text
    total = sum(range(len(found)))
    assert {report["total"] for report in found} == {total}, text
    return found

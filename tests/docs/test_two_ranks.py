"""The scripts of the pages for newcomers, on two ranks of a rehearsed machine."""

import json
import re
from pathlib import Path

import pytest

from helpers.jobs import run

DOCS = Path(__file__).parent.parent.parent / "docs"
REHEARSAL = {"GPUMAP_REHEARSAL": "dgx-a100"}
GRADIENT = "model.module.weight.grad.tolist()"
# The page, the heading, and what DDP makes the same on both ranks, whose data differ.
ALIKE = [
    ("quickstart.md", "A training script", "ddp.module.weight.tolist()"),
    ("porting.md", "From torchrun and plain DDP", GRADIENT),
    ("porting.md", "From a script for Slurm", GRADIENT),
    ("porting.md", "From DataParallel", GRADIENT),
    ("porting.md", "Checkpoints", "ddp.module.weight.tolist()"),
    ("porting.md", "Two models", "critic.module.weight.grad.tolist()"),
    ("porting.md", "A script that is not to be re-indented", GRADIENT),
]


def code(page: str, title: str) -> str:
    """Return the Python block under a heading of a page."""
    section = rf"(?ms)^## {re.escape(title)}$(.*?)(?=^## |\Z)"
    block = r"(?ms)^```python\n(.*?)^```$"
    [found] = re.findall(block, re.findall(section, (DOCS / page).read_text())[0])
    return str(found)


def reports(path: Path, block: str, wanted: str) -> list[object]:
    """Run a block on two ranks; return what an expression is in each at the end."""
    path.write_text(f'import json\n{block}\nprint("REPORT", json.dumps({wanted}))\n')
    ended = run("", every=REHEARSAL, script=path)
    assert [rank.code for rank in ended] == [0, 0], [rank.out for rank in ended]
    lines = [re.findall(r"REPORT (.*)", rank.out) for rank in ended]
    return [json.loads(line) for [line] in lines]


@pytest.mark.parametrize(
    ("page", "title", "wanted"), ALIKE, ids=[title for _, title, _ in ALIKE]
)
def test_a_ported_script_trains_one_model(
    tmp_path: Path, page: str, title: str, wanted: str
) -> None:
    """DDP averages over the ranks: both end with the same numbers, not all zero."""
    one, other = reports(tmp_path / "train.py", code(page, title), wanted)
    assert one == other
    assert any(map(any, one)) if isinstance(one, list) else False


def test_a_metric_is_that_of_all_ranks(tmp_path: Path) -> None:
    """Two ranks with three of four right have six of eight."""
    block = code("porting.md", "Metrics")
    found = reports(tmp_path / "train.py", block, "found.tolist()")
    assert found == [[6.0, 8.0], [6.0, 8.0]]


def test_only_rank_0_prints_what_it_found(tmp_path: Path) -> None:
    """Both ranks run the block of rank_zero_first(); one of them is rank 0."""
    block = code("porting.md", "Rank 0 alone: print, download, evaluate")
    found = reports(tmp_path / "train.py", block, "[names, session.is_main]")
    assert found == [[["train", "test"], True], [["train", "test"], False]]


def test_only_the_device_is_that_of_the_local_rank(tmp_path: Path) -> None:
    """Of a rehearsed machine's GPUs each rank has its own, and torch's is the CPU."""
    block = code("porting.md", "Only the device")
    wanted = "[placement.device.index, str(device)]"
    found = reports(tmp_path / "train.py", block, wanted)
    assert found == [[0, "cpu"], [1, "cpu"]]

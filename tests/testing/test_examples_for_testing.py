"""The example of a user's tests, the notebook, and the page that shows them."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from helpers.programs import run_python

ROOT = Path(__file__).parent.parent.parent
CI = ROOT / "examples" / "ci"


def test_the_workflow_of_the_example_passes(tmp_path: Path) -> None:
    """The example's folder passes by the last line of its workflow file, elsewhere."""
    shutil.copytree(CI, tmp_path, dirs_exist_ok=True)
    lines = (CI / "workflow.yml").read_text().splitlines()
    command = [line.partition("run: ")[2] for line in lines if "run: " in line][-1]
    program, *arguments = shlex.split(command)
    assert program == "python"
    done = run_python(*arguments, "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.parametrize("name", ["train.py", "test_train.py", "workflow.yml"])
def test_the_page_shows_the_example_as_it_is(name: str) -> None:
    """docs/testing.md has each file of the example, word for word."""
    assert f"\n{(CI / name).read_text()}```\n" in (ROOT / "docs/testing.md").read_text()


def printed(book: Any) -> list[str]:
    """Return what each cell of a notebook has printed."""
    cells = [cell.outputs for cell in book.cells if cell.cell_type == "code"]
    return [
        "".join(out.text for out in outputs if out.name == "stdout")
        for outputs in cells
    ]


def numbers(text: str) -> list[float]:
    """Return the numbers in a list of texts."""
    return [float(word) for word in text.split("'")[1::2]]


def alone(steps: int) -> list[float]:
    """Return the losses of the notebook's training in one process, without gpumap."""
    torch.manual_seed(0)
    x = torch.rand(256, 4)
    weights = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.3)
    losses = []
    for _ in range(steps):
        loss = (weights(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_notebook_trains_on_two_devices() -> None:
    """The notebook gets the losses of both ranks; their mean is the whole batch's.

    The outputs that are saved in it are those that it prints today.
    """
    read: Any = nbformat.read  # untyped
    book = read(ROOT / "examples" / "two_devices.ipynb", as_version=4)
    saved = printed(book)
    client: Any = NotebookClient(book, timeout=110)
    client.execute()
    _, plan, _, losses, mean = printed(book)
    assert numbers(mean) == pytest.approx(alone(40)[::10], rel=1e-3, abs=2e-5)
    first, second = losses.splitlines()
    assert first.startswith("cuda:0")
    assert second.startswith("cuda:1")
    assert plan == saved[1]
    assert numbers(saved[3]) == pytest.approx(numbers(losses), rel=1e-3, abs=2e-5)
    assert numbers(saved[4]) == pytest.approx(numbers(mean), rel=1e-3, abs=2e-5)

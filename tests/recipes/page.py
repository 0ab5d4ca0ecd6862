"""The recipes of docs/recipes.md, as scripts that the tests run on two ranks."""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from helpers.jobs import Ended, finish, run, start
from helpers.programs import run_program

__all__ = [
    "code",
    "in_a_shell",
    "on_one_process",
    "on_two_ranks",
    "reports",
    "script",
    "start_values",
    "titles",
    "trained",
    "weights",
]

PAGE = Path(__file__).parent.parent.parent / "docs" / "recipes.md"
REHEARSAL = {"GPUMAP_REHEARSAL": "dgx-a100"}


def titles(language: str = "python") -> list[str]:
    """Return the headings of the recipes in a language."""
    sections = PAGE.read_text().split("\n## ")[1:]
    return [s.partition("\n")[0] for s in sections if f"```{language}\n" in s]


def code(title: str, language: str = "python") -> str:
    """Return the code under a heading of the page; "Recipes" has the common lines."""
    section = rf"(?ms)^#+ {re.escape(title)}$(.*?)(?=^## |\Z)"
    block = rf"(?ms)^```{language}\n(.*?)^```$"
    [found] = re.findall(block, re.findall(section, PAGE.read_text())[0])
    return str(found)


def start_values() -> SimpleNamespace:
    """Return what the common lines define: the model and data before any training."""
    values: dict[str, Any] = {}
    exec(code("Recipes"), values)  # noqa: S102 - the page's own text
    return SimpleNamespace(**values)


def weights(model: nn.Module) -> list[float]:
    """Return all parameters of a model, one after the other."""
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


def trained(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    optimizer: torch.optim.Optimizer | None = None,
) -> list[float]:
    """Train a model on whole batches in this process, by SGD unless said otherwise."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches:
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    return weights(model)


def script(
    folder: Path,
    title: str,
    *wanted: str,
    after: str = "",
    swap: Mapping[str, str] | None = None,
) -> Path:
    """Write the common lines and a recipe as a script that reports what is wanted.

    wanted: expressions, evaluated at the end. after: lines below the recipe. swap: what
    stands in the place of one of the recipe's own lines.
    """
    recipe = code(title)
    for line, other in (swap or {}).items():
        assert recipe.count(line) == 1
        recipe = recipe.replace(line, other)
    # At once with its end: other ranks may write to the same pipe.
    line = f'"REPORT " + json.dumps([{", ".join(wanted)}]) + "\\n"'
    report = f"sys.stdout.write({line}); sys.stdout.flush()"
    # Processes that the script starts import it, and report nothing.
    end = "\n".join(f"    {line}" for line in [*after.splitlines(), report])
    path = folder / "train.py"
    path.write_text(
        f"import json, os, sys\nos.chdir({str(folder)!r})\n"
        f"{code('Recipes')}\n{recipe}\n"
        f'if __name__ == "__main__":\n{end}\n'
    )
    return path


def on_two_ranks(
    folder: Path,
    title: str,
    *wanted: str,
    after: str = "",
    swap: Mapping[str, str] | None = None,
) -> list[list[Any]]:
    """Run a recipe on two ranks of a rehearsed machine; return each rank's report."""
    path = script(folder, title, *wanted, after=after, swap=swap)
    return [_report(ended) for ended in run("", every=REHEARSAL, script=path)]


def on_one_process(
    folder: Path, title: str, *wanted: str, after: str = ""
) -> list[Any]:
    """Run a recipe under python alone, and return its report."""
    path = script(folder, title, *wanted, after=after)
    [ended] = finish([start("", REHEARSAL, script=path)])
    return _report(ended)


def in_a_shell(folder: Path, title: str) -> str:
    """Run a recipe's commands in a folder; return what they print."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["/bin/sh", "-c", code(title, "shell")]
    done = run_program(command, {**REHEARSAL, "PATH": beside}, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def reports(out: str) -> list[list[Any]]:
    """Return the reports in what processes have printed, in the order of their text."""
    return [json.loads(line) for line in sorted(re.findall(r"REPORT (.*)", out))]


def _report(ended: Ended) -> list[Any]:
    """Return a process's report; it must have ended well, without warnings."""
    assert ended.code == 0, ended.out
    assert "Warning" not in ended.out, ended.out
    [report] = reports(ended.out)
    return report

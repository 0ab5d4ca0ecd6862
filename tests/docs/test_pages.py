"""The pages' text: links, tables of contents, code that is shown and not run."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import gpumap

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
# What a newcomer asks, by issue 17; each within two clicks from the first page.
QUESTIONS = {
    "which GPU did rank 3 get": "choosing.md#which-gpu-did-rank-3-get-and-why",
    "my Slurm job hangs": "hangs.md#my-slurm-job-hangs",
    "resume puts everything on GPU 0": "porting.md#checkpoints",
    "how do I test this without GPUs": "quickstart.md#no-gpu",
    "two different cards": "unequal.md#two-different-cards",
    "the best-linked four of those that are free": (
        "choosing.md#the-best-linked-four-of-those-that-are-free"
    ),
    "two models": "porting.md#two-models",
    "only the device": "porting.md#only-the-device",
}


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a language, in braces for a directive."""
    text = page.read_text()
    return re.findall(
        rf"^```{re.escape(language)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub and MyST give a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#{1,3} (.*)$", text, re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.strip().replace(" ", "-") for title in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_page_leads_somewhere(page: Path) -> None:
    """A link to a file names one that is there, and a heading that it has."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lost: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_page_is_in_the_table_of_contents() -> None:
    """The first page's toctrees name every other page once."""
    trees = "".join(blocks(DOCS / "index.md", "{toctree}"))
    lines = [line for line in trees.splitlines() if line and not line.startswith(":")]
    named = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
    assert sorted(named) == sorted(p.stem for p in PAGES if p.stem != "index")


@pytest.mark.parametrize("link", QUESTIONS.values(), ids=QUESTIONS)
def test_the_first_page_answers_a_newcomer(link: str) -> None:
    """Each question of a newcomer is one click from its answer."""
    assert f"]({link})" in (DOCS / "index.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_needs_a_gpu_is_python(page: Path) -> None:
    """A block marked py, which is not run, is Python without a slip."""
    for block in blocks(page, "py"):
        ast.parse(block)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("job", blocks(DOCS / "launchers.md", "shell"))
def test_a_job_file_has_no_slip(job: str) -> None:
    """Bash reads each without an error; it runs nothing."""
    read = ["bash", "-n", "-c", job]
    assert subprocess.run(read, check=False, capture_output=True).stderr == b""


@pytest.mark.parametrize("call", blocks(DOCS / "choosing.md", "{plan}"))
def test_a_drawn_plan_is_one(call: str) -> None:
    """What the page draws is a plan without conflicts."""
    plan = eval(call, {"gpumap": gpumap})  # noqa: S307 - our own page's example
    assert isinstance(plan, gpumap.Plan)
    assert plan.conflicts() == []


def test_the_api_page_has_every_public_name() -> None:
    """What `import gpumap` offers, and nothing else, stands on the page."""
    text = "".join(blocks(DOCS / "api.md", "{eval-rst}"))
    named = re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE)
    assert sorted(named) == dir(gpumap)

"""The tables of docs/cases.md, which the tests run."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/cases.md"


def rows(title: str) -> list[list[str]]:
    """Return the cells of a section's table, without its head."""
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [
        [cell.strip().strip("`") for cell in line[1:-1].split(" | ")]
        for line in lines[2:]
    ]

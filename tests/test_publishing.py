"""What is published says the same everywhere."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("field", ["version", "license"])
def test_the_citation_says_what_the_package_says(field: str) -> None:
    """CITATION.cff has the version and the licence of pyproject.toml."""
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"{field}: {PROJECT[field]}" in lines


def test_the_extra_of_pictures_is_part_of_the_benchmarks_extra() -> None:
    """Who installs the benchmarks can draw plans: both ask for one Matplotlib."""
    extras = PROJECT["optional-dependencies"]
    assert set(extras["plot"]) <= set(extras["bench"])

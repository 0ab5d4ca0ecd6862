"""Run the examples in pages as tests; those in docstrings are pytest's own to run."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine draws examples slowly, and nothing is wrong with that.
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")
# pytest --hypothesis-profile=thorough
settings.register_profile(
    "thorough", settings.get_profile("unhurried"), max_examples=100_000
)

# Sphinx's to run.
collect_ignore = ["docs/conf.py", "docs/extensions"]

try:
    from sybil import Sybil
    from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
except ImportError:  # the session without torch runs tests/mapping only
    pass
else:
    parsers = (PythonCodeBlockParser(), SkipParser())
    here = str(Path(__file__).parent)
    pages = Sybil(parsers, path=here, patterns=["docs/*.md"])
    # README's first example saves a checkpoint.
    readme = Sybil(parsers, path=here, patterns=["README.md"], fixtures=["elsewhere"])
    pytest_collect_file = (pages + readme).pytest()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into an empty folder."""
    monkeypatch.chdir(tmp_path)

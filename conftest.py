"""Run the examples in pages as tests; those in docstrings are pytest's own to run."""

from pathlib import Path

from hypothesis import settings

# pytest --hypothesis-profile=thorough
settings.register_profile("thorough", max_examples=100_000, deadline=None)

try:
    from sybil import Sybil
    from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
except ImportError:  # the session without torch runs tests/mapping only
    pass
else:
    pytest_collect_file = Sybil(
        parsers=[PythonCodeBlockParser(), SkipParser()],
        path=str(Path(__file__).parent),
        patterns=["README.md", "docs/*.md"],
    ).pytest()

"""Run the examples in pages as tests; those in docstrings are pytest's own to run."""

from pathlib import Path

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

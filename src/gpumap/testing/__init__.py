"""For your own tests: rehearse a machine, run ranks within a time, check a plan.

pytest finds the fixtures of gpumap.pytest_plugin by itself. docs/testing.md has whole
tests to copy.
"""

from gpumap.testing.plans import assert_plan
from gpumap.testing.ranks import RunRanks, run_ranks
from gpumap.testing.rehearsing import Rehearse, rehearse

__all__ = ["Rehearse", "RunRanks", "assert_plan", "rehearse", "run_ranks"]

"""The fixtures, in runs of pytest as a user's."""

import pytest

pytest_plugins = ["pytester"]

USED = """
    import os

    import pytest

    import gpumap
    from gpumap.testing import assert_plan

    def placed():
        with gpumap.session() as opened:
            return opened.placement

    def test_on_a_machine(gpumap_rehearse, gpumap_ranks):
        [node] = gpumap_rehearse("dgx-a100")
        assert len(node.devices) == 8
        assert_plan(gpumap_ranks(placed, gpus=[6, 2], timeout=100), [6, 2])
        assert "CUDA_VISIBLE_DEVICES" not in os.environ

    def test_on_a_node(gpumap_rehearse, gpumap_ranks):
        card = gpumap.Device(kind="cuda", index=0, uuid="GPU-4000")
        gpumap_rehearse(gpumap.Node(hostname="n2", devices=[card]))
        assert_plan(gpumap_ranks(placed, timeout=100), ["GPU-4000"])

    def test_without_a_time(gpumap_ranks):
        with pytest.raises(gpumap.SessionError, match="timeout=0.0 is not a time"):
            gpumap_ranks(placed)
"""
ORDER = """
    import os

    def test_rehearses(monkeypatch, gpumap_rehearse):
        gpumap_rehearse("dgx-a100")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,2")

    def test_is_as_before():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        assert "GPUMAP_REHEARSAL" not in os.environ
"""
UNUSED = """
    import sys

    def test_nothing_is_imported():
        ours = {name for name in sys.modules if name.partition(".")[0] == "gpumap"}
        assert ours == {"gpumap", "gpumap.loading", "gpumap.pytest_plugin"}
        assert not sys.modules.keys() & {"torch", "pydantic"}
"""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start from an environment with a mask, and nothing else of gpumap's."""
    monkeypatch.delenv("GPUMAP_REHEARSAL", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")


def test_a_test_takes_machine_and_ranks_from_fixtures(
    pytester: pytest.Pytester,
) -> None:
    """Ranks of a rehearsed machine return their placement.

    A call that says no time-out has gpumap_timeout, here one that is no time.
    """
    pytester.makepyfile(USED)
    pytester.makeini("[pytest]\ngpumap_timeout = 0\n")
    done = pytester.runpytest_subprocess("-p", "no:randomly", timeout=110)
    done.assert_outcomes(passed=3)


def test_a_rehearsal_ends_with_its_test(pytester: pytest.Pytester) -> None:
    """What monkeypatch sets in a rehearsal is undone before it, in either order."""
    pytester.makepyfile(ORDER)
    pytester.runpytest("-p", "no:randomly").assert_outcomes(passed=2)


def test_the_plugin_imports_nothing_until_a_fixture_is_used(
    pytester: pytest.Pytester,
) -> None:
    """A run of pytest that uses no fixture imports neither torch nor pydantic."""
    pytester.makepyfile(UNUSED)
    pytester.runpytest_subprocess(timeout=110).assert_outcomes(passed=1)

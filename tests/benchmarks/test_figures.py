"""Sizes and bandwidths, against what nccl-tests printed for others."""

from typing import Any

import pytest
from allreduce import main
from parts.figures import Outcome, Row, Timing, Way, bus_factor, ratios
from parts.options import Options

from gpumap.errors import SessionError


def options(**given: Any) -> Options:
    """Return options for one strategy."""
    return Options(strategies=("local_rank",), **given)


def outcome(world_size: int) -> Outcome:
    """Return an outcome with no figures."""
    return Outcome(
        options=options(),
        world_size=world_size,
        backend="gloo",
        device="cpu",
        torch="2.13.0",
        rehearsal=None,
        ways=(),
        refused={},
        limits={},
    )


def row(size: int, *seconds: float) -> Row:
    """Return a row whose two timings are alike."""
    timing = Timing(seconds=seconds, wrong=0)
    return Row(size=size, count=size // 4, out_of_place=timing, in_place=timing)


@pytest.mark.parametrize(
    ("size", "microseconds", "busbw"),
    [
        (32768, 18.66, 3.07),
        (262144, 19.54, 23.48),
        (4194304, 53.24, 137.87),
        (16777216, 121.33, 242.00),
    ],
)
def test_busbw_is_what_nccl_tests_prints(
    size: int, microseconds: float, busbw: float
) -> None:
    """The busbw is as printed for eight ranks in kvcache-ai/Mooncake #3484.

    The printed times are rounded.
    """
    seconds = microseconds / 1e6
    found = outcome(8).busbw(row(size, seconds), seconds)
    assert found == pytest.approx(busbw, abs=0.02)


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_the_factor_of_an_all_reduce(ranks: int, factor: float) -> None:
    """The bus factor is 2 (n - 1) / n: a single rank moves nothing."""
    assert bus_factor(ranks) == factor


def test_sizes_double_from_the_smallest_to_the_largest() -> None:
    """-b 8 -e 128M -f 2 is the usual command, and prints 25 rows."""
    counts = options(minbytes=8, maxbytes=128 * 2**20).counts()
    assert (len(counts), counts[0], counts[-1]) == (25, 2, 33554432)


def test_the_sizes_of_a_cpu_end_where_a_run_stays_short() -> None:
    """The default sizes are 4 KiB to 256 MiB on a CPU, to 1 GiB on an accelerator."""
    assert len(options().on("cpu").counts()) == 17
    assert options().on("cuda").counts()[-1] * 4 == 2**30


def test_a_step_that_overshoots_leaves_the_largest_size_out() -> None:
    """As in nccl-tests, -f 3 from 4 K measures 4 K, 12 K and 36 K, but not 64 K."""
    counts = options(minbytes=4096, maxbytes=65536, factor=3).counts()
    assert counts == [1024, 3072, 9216]


def test_sizes_below_an_element_are_one_element() -> None:
    """1, 2 and 4 bytes are one float, which is measured once."""
    assert options(minbytes=1, maxbytes=16).counts() == [1, 2, 4]


def test_large_sizes_are_repeated_less_on_a_cpu() -> None:
    """On a CPU large sizes are repeated less; elsewhere as often as asked for."""
    asked = options(iterations=20, warm_ups=5)
    assert asked.repeats(1024, "cpu") == (5, 20)
    assert asked.repeats(2**26, "cpu") == (1, 2)
    assert asked.repeats(2**26, "cuda") == (5, 20)


def test_a_ratio_is_of_the_medians() -> None:
    """Of 1, 2, 9 seconds by gpumap and 1, 3, 4 by hand it is 3 / 2."""
    ours, theirs = Way(rows=(row(4, 1, 2, 9),)), Way(rows=(row(4, 1, 3, 4),))
    assert ratios(ours, theirs) == [1.5, 1.5]


def test_the_smallest_size_is_not_above_the_largest() -> None:
    """A smallest size above the largest is an error that shows how to write both."""
    with pytest.raises(SessionError, match="no size from 8192 to 4096") as caught:
        options(minbytes=8192, maxbytes=4096)
    assert "-b 4K -e 256M" in str(caught.value)


@pytest.mark.parametrize("size", ["4KB", "K", "-", "4.5M", ""])
def test_a_size_that_is_none_is_refused(
    size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid size is an error that shows what a size looks like."""
    with pytest.raises(SystemExit, match="2"):
        main(["-b", size])
    assert "is not a size like 4096, 4K or 256M" in capsys.readouterr().err

"""What a job's log says of its start."""

import logging
import os
import re

import pytest

import gpumap
from helpers.jobs import WORKER, run

INSIDE = WORKER.with_name("inside.py")


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_rank_0_says_in_one_line_who_trains_where(level: str) -> None:
    """At INFO a job has one line of rank 0's; at DEBUG each rank says why as well."""
    every = {"GPUMAP_REHEARSAL": "dgx-a100", "LEVEL": level, "GPUMAP_GPUS": "2,5"}
    outs = [rank.out for rank in run("logged", script=INSIDE, every=every)]
    line = (
        'torch variables: 2 ranks on 1 node; strategy "explicit"; on dgx-a100: '
        "rank 0 on cuda:2 (GPU-a1000002…), rank 1 on cuda:5 (GPU-a1000005…)"
    )
    assert [out.count("INFO:gpumap") for out in outs] == [1, 0]
    assert [out.count(line) for out in outs] == [1, 0]
    why = r"DEBUG:.*:rank %d of 2 \(local rank %d\) trains on cuda:"
    for number, out in enumerate(outs):
        found = re.findall(why % (number, number), out)
        assert len(found) == (level == "DEBUG")


def test_nothing_is_coloured(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What gpumap logs has no escape sequence in it, whatever the terminal is."""
    monkeypatch.setitem(os.environ, "FORCE_COLOR", "1")
    with caplog.at_level(logging.DEBUG, "gpumap"), gpumap.session(device="cpu"):
        pass
    assert "single process: 1 rank on 1 node; strategy " in caplog.text
    assert all("\x1b" not in record.getMessage() for record in caplog.records)

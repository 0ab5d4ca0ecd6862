"""Misspelt arguments, and those of other libraries: what to write instead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn

import gpumap

CALLS: dict[str, Callable[..., Any]] = {
    "session": gpumap.session,
    "start": gpumap.start,
    "ddp_session": lambda **how: gpumap.ddp_session(nn.Linear(1, 1), **how),
    "spawn": lambda **how: gpumap.spawn(train, **how),
}


def train(factor: float = 1.0) -> float:
    """Return a number."""
    return factor


@pytest.mark.parametrize(
    ("call", "name", "instead"),
    [
        ("session", "start_timout", "Did you mean start_timeout=…?"),
        ("start", "overscribe", "Did you mean oversubscribe=…?"),
        ("start", "strateg", "Did you mean strategy=…?"),
        ("ddp_session", "find_unused_parameter", "Did you mean find_unused_param"),
        ("ddp_session", "bucket_cap", "Did you mean bucket_cap_mb=…?"),
        ("ddp_session", "starttimeout", "Did you mean start_timeout=…?"),
        ("spawn", "gpsu", "Did you mean gpus=…?"),
        ("spawn", "start_timout", "Did you mean start_timeout=…?"),
        ("session", "static_graph", "It is an argument of ddp_session(model, …)"),
        ("session", "balance", "ddp_session(model, balance=…) takes it"),
        ("session", "model", "Write ddp_session(model), or session.wrap(model)"),
        ("session", "devices", "Write gpus=[0, 1] for the devices"),
        ("ddp_session", "devices", "Write gpus=[0, 1] for the devices"),
        ("session", "nprocs", "torchrun --nproc-per-node 2 does, or gpumap.spawn("),
        ("start", "num_processes", "torchrun --nproc-per-node 2 does, or gpumap.sp"),
        ("ddp_session", "rank", "pass launch=gpumap.Launch(…) with all numbers."),
        ("session", "args", "Only gpumap.spawn() calls a function"),
        ("spawn", "devices", "Write nprocs=2, or name the devices: gpus=[0, 1]."),
        ("spawn", "num_processes", "Write nprocs=2."),
        ("spawn", "join", "Leave it out: spawn() waits for its processes."),
        ("session", "q", "It takes strategy, gpus, scores, device, "),
    ],
)
def test_a_name_that_is_not_taken_is_a_type_error_that_says_what_to_write(
    call: str, name: str, instead: str
) -> None:
    """The TypeError comes at the call, before a session is entered."""
    with pytest.raises(TypeError) as caught:
        CALLS[call](**{name: 2})
    assert instead in str(caught.value)
    assert repr(name) in str(caught.value)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("gpus", "instead"),
    [
        ("0,1", "Write a list: gpus=[0, 1]."),
        ("GPU-5c3a, 1", "Write a list: gpus=['GPU-5c3a', 1]."),
        ("-1", "To use all visible devices, leave gpus out."),
        (-1, "To use all visible devices, leave gpus out."),
        (0, "Write a list: gpus=[0]."),
        (
            2,
            "For the device 2 write gpus=[2]; to train on 2 devices, start as many "
            "processes: torchrun --nproc-per-node 2, or spawn(…, nprocs=2).",
        ),
    ],
)
def test_a_text_or_a_number_of_gpus_is_told_as_a_list(gpus: Any, instead: str) -> None:
    """What other libraries take for gpus is a DeviceError that says what to write."""
    with pytest.raises(gpumap.DeviceError) as caught, gpumap.session(gpus=gpus):
        pass
    assert caught.value.happened == f"gpus={gpus!r} is not a list of devices."
    assert caught.value.hint == instead
    with pytest.raises(gpumap.DeviceError) as caught:
        gpumap.spawn(train, gpus=gpus)
    assert caught.value.hint == instead


def test_a_functions_own_arguments_are_not_taken_for_spawns() -> None:
    """A name that the function takes is its own, also if another library has it."""

    def main(devices: int) -> int:
        return devices

    with pytest.raises(gpumap.SessionError, match="main cannot be called with"):
        gpumap.spawn(main, devices=2, factor=3)


@pytest.mark.parametrize("call", [gpumap.session, gpumap.start])
def test_what_has_no_name_is_told(call: Callable[..., Any]) -> None:
    """A model, a decorated function or a list without a name is a TypeError."""
    for value, instead in (
        (nn.Linear(1, 1), "takes no model. Write ddp_session(model), or session.wrap"),
        (train, "takes named arguments only. As a decorator write @gpumap.session()"),
        ([0, 1], "takes named arguments only: write gpus=[0, 1], for instance."),
    ):
        with pytest.raises(TypeError) as caught:
            call(value)
        assert instead in str(caught.value)


SNIPPET = """\
import gpumap
from torch import nn
gpumap.session(start_timout=3)
gpumap.start(gpu=[0])
gpumap.ddp_session(nn.Linear(1, 1), find_unused_parameter=True)
with gpumap.session() as s:
    s.wrap(nn.Linear(1, 1), static_graf=True)
    s.wrap(nn.Linear(1, 1), static_graph=True)
    rank: int = s.local_rank + s.node_rank
gpumap.start(gpus=[0]).close()
"""


@pytest.mark.timeout(400)
def test_a_misspelt_argument_is_a_type_error(tmp_path: Path) -> None:
    """A checker finds the misspelt names of lines 3, 4, 5 and 7, and no other error."""
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    script, settings = tmp_path / "script.py", tmp_path / "mypy.ini"
    script.write_text(SNIPPET)
    settings.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    out, _, code = api.run(
        [
            *("--config-file", str(settings), "--strict", "--follow-imports=silent"),
            *("--cache-dir", str(tmp_path / "cache"), str(script)),
        ]
    )
    errors = [line for line in out.splitlines() if "error:" in line]
    assert [line.partition("script.py:")[2][:1] for line in errors] == list("3457")
    assert all('Unexpected keyword argument "' in line for line in errors), out
    assert code == 1

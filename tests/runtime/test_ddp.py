"""Sessions in this process: a world of one, and the order of the steps."""

import datetime as dt
import os
import pickle
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gpumap
from gpumap.rendezvous.model_digest import Likeness
from gpumap.runtime import wrapping


@pytest.fixture(autouse=True)
def leak_guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear the launcher's variables; assert that no group or variable is left."""
    for name in ("RANK", "WORLD_SIZE", "GPUMAP_REHEARSAL", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert not dist.is_initialized()
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_a_session_in_a_session_is_an_error() -> None:
    """A session inside a session is an error, and the outer session goes on."""
    with gpumap.ddp_session(nn.Linear(1, 1)) as m:
        with (
            pytest.raises(gpumap.SessionError, match="already open in this process"),
            gpumap.session(),
        ):
            pass
        assert gpumap.current().world_size == 1
        m(torch.ones(1, 1)).sum().backward()


def test_current_is_the_session_and_only_inside() -> None:
    """current() returns the open session, and is an error outside of one."""
    with gpumap.session() as opened:
        assert gpumap.current() is opened
        assert opened.device == torch.device("cpu")
        assert (opened.rank, opened.placement.device.kind) == (0, "cpu")
    with pytest.raises(gpumap.SessionError, match="no session is open"):
        gpumap.current()


def test_after_an_error_the_next_session_opens() -> None:
    """After an error in a body or in a placement the next session opens."""
    with pytest.raises(KeyError) as caught, gpumap.session():
        raise KeyError("mine")
    assert caught.value.args == ("mine",)
    assert "gpumap: raised on rank 0" in caught.value.__notes__[0]
    with pytest.raises(gpumap.DeviceError), gpumap.session(gpus=[0]):
        pass
    with gpumap.session() as opened:
        assert opened.rank == 0


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"start_timeout": 0}, "start_timeout=0 is not a time."),
        ({"start_timeout": -1.0}, "start_timeout=-1.0 is not a time."),
        ({"timeout": float("inf")}, "timeout=inf is not a time."),
        ({"timeout": True}, "timeout=True is not a time."),
        ({"timeout": "5"}, "timeout='5' is not a time."),
        (
            {"timeout": dt.timedelta(0)},
            "timeout=datetime.timedelta(0) is not a time.",
        ),
        ({"device_ids": [0]}, "device_ids cannot be passed: gpumap decides it."),
    ],
    ids=str,
)
def test_wrong_arguments_are_told(how: dict[str, Any], said: str) -> None:
    """A wrong argument is a SessionError that quotes it."""
    with (
        pytest.raises(gpumap.SessionError) as caught,
        gpumap.ddp_session(nn.Linear(1, 1), **how),
    ):
        pass
    assert caught.value.happened == said


def test_times_are_seconds_or_timedeltas() -> None:
    """Time limits may be timedeltas."""
    five = dt.timedelta(seconds=5)
    with gpumap.session(timeout=five, start_timeout=five):
        pass


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.ReLU(), "ReLU has no parameter that requires a gradient."),
        ([nn.Linear(1, 1)], "a list is not a model to wrap."),
        (
            nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)),
            "Sequential has SyncBatchNorm layers; this runs on the CPU.",
        ),
    ],
    ids=["no parameters", "a list", "SyncBatchNorm"],
)
def test_models_that_cannot_be_wrapped_are_told(model: Any, said: str) -> None:
    """A model that DDP cannot wrap is an error with a hint of what to do."""
    with pytest.raises(gpumap.SessionError) as caught, gpumap.ddp_session(model):
        pass
    assert caught.value.happened == said
    assert caught.value.hint


def test_a_wrapped_model_is_not_wrapped_again() -> None:
    """A DDP model is not wrapped again, even after its session; m.module can be."""
    with gpumap.ddp_session(nn.Linear(1, 1)) as m:
        pass
    with (
        pytest.raises(gpumap.SessionError, match="a DistributedDataParallel is not"),
        gpumap.ddp_session(m),
    ):
        pass
    with gpumap.ddp_session(m.module) as again:
        again(torch.ones(1, 1))


def test_after_the_session_the_wrapped_model_says_that_it_is_over() -> None:
    """After the session calling the DDP model is an error; state_dict() still works."""
    with gpumap.ddp_session(nn.Linear(1, 1)) as m:
        m(torch.ones(1, 1))
    with pytest.raises(gpumap.SessionError, match="the session is over"):
        m(torch.ones(1, 1))
    assert list(m.state_dict()) == ["module.weight", "module.bias"]
    pickle.loads(pickle.dumps(m.forward))  # noqa: S301 - made in this line


def test_ddp_options_pass_through() -> None:
    """DDP gets its options as written; one that it does not have is a TypeError."""
    options: Any = {"static_graph": True, "gradient_as_bucket_view": True}
    with gpumap.ddp_session(nn.Linear(1, 1), **options) as m:
        assert m.static_graph
        assert m.gradient_as_bucket_view
    with (
        pytest.raises(TypeError, match="speed"),
        gpumap.ddp_session(nn.Linear(1, 1), speed=9),  # type: ignore[call-arg]
    ):
        pass


def test_naming_gpus_on_a_machine_without_is_an_error() -> None:
    """A session with gpus is an error on the CPU, also if device="cpu" asks for it."""
    with (
        pytest.raises(gpumap.DeviceError, match="no device 2, 3"),
        gpumap.session(gpus=[2, 3]),
    ):
        pass
    with (
        pytest.raises(gpumap.DeviceError, match="contradict each other"),
        gpumap.session(gpus=[0], device="cpu"),
    ):
        pass


def test_a_described_node_is_not_pretended() -> None:
    """A session with node= is an error if the machine lacks the described devices."""
    with (
        pytest.raises(gpumap.DeviceError, match="torch counts 0 accelerators"),
        gpumap.session(node=gpumap.machine("rtx3090x4")),
    ):
        pass


def test_device_cpu_ignores_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """device="cpu" overrides GPUMAP_REHEARSAL."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "dgx-a100")
    with gpumap.session(device="cpu") as opened:
        assert opened.placement.device.kind == "cpu"


def test_the_device_is_current_before_the_group_and_the_wrap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order is set_device, init with device_id, DDP with device_ids, synchronize.

    The test machines have no GPU: torch's calls are replaced and recorded.
    """
    calls: list[tuple[str, Any]] = []
    card = gpumap.machine("rtx3090x4")
    accelerator = types.SimpleNamespace(
        current_accelerator=lambda: None,
        device_count=lambda: 4,
        set_device_index=lambda index: calls.append(("set_device", index)),
        synchronize=lambda device: calls.append(("synchronize", str(device))),
    )
    model = nn.Linear(1, 1)

    real_init, real_destroy = dist.init_process_group, dist.destroy_process_group

    def init(backend: str, **how: Any) -> None:
        calls.append(("init", (backend, how["device_id"])))
        real_init("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def destroy() -> None:
        calls.append(("destroy", None))
        real_destroy()

    def wrap(module: nn.Module, **how: Any) -> Any:
        calls.append(("wrap", (module is model, how["device_ids"])))
        return types.SimpleNamespace(module=module)

    def move(_: nn.Module, device: torch.device) -> nn.Module:
        calls.append(("move", str(device)))
        return model

    wrapping.import_what_ddp_needs()  # it reads the real torch.accelerator
    monkeypatch.setattr(torch, "accelerator", accelerator)
    monkeypatch.setattr(
        torch._C,  # noqa: SLF001 - a build for CUDA asks the driver
        "_cuda_hasPrimaryContext",
        lambda _: False,
        raising=False,
    )
    monkeypatch.setattr(dist, "is_backend_available", lambda _: True)
    monkeypatch.setattr(dist, "init_process_group", init)
    monkeypatch.setattr(dist, "destroy_process_group", destroy)
    monkeypatch.setattr(wrapping, "DistributedDataParallel", wrap)
    monkeypatch.setattr(nn.Linear, "to", move)
    monkeypatch.setattr(wrapping, "likeness_checked", lambda *_: Likeness())
    with gpumap.ddp_session(model, node=card, gpus=[3, 1]):
        calls.append(("body", None))
    assert calls == [
        ("set_device", 3),
        ("init", ("nccl", torch.device("cuda:3"))),
        ("move", "cuda:3"),
        ("wrap", (True, [3])),
        ("body", None),
        ("synchronize", "cuda:3"),
        ("destroy", None),
    ]


class UnprintableError(Exception):
    """An error whose text fails."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError


@pytest.mark.parametrize("error", [ValueError("bad \udcff name"), UnprintableError()])
def test_an_error_that_cannot_be_written_leaves_unchanged(error: Exception) -> None:
    """An error whose text cannot be printed leaves unchanged, and the group is gone."""
    with pytest.raises(type(error)) as caught, gpumap.session():
        raise error
    assert caught.value is error
    assert not dist.is_initialized()


def test_the_sessions_store_has_keys_of_the_users_own() -> None:
    """A user's keys on session.store never clash with gpumap's own."""
    with gpumap.session() as opened:
        for name in ("end", "fault", "left", "verdict", "all left"):
            opened.store.set(name, "mine")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"backend": 5}, "backend=5 is a int."),
        ({"device": torch.device("cpu")}, "device=device(type='cpu') is a device."),
        ({"device": None}, "device=None is a NoneType."),
        ({"launch": {}}, "launch={} is a dict."),
        ({"node": 3}, "node=3 is a int."),
        ({"claim": "yes"}, "claim='yes' is a str."),
        ({"bind": "NUMA"}, "bind='NUMA' is unknown."),
        ({"bind": True}, "bind=True is unknown."),
        ({"timeout": 1e10}, "timeout=10000000000.0 is not a time."),
        ({"start_timeout": 10**400}, f"start_timeout={10**400} is not a time."),
    ],
    ids=[
        *("backend", "device", "no device", "launch", "node"),
        *("claim", "numa", "true", "long", "longer"),
    ],
)
def test_arguments_of_another_type_are_told(how: dict[str, Any], said: str) -> None:
    """An argument of a wrong type or size is a SessionError that quotes it."""
    with pytest.raises(gpumap.SessionError) as caught, gpumap.session(**how):
        pass
    assert caught.value.happened == said


def test_a_balance_of_another_type_is_told() -> None:
    """A number is no Balance."""
    batch: Any = 256
    wrapped = gpumap.ddp_session(nn.Linear(1, 1), balance=batch)
    with pytest.raises(gpumap.SessionError, match="balance=256 is a int"), wrapped:
        pass


def test_a_rehearsed_machine_must_have_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """device="xpu" is an error in a rehearsal of a DGX A100."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "dgx-a100")
    with (
        pytest.raises(gpumap.DeviceError, match="device='xpu' was asked for"),
        gpumap.session(device="xpu"),
    ):
        pass

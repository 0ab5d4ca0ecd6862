"""How values travel between spawn and its ranks."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

from gpumap.spawning import pickling
from gpumap.spawning.pickling import dumps, loads


@pytest.mark.parametrize("pickler", ["pickle", "cloudpickle"])
def test_values_come_back_alike(pickler: str) -> None:
    """Models and tensors survive pickling, and lambdas do by cloudpickle."""
    model = nn.Linear(2, 3)
    there: Any = loads(dumps((model, torch.ones(2, requires_grad=True), 5), pickler))
    assert torch.equal(there[0].weight, model.weight)
    assert isinstance(there[0].weight, nn.Parameter)
    assert there[1].requires_grad
    assert there[2] == 5
    if pickler == "cloudpickle":
        assert loads(dumps(lambda: 6, pickler))() == 6


@pytest.mark.parametrize("pickler", ["pickle", "cloudpickle"])
def test_a_tensor_on_an_accelerator_travels_as_a_copy_on_the_cpu(
    pickler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tensor on an accelerator is sent as a copy on the CPU, with a warning.

    Loading it on its device would open a context there in every process. The test
    machines have no GPU: tensors of six elements stand for those on one.
    """
    monkeypatch.setattr(pickling, "is_on_accelerator", lambda t: t.numel() == 6)
    model = nn.Linear(2, 3)
    leaf = torch.arange(6.0, requires_grad=True)
    with caplog.at_level(logging.WARNING, "gpumap"):
        there: Any = loads(dumps({"model": model, "leaf": leaf}, pickler))
    assert torch.equal(there["model"].weight, model.weight)
    assert isinstance(there["model"].weight, nn.Parameter)
    assert torch.equal(there["leaf"], leaf)
    assert there["leaf"].requires_grad
    [record] = caplog.records
    assert "tensors on cpu went to another process as copies on" in record.message


def test_what_is_on_an_accelerator() -> None:
    """Tensors on the CPU and on torch's meta device are not on an accelerator."""
    assert not pickling.is_on_accelerator(torch.ones(1))
    assert not pickling.is_on_accelerator(torch.ones(1, device="meta"))

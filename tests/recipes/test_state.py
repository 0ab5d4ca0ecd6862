"""Recipes of saving and going on: what was interrupted ends as if it had not been."""

from pathlib import Path

import pytest
import torch

from recipes.page import (
    in_a_shell,
    on_one_process,
    on_two_ranks,
    reports,
    script,
    start_values,
    trained,
)

WEIGHTS = "nn.utils.parameters_to_vector(model.parameters()).tolist()"
DIES = """\
import signal
from torch.optim.optimizer import register_optimizer_step_post_hook
steps = []
def step(*_):
    steps.append(None)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and os.environ["RANK"] == "1" and len(steps) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
register_optimizer_step_post_hook(step)
train(4)
"""


def by_adam(steps: int) -> list[float]:
    """Return the weights after some steps of Adam on the whole batch."""
    given = start_values()
    optimizer = torch.optim.Adam(given.model.parameters(), lr=0.1)
    return trained(given.model, [(given.inputs, given.targets)] * steps, optimizer)


def test_one_rank_makes_what_all_load(tmp_path: Path) -> None:
    """The file is missing for rank 0 alone, and both ranks load what it has written."""
    found = on_two_ranks(tmp_path, "Rank 0 goes first", "missing", "data.tolist()")
    data = start_values().inputs.tolist()
    assert found == [[True, data], [False, data]]


def test_a_resumed_training_ends_as_one_without_a_break(tmp_path: Path) -> None:
    """Two epochs and two more from the checkpoint are four epochs."""
    title = "Checkpoint and resume"
    for [found] in on_two_ranks(tmp_path, title, WEIGHTS, after="train(2)"):
        assert found == pytest.approx(by_adam(2), abs=1e-5)
    for [found] in on_two_ranks(tmp_path, title, WEIGHTS, after="train(4)"):
        assert found == pytest.approx(by_adam(4), abs=1e-5)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["epoch"] == 4
    assert list(saved["model"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_training_goes_on_after_a_rank_was_killed(tmp_path: Path) -> None:
    """After a kill, torchrun starts all ranks, and they go on from the checkpoint."""
    count = 'os.environ["TORCHELASTIC_RESTART_COUNT"]'
    wanted = (count, "len(steps)", WEIGHTS)
    script(tmp_path, "Checkpoint and resume", *wanted, after=DIES)
    found = reports(in_a_shell(tmp_path, "Elastic restart"))
    assert len(found) == 2
    for restarts, steps, ended in found:
        assert restarts == "1"
        assert steps < 4
        assert ended == pytest.approx(by_adam(4), abs=1e-5)


def test_a_distributed_checkpoint_is_read_by_another_number_of_ranks(
    tmp_path: Path,
) -> None:
    """One process makes the second step after the first one's save, as two ranks do."""
    title = "Distributed checkpoint"
    (two := tmp_path / "two").mkdir()
    (one := tmp_path / "one").mkdir()
    for [found] in on_two_ranks(two, title, WEIGHTS):
        assert found == pytest.approx(by_adam(2), abs=1e-5)
    after = """\
with gpumap.ddp_session(model) as m:
    optimizer = torch.optim.Adam(m.parameters(), lr=0.1)
    optimizer.zero_grad()
    load(m, optimizer, "../two/epoch-0")
    F.mse_loss(m(inputs), targets).backward()
    optimizer.step()
"""
    [found] = on_one_process(one, title, WEIGHTS, after=after)
    assert found == pytest.approx(by_adam(2), abs=1e-5)


def test_fsdp_reads_a_distributed_checkpoint_of_ddp(tmp_path: Path) -> None:
    """Sharded weights are filled from what DDP saved after its first step."""
    after = """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
with gpumap.session() as s:
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    load(model, optimizer, "epoch-0")
    whole = [p.full_tensor().flatten() for p in model.parameters()]
"""
    for [found] in on_two_ranks(
        tmp_path, "Distributed checkpoint", "torch.cat(whole).tolist()", after=after
    ):
        assert found == pytest.approx(by_adam(1), abs=1e-5)

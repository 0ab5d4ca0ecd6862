"""Recipes of training: two ranks do what one process does on the whole batch."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from recipes.page import on_two_ranks, start_values, trained, weights

WEIGHTS = "nn.utils.parameters_to_vector(model.parameters()).tolist()"


def one_step() -> list[float]:
    """Return the weights after a step of SGD on the whole batch."""
    given = start_values()
    return trained(given.model, [(given.inputs, given.targets)])


@pytest.mark.parametrize(
    "title",
    [
        "Gradient accumulation",
        "torch.compile before the wrap",
        "torch.compile after the wrap",
    ],
)
def test_a_step_is_that_of_one_process(tmp_path: Path, title: str) -> None:
    """In parts or compiled, a step of two ranks is one on the whole batch."""
    for [found] in on_two_ranks(tmp_path, title, WEIGHTS):
        assert found == pytest.approx(one_step(), abs=1e-6)


@pytest.mark.parametrize(
    ("title", "line", "model", "times"),
    [
        ("Gradient accumulation", "    s = gpumap.current()\n", "m", 1),
        ("Two models: a GAN", "    torch.manual_seed(s.rank)", "d", 2),
    ],
    ids=["accumulation", "GAN"],
)
def test_gradients_that_nobody_uses_yet_are_not_sent(
    tmp_path: Path, title: str, line: str, model: str, times: int
) -> None:
    """Four parts are reduced once, and a discriminator once in each of two steps."""
    counted = f"""\
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    sent = []
    def counted(group, bucket):
        sent.append(bucket.index())
        return default_hooks.allreduce_hook(group, bucket)
    {model}.register_comm_hook(None, counted)
"""
    found = on_two_ranks(tmp_path, title, "len(sent)", swap={line: counted + line})
    assert found == [[times]] * 2


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
def test_mixed_precision_keeps_weights_in_float32(tmp_path: Path, dtype: str) -> None:
    """Outputs are of half precision, weights of float32 and as without, nearly."""
    given = start_values()
    loss = (given.model(given.inputs) - given.targets).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(given.model.parameters(), 1.0)
    torch.optim.SGD(given.model.parameters(), lr=0.1).step()
    for output, parameter, found in on_two_ranks(
        tmp_path,
        "Mixed precision",
        "str(output.dtype)",
        "str(model[0].weight.dtype)",
        WEIGHTS,
        swap={"torch.bfloat16": dtype},
    ):
        assert (output, parameter) == (dtype, "torch.float32")
        assert found == pytest.approx(weights(given.model), abs=2e-3)


def test_a_step_with_an_infinite_gradient_is_left_out_by_all(tmp_path: Path) -> None:
    """If rank 1 alone has an infinite loss in float16, no rank makes the step."""
    loss = "loss = F.mse_loss(output.float(), y)"
    for [found] in on_two_ranks(
        tmp_path,
        "Mixed precision",
        WEIGHTS,
        swap={
            "dtype = torch.bfloat16": "dtype = torch.float16",
            loss: f"{loss} * (float('inf') if s.rank else 1)",
        },
    ):
        assert found == weights(start_values().model)


def test_the_samples_are_shuffled_anew_in_each_epoch(tmp_path: Path) -> None:
    """Two epochs take the orders of randperm with seeds 0 and 1, dealt among ranks."""
    given = start_values()
    batches = [
        (given.inputs[part], given.targets[part])
        for epoch in range(2)
        for part in torch.randperm(
            32, generator=torch.Generator().manual_seed(epoch)
        ).chunk(4)
    ]
    expected = trained(given.model, batches)
    for [found] in on_two_ranks(tmp_path, "Each sample once in an epoch", WEIGHTS):
        assert found == pytest.approx(expected, abs=1e-6)


def test_ranks_draw_each_its_own_numbers_after_the_model(tmp_path: Path) -> None:
    """Both ranks have the model of seed 17, and rank r the numbers of seed 17 + r."""
    torch.manual_seed(17)
    model = weights(nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)))
    wanted = (WEIGHTS, "noise.tolist()", "random.random()", "np.random.rand()")
    for rank, found in enumerate(on_two_ranks(tmp_path, "Seeds by rank", *wanted)):
        torch.manual_seed(17 + rank)
        assert found == [
            model,
            torch.rand(4).tolist(),
            random.Random(17 + rank).random(),  # noqa: S311 - no secret
            np.random.RandomState(17 + rank).rand(),
        ]


def test_teachers_are_alike_on_all_ranks(tmp_path: Path) -> None:
    """A teacher is 0.9 of itself and 0.1 of each new student, the first one's copy."""
    given = start_values()
    teacher = start_values().model
    for step in range(3):
        with torch.no_grad():
            wanted = (given.targets + teacher(given.inputs)) / 2
        trained(given.model, [(given.inputs, wanted)])
        kept = 0.9 if step else 0.0
        with torch.no_grad():
            for old, new in zip(
                teacher.parameters(), given.model.parameters(), strict=True
            ):
                old.copy_(kept * old + (1 - kept) * new)
    own = "nn.utils.parameters_to_vector(teacher.parameters()).tolist()"
    for found, taught in on_two_ranks(tmp_path, "EMA teacher", WEIGHTS, own):
        assert found == pytest.approx(weights(given.model), abs=1e-6)
        assert taught == pytest.approx(weights(teacher), abs=1e-6)


def test_a_gan_trains_as_in_one_process(tmp_path: Path) -> None:
    """Both models are those of one process that has all images and all noise."""
    given = start_values()
    generator, discriminator = nn.Linear(2, 4), nn.Linear(4, 1)
    of_g = torch.optim.SGD(generator.parameters(), lr=0.1)
    of_d = torch.optim.SGD(discriminator.parameters(), lr=0.1)
    noise = []
    for rank in range(2):
        torch.manual_seed(rank)
        noise.append([torch.rand(8, 2), torch.rand(8, 2)])
    ones, loss = torch.ones(16, 1), functional.binary_cross_entropy_with_logits
    for step in range(2):
        # The step's images are its half of those that each rank has.
        real = torch.cat([given.inputs[rank::2].chunk(2)[step] for rank in range(2)])
        fake = generator(torch.cat([noise[rank][step] for rank in range(2)]))
        of_d.zero_grad()
        of_real, of_fake = discriminator(real), discriminator(fake.detach())
        ((loss(of_real, ones) + loss(of_fake, 0 * ones)) / 2).backward()  # type: ignore[no-untyped-call]
        of_d.step()
        of_g.zero_grad()
        loss(discriminator(fake), ones).backward()  # type: ignore[no-untyped-call]
        of_g.step()
    both = [
        f"nn.utils.parameters_to_vector({model}.parameters()).tolist()"
        for model in ("generator", "discriminator")
    ]
    for found in on_two_ranks(tmp_path, "Two models: a GAN", *both):
        assert found[0] == pytest.approx(weights(generator), abs=1e-6)
        assert found[1] == pytest.approx(weights(discriminator), abs=1e-6)


def test_batch_norms_on_the_cpu_are_each_rank_s_own(tmp_path: Path) -> None:
    """On the CPU nothing is converted, and a rank's mean is that of its own samples."""
    given = start_values()
    layer = nn.Linear(4, 8)
    wanted = ("type(model[1]).__name__", "model[1].running_mean.tolist()")
    for rank, found in enumerate(on_two_ranks(tmp_path, "SyncBatchNorm", *wanted)):
        mean = layer(given.inputs[rank::2]).mean(0)
        assert found[0] == "BatchNorm1d"
        assert found[1] == pytest.approx((0.1 * mean).tolist(), abs=1e-6)

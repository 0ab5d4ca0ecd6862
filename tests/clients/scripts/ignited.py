"""Train with PyTorch-Ignite, as its documentation does it."""

import gc
import json
import os
import sys

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def training(local_rank: int) -> None:
    """Train a linear model on the sums of random numbers."""
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    # The batch size is that of all processes together.
    loader: DataLoader[tuple[torch.Tensor, ...]] = idist.auto_dataloader(
        data, batch_size=8 * idist.get_world_size(), shuffle=True
    )
    model = idist.auto_model(nn.Linear(8, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    criterion = nn.MSELoss()
    losses, samples = [], 0

    def step(_: Engine, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        nonlocal samples
        batch, target = (each.to(idist.device()) for each in pair)
        loss = criterion(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        samples += len(batch)

    Engine(step).run(loader, max_epochs=5)
    report = {
        "rank": idist.get_rank(),
        "world_size": idist.get_world_size(),
        "local_rank": local_rank,
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "device": str(idist.device()),
        "losses": [losses[0], losses[-1]],
        "samples": samples / 5,
        "weights": sum(p.double().sum().item() for p in model.parameters()),
    }
    sys.stdout.write(json.dumps(report) + "\n")


def main() -> None:
    """Train in the processes that a launcher has started."""
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(training)
        # With gloo a model must not outlive its group: pytorch/pytorch issue 56297.
        gc.collect()


if __name__ == "__main__":
    main()

"""Train a small convolutional net on scikit-learn's digits.

It runs unchanged under `python`, under `torchrun --nproc-per-node 2`, on GPUs, on the
CPU, and in rehearsal (GPUMAP_REHEARSAL=dgx-a100). GPUS=2,3 names devices.
"""

import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gpumap

EPOCHS = 8


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,437 images of 8 x 8 for training and 360 for the test."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[test], labels[test]),
    )


def network() -> nn.Module:
    """Return a net of two convolutions."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def main() -> None:
    """Train, and print the accuracy on rank 0."""
    torch.manual_seed(0)
    train, test = digits()
    named = os.environ.get("GPUS")
    gpus = [int(index) for index in named.split(",")] if named else None
    with gpumap.ddp_session(network(), gpus=gpus) as model:
        session = gpumap.current()
        print(f"rank {session.rank} on {session.placement.device}", flush=True)
        sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
            train, session.world_size, session.rank
        )
        loader = DataLoader(train, batch_size=32, sampler=sampler)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            loss = torch.zeros(())
            for images, labels in loader:
                optimizer.zero_grad()
                output = model(images.to(session.device))
                loss = nn.functional.cross_entropy(output, labels.to(session.device))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if session.rank == 0:
                print(f"epoch {epoch + 1}/{EPOCHS}: loss {loss.item():.3f}", flush=True)
        if session.rank == 0:
            print(f"accuracy {accuracy(model.module, test, session.device):.3f}")


def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of images that the model names rightly."""
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        guesses = model(images.to(device)).argmax(1).cpu()
    return float((guesses == labels).float().mean())


if __name__ == "__main__":
    main()

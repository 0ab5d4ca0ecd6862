"""Train with Lightning Fabric, as its documentation does it."""

import argparse
import gc
import json
import os
import sys

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(fabric: Fabric) -> dict[str, object]:
    """Train a linear model on the sums of random numbers."""
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=8, shuffle=True))
    net = nn.Linear(8, 1)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    criterion = nn.MSELoss()
    losses, samples = [], 0
    for _ in range(5):
        for batch, target in loader:
            loss = criterion(model(batch), target)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            samples += len(batch)

    return {
        "rank": fabric.global_rank,
        "world_size": fabric.world_size,
        "local_rank": fabric.local_rank,
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "device": str(fabric.device),
        "losses": [losses[0], losses[-1]],
        "samples": samples / 5,
        "weights": sum(p.double().sum().item() for p in model.parameters()),
    }


def main() -> None:
    """Train on devices of this node, and of others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", default="auto", help="processes of a node")
    parser.add_argument("--num-nodes", type=int, default=1)
    fabric = Fabric(strategy="ddp", **vars(parser.parse_args()))
    fabric.launch()
    sys.stdout.write(json.dumps(train(fabric)) + "\n")
    # With gloo a model must not outlive its group: pytorch/pytorch issue 56297.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

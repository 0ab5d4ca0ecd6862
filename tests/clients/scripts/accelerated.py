"""Train with Hugging Face's Accelerate, as its documentation does it."""

import argparse
import json
import os
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train a linear model on the sums of random numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    accelerator = Accelerator(cpu=parser.parse_args().cpu)

    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    net = nn.Linear(8, 1)
    model, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        DataLoader(data, batch_size=8, shuffle=True),
    )
    criterion = nn.MSELoss()
    losses, samples = [], 0
    for _ in range(5):
        for batch, target in loader:
            loss = criterion(model(batch), target)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            samples += len(batch)

    report = {
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
        "local_rank": accelerator.local_process_index,
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "device": str(accelerator.device),
        "losses": [losses[0], losses[-1]],
        "samples": samples / 5,
        "weights": sum(p.double().sum().item() for p in model.parameters()),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    # With gloo a model must not outlive its group: pytorch/pytorch issue 56297.
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.end_training()


if __name__ == "__main__":
    main()

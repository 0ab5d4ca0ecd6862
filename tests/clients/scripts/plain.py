"""Train with DistributedDataParallel, as PyTorch's tutorial does it."""

import gc
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(local_rank: int, device: torch.device) -> dict[str, object]:
    """Train a linear model on the sums of random numbers."""
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    # On the CPU there are no device_ids.
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.MSELoss()
    losses, samples = [], 0
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            loss = criterion(model(batch.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            samples += len(batch)

    return {
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "local_rank": local_rank,
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "device": str(next(model.parameters()).device),
        "losses": [losses[0], losses[-1]],
        "samples": samples / 5,
        "weights": sum(p.double().sum().item() for p in model.parameters()),
    }


def main() -> None:
    """Train on the device of this rank, or on the CPU."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(local_rank)
        device = torch.device(torch.accelerator.current_accelerator() or "cpu")
    dist.init_process_group(dist.get_default_backend_for_device(device))
    sys.stdout.write(json.dumps(train(local_rank, device)) + "\n")
    # With gloo a model must not outlive its group: pytorch/pytorch issue 56297.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

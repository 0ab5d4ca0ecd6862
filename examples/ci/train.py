"""Fit a line on all ranks. `torchrun --nproc-per-node 2 train.py`, on GPUs or not."""

import torch
from torch import nn

import gpumap


def train(steps: int) -> tuple[gpumap.Placement, float]:
    """Fit y = 3 x on this rank's part of the data; return its device and the slope."""
    with gpumap.ddp_session(nn.Linear(1, 1, bias=False)) as model:
        session = gpumap.current()
        x = torch.linspace(-1, 1, 64)[session.rank :: session.world_size, None]
        x = x.to(session.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), 3 * x).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return session.placement, model.module.weight.item()


if __name__ == "__main__":
    placement, slope = train(50)
    print(f"rank {placement.launch.rank} on {placement.device}: {slope:.3f}")

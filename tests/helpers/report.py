"""One rank of a job under a real launcher: trains a step, prints facts as JSON."""

import json
import os
import sys

import torch
import torch.distributed as dist

import gpumap


def main() -> None:
    """Run a session and print one line."""
    with gpumap.ddp_session(torch.nn.Linear(2, 1), start_timeout=90, timeout=60) as m:
        session = gpumap.current()
        m(torch.ones(1, 2)).sum().backward()
        total = torch.tensor([session.rank])
        dist.all_reduce(total)
        launch, device = session.launch, session.placement.device
        facts = {
            **launch.model_dump(),
            "host": session.node.hostname,
            "index": device.index,
            "physical": device.physical_index,
            "total": int(total),
            "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
    sys.stdout.write(f"REPORT {json.dumps(facts)}\n")


if __name__ == "__main__":
    main()

"""One rank that trains until it is stopped, and prints when it has begun."""

import sys

import torch

import gpumap


def main() -> None:
    """Take steps until a collective fails, or for as many as are asked for."""
    steps = int(sys.argv[1])
    net = torch.nn.Linear(2, 1)
    with gpumap.ddp_session(net, start_timeout=60, timeout=5) as m:
        for step in range(steps):
            m(torch.ones(1, 2)).sum().backward()
            if step == 0:
                sys.stdout.write(f"TRAINING rank {gpumap.current().rank}\n")
                sys.stdout.flush()
    sys.stdout.write("ENDED\n")


if __name__ == "__main__":
    main()

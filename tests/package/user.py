"""What a user writes: type checkers see the types of the installed gpumap, not Any.

`nox -s package` runs it, and checks it with mypy and pyright, where only the wheel is
installed.
"""

# pyright: strict

from importlib.metadata import metadata
from pathlib import Path
from typing import assert_type

import torch

import gpumap


def on_even(launch: gpumap.Launch, node: gpumap.Node) -> gpumap.Device:
    """Return the device for a rank: every second one."""
    return node.devices[2 * (launch.local_rank or 0)]


def main() -> None:
    """Plan, place and train a step; each value has the type that is stated."""
    node = gpumap.machine("dgx-a100")
    plan = gpumap.plan([node], [4], strategy=on_even)
    assert_type(node, gpumap.Node)
    assert_type(plan[3], gpumap.Placement)
    assert_type(plan[3].device.index, int)
    assert_type(plan.conflicts(), list[gpumap.Conflict])
    assert_type(gpumap.spawn(int, "2", nprocs=2), list[int])
    if plan[3].device.index != 6:
        raise SystemExit(plan.explain())
    with gpumap.session(gpus=None, strategy="local_rank") as session:
        assert_type(session.device, torch.device)
        assert_type(session.rank, int)
        assert_type(session.is_main, bool)
        wrapped = session.wrap(torch.nn.Linear(8, 1))
        assert_type(wrapped, torch.nn.parallel.DistributedDataParallel)
        wrapped(torch.ones(4, 8)).sum().backward()
    with gpumap.ddp_session(torch.nn.Linear(8, 1), claim=False) as model:
        assert_type(model, torch.nn.parallel.DistributedDataParallel)
        model(torch.ones(4, 8)).sum().backward()
    said = metadata("gpumap-torch")
    if said["License-Expression"] != "Apache-2.0":
        raise SystemExit(str(said))
    if not Path(gpumap.__file__).with_name("py.typed").is_file():
        raise SystemExit(gpumap.__file__)


if __name__ == "__main__":
    main()

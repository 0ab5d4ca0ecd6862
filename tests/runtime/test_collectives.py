"""Counting this process's collectives with torch's flight recorder."""

from helpers.programs import run_python

COUNTS = """
import torch, torch.distributed as dist
from gpumap.runtime.collectives import newest, progress

def reduce(times, group=None):
    for _ in range(times):
        dist.all_reduce(torch.ones(1), group=group)

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
name, before = dist.group.WORLD.group_name, newest()
print(progress(name, before).made)
reduce(5)
print(progress(name, before).made)
print(progress(name, newest()).made)
reduce(2000, dist.new_group([0]))
print(progress(name, before).made)
"""


def test_what_is_counted_and_what_is_not_known() -> None:
    """A group's count excludes other groups, and is None once the recorder is full."""
    done = run_python("-c", COUNTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "5", "0", "None"]

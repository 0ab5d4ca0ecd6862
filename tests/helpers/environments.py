"""The environments of processes that tests start."""

import os

__all__ = ["clean_environment", "rank_environment"]


def clean_environment() -> dict[str, str]:
    """Return this environment without anything a launcher or gpumap reads."""
    families = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "GPUMAP")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*families, "TORCHELASTIC", "CUDA", "SLURM", "OMPI"))
    } | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets, except those of its agent."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }

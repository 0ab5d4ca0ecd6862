"""Small nodes and launches for the tests."""

from pathlib import Path

from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch

MIG = Node.model_validate_json(
    (Path(__file__).parent.parent / "data/a100-mig.json").read_bytes()
)
"""Two A100: three slices of GPU 1, then two of GPU 2."""


def node(count: int, hostname: str = "n1", first_physical: int = 0) -> Node:
    """Return a node of `count` cards, with UUIDs GPU-a0…, GPU-a1… and so on."""
    return Node(
        hostname=hostname,
        devices=tuple(
            Device(
                kind="cuda",
                index=index,
                physical_index=first_physical + index,
                uuid=f"GPU-a{index}00{hostname}",
                pci_bus_id=f"00000000:{16 + index:02x}:00.0",
                name="Card",
                total_memory=(index + 1) * 2**30,
                multiprocessors=100 - index,
            )
            for index in range(count)
        ),
    )


def launch(
    local_rank: int,
    local_world_size: int,
    node_rank: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    devices_bound: bool = False,
) -> Launch:
    """Return a torchrun launch; rank defaults to the one that equal nodes give."""
    if rank is None:
        rank = node_rank * local_world_size + local_rank
    first = rank - local_rank
    return Launch(
        launcher="torchrun",
        rank=rank,
        world_size=world_size or (node_rank + 1) * local_world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=node_rank,
        node_ranks=tuple(range(first, first + local_world_size)),
        devices_bound=devices_bound,
    )

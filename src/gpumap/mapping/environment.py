"""The variables that tell a rank to a script that knows nothing of gpumap."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gpumap.errors import PlacementError
from gpumap.mapping.devices import Device
from gpumap.mapping.launch import Launch, store_address
from gpumap.mapping.mask_entries import OWN, device_list, mask_naming
from gpumap.mapping.placement import Placement

__all__ = ["BY_TORCHS_NAMES", "LOCAL_RANK", "RUN", "environment"]

RUN = "GPUMAP_RUN"
"""The environment variable that says which rank these variables are for, and which
launcher they are from: "1/4 Slurm"."""

LOCAL_RANK = "GPUMAP_LOCAL_RANK"
"""The environment variable with the LOCAL_RANK that there was before, if another."""

BY_TORCHS_NAMES = ("torchrun", "DeepSpeed", "Kubeflow PyTorchJob", "torch variables")
"""The launchers that set RANK and WORLD_SIZE themselves."""


def environment(
    placement: Placement,
    launch: Launch,
    *,
    devices: Sequence[Device] = (),
    own: bool = False,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the variables under which cuda:LOCAL_RANK is the device of this rank.

    They are those of torch's env:// and of torchrun, as far as the launcher tells them,
    and the mask of the device's vendor. What they do not name stays as it is.

    devices: The devices of all ranks on this node, by local rank. The mask lists them,
        on all ranks of the node alike, so that devices reach each other as before. May
        be left out for the only process of a node, and is not needed with own.
    own: Give this rank a mask of its own device alone, and LOCAL_RANK 0. So it is
        without asking if the launcher has bound each task to its own devices, or tells
        no local rank.
    environ: The variables that the process has now. The masks among them, and Intel's
        ZE_FLAT_DEVICE_HIERARCHY, say what the devices' indices count.

    On the CPU there is no mask, and LOCAL_RANK counts the node's processes. A world of
    one that has no port gets no address.

    Raises:
        LaunchError: The ranks do not know where to meet.
        DeviceError: The mask in environ does not leave these devices.
        PlacementError: devices does not fit this rank, or no mask can make its device
            cuda:LOCAL_RANK.

    Source: torch.distributed.run, section Environment Variables; its
    --virtual-local-rank for own.

    >>> launch = Launch(launcher="Slurm", rank=1, world_size=4, local_rank=1,
    ...                 local_world_size=2, master_addr="n1", master_port=29500)
    >>> cards = [Device(kind="cuda", index=3), Device(kind="cuda", index=2)]
    >>> placed = Placement(launch=launch, device=cards[1], strategy="explicit", why="")
    >>> found = environment(placed, launch, devices=cards)
    >>> found["LOCAL_RANK"], found["CUDA_VISIBLE_DEVICES"], found["MASTER_ADDR"]
    ('1', '3,2', 'n1')
    """
    device = placement.device
    if device.kind == "cpu":
        local_rank, mask = launch.local_rank, {}
    elif own or launch.devices_bound or launch.local_rank is None:
        local_rank = 0
        mask = _mask([device], device, launch, local_rank, environ)
    else:
        local_rank = launch.local_rank
        alone = 1 in (launch.world_size, launch.local_world_size)
        listed = devices or ([device] if alone else [])
        mask = _mask(listed, device, launch, local_rank, environ)
    told = {
        "RANK": launch.rank,
        "WORLD_SIZE": launch.world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": launch.local_world_size,
        "GROUP_RANK": launch.node_rank,
        "NODE_RANK": launch.node_rank,
        "GROUP_WORLD_SIZE": launch.num_nodes,
    }
    found = {name: str(value) for name, value in told.items() if value is not None}
    found |= _address(launch) | mask
    found[RUN] = f"{launch.rank}/{launch.world_size} {launch.launcher}"
    before = environ.get("LOCAL_RANK", "")
    bound = own and not launch.devices_bound  # else a LOCAL_RANK of 0 may be no place
    changed = bound or before != found.get("LOCAL_RANK")
    if changed and launch.launcher in BY_TORCHS_NAMES:
        found[LOCAL_RANK] = before
    return found


def _mask(
    devices: Sequence[Device],
    device: Device,
    launch: Launch,
    local_rank: int,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Return the mask under which a rank's device has its local rank as index.

    It is empty for a kind without masks, whose devices keep their indices.
    """
    mask = mask_naming(devices or [device], environ)
    if mask is None and device.index != local_rank:
        raise PlacementError(
            f"rank {launch.rank} is placed on {device}, and a script that takes "
            f"LOCAL_RANK for it would take {device.kind}:{local_rank}.",
            f"Devices of the kind {device.kind} have no mask that would renumber them.",
            "Leave gpus=[…] and own out, so that each local rank has the device of its "
            "own number; or let the script ask gpumap.session() for its device.",
            (launch.rank,),
        )
    indices = [other.index for other in devices]
    if mask is not None and indices[local_rank : local_rank + 1] != [device.index]:
        raise PlacementError(
            f"rank {launch.rank} is placed on {device}, and devices does not have that "
            f"for its local rank, {local_rank}.",
            device_list(devices),
            "Give devices=[…], those of all ranks on this node, by local rank; or "
            f"{OWN}",
            (launch.rank,),
        )
    return mask or {}


def _address(launch: Launch) -> dict[str, str]:
    """Return where rank 0 listens: on one node loopback, else where the launcher says.

    Raises:
        LaunchError: The launcher does not say it, and there are others to meet.
    """
    if launch.world_size == 1 and launch.master_port is None:
        return {}
    host, port = store_address(launch)
    # torchrun's agent listens there already. Otherwise on one node the name need not be
    # one that can be looked up.
    if launch.launcher == "torchrun" or not launch.one_node:
        host = launch.master_addr or host
    return {"MASTER_ADDR": host, "MASTER_PORT": str(port)}

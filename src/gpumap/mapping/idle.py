"""The strategy "idle": the devices that nothing runs on, by free memory."""

from collections.abc import Sequence

from gpumap.errors import DeviceError, PlacementError
from gpumap.mapping.devices import Device, Node, Tenant, one_per_gpu
from gpumap.mapping.launch import Launch
from gpumap.words import plural

__all__ = ["idlest"]

_MOST_NAMED = 3


def idlest(
    launch: Launch, pool: Sequence[Device], node: Node, count: int
) -> tuple[Device, ...]:
    """Return `count` devices of a pool without tenants, by free memory.

    The most comes first; ties go by index. A second slice of one GPU comes after the
    first of every other, and so does a device that the pool lists again. What is
    decided depends on nothing but the arguments.

    Raises:
        DeviceError: Who uses a device is not known.
        PlacementError: Fewer are idle; the error names the tenants of the others.

    >>> busy = Device(kind="cuda", index=0, tenants=(Tenant(pid=7, user="ann"),))
    >>> idle = Device(kind="cuda", index=1, tenants=())
    >>> node = Node(hostname="n1", devices=(busy, idle))
    >>> alone = Launch(launcher="alone", rank=0, world_size=1)
    >>> [device.index for device in idlest(alone, node.devices, node, 1)]
    [1]
    """
    unknown = [device for device in pool if device.tenants is None]
    if unknown:
        raise DeviceError(
            f"who uses {', '.join(map(str, unknown))} on {node.hostname} is not known.",
            'strategy "idle" asks NVML, which is not installed, or does not tell.',
            "Install the extra, pip install gpumap-torch[nvml]; for devices that are "
            'not NVIDIA\'s, choose another strategy, for instance "local_rank". A '
            "device that is described can be given its tenants: () for none.",
        )
    idle = [device for device in pool if not device.tenants]
    if len(idle) < count:
        raise _too_few(launch, pool, node, count)
    idle.sort(key=lambda device: (-_free(device), device.index))
    apart = one_per_gpu(idle)
    for device in apart:
        idle.remove(device)
    return (*apart, *idle)[:count]


def _free(device: Device) -> int:
    """Return a device's free memory, in bytes: the total if that is not told."""
    free = device.free_memory
    return (device.total_memory or 0) if free is None else free


def _too_few(
    launch: Launch, pool: Sequence[Device], node: Node, count: int
) -> PlacementError:
    taken = [device for device in pool if device.tenants]
    idle = len(pool) - len(taken)
    fewer = (
        f"Start {idle} on each node ({launch.command(idle)}), wait" if idle else "Wait"
    )
    return PlacementError(
        f'strategy "idle" wants {count} {plural("device", count)} on {node.hostname}, '
        f"and {idle} of {len(pool)} {'is' if idle == 1 else 'are'} idle.",
        "; ".join(map(_with_tenants, taken)) + "." if taken else node.visible,
        f"{fewer}, or take devices whatever runs on them, with another strategy, for "
        'instance "local_rank".',
    )


def _with_tenants(device: Device) -> str:
    tenants = device.tenants or ()
    named = [_in_words(device, tenant) for tenant in tenants[:_MOST_NAMED]]
    more = len(tenants) - len(named)
    return f"{device} is {' and '.join(named)}" + (f", and {more} more" if more else "")


def _in_words(device: Device, tenant: Tenant) -> str:
    if tenant == Tenant():
        free, total = (x / 2**30 for x in (_free(device), device.total_memory or 0))
        return (
            "used by a process that does not show, perhaps in another container: "
            f"{free:.1f} of {total:.1f} GiB are free"
        )
    return f"{'claimed' if tenant.claims else 'used'} by {tenant}"

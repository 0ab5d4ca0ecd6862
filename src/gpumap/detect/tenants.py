"""The processes that use a device, from NVML and /proc.

A device is in use if NVML lists a process that computes on it, apart from this one and
the server of CUDA's MPS, whose clients are listed by themselves. A process that only
draws, like Xorg or a browser, does not count by itself: on a workstation there is
always one.

NVML lists only the processes of this PID namespace, so what runs in other containers is
known by its memory: a device is also in use if more of its memory is taken than a
screen needs or, where it drives none, than an idle device has taken.

Source: gpuGetProcWithObject in NVIDIA/open-gpu-kernel-modules, which leaves out
processes without an id in the caller's namespace. Older drivers list the host's ids.
"""

from collections.abc import Mapping
from pathlib import Path

from gpumap.detect.nvml import Use, nvml_use
from gpumap.detect.processes import tenant_of
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.mapping.devices import Device, Node, Tenant

__all__ = ["with_tenants"]

# A desktop takes some hundred MiB, with a browser on a large screen up to two GiB.
_SCREENS_MEMORY = 2 * 2**30
# An idle device has some MiB taken, by MPS's server too; PyTorch takes some hundred
# before its first tensor.
_IDLE_MEMORY = 256 * 2**20
_MPS_SERVER = "nvidia-cuda-mps-server"


def with_tenants(node: Node, environ: Mapping[str, str]) -> Node:
    """Return the node with the tenants, free memory and utilization of now.

    Tenants stay None where nobody tells them: without the extra "nvml", and for devices
    that are not NVIDIA's. Under GPUMAP_REHEARSAL nothing is read: the described values
    stand, and a device that is described without tenants has none.
    """
    if environ.get(REHEARSAL):
        described = (
            device.model_copy(update={"tenants": device.tenants or ()})
            for device in node.devices
        )
        return node.model_copy(update={"devices": tuple(described)})
    uses = nvml_use(
        device.uuid
        for device in node.devices
        if device.kind == "cuda" and not device.rocm and device.uuid
    )
    devices = tuple(
        _now(device, uses.get(device.uuid or "")) for device in node.devices
    )
    return node.model_copy(update={"devices": devices})


def _now(device: Device, use: Use | None) -> Device:
    if use is None:
        return device
    return device.model_copy(
        update={
            "free_memory": use.free_memory,
            "utilization": use.utilization,
            "tenants": _tenants(use),
        }
    )


def _tenants(use: Use) -> tuple[Tenant, ...] | None:
    """Return the processes that make a device busy; one without a name if none shows.

    None if NVML does not tell.
    """
    if use.compute is None:
        return None
    found = [tenant_of(pid) for pid in sorted(use.compute) if not _is_own(pid)]
    computing = tuple(tenant for tenant in found if not _is_mps_server(tenant))
    own = sum(memory for pid, memory in use.compute.items() if _is_own(pid))
    unnoticed = _SCREENS_MEMORY if use.display else _IDLE_MEMORY
    if computing or (use.taken_memory or 0) - own <= unnoticed:
        return computing
    drawing = (tenant_of(pid) for pid in sorted(use.graphics) if not _is_own(pid))
    return tuple(drawing) or (Tenant(),)


def _is_own(pid: int) -> bool:
    """Tell whether an id is that of this process, or as NVML may have it, a thread."""
    return Path(f"/proc/self/task/{pid}").exists()


def _is_mps_server(tenant: Tenant) -> bool:
    return (tenant.command or "").partition(" ")[0] == _MPS_SERVER

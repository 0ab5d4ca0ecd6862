"""The accelerators that a process sees, where torch need not be asked."""

import socket
from collections.abc import Mapping

from gpumap.detect.hardware import counted_alike
from gpumap.detect.nvml import nvml_node
from gpumap.detect.rehearsal import REHEARSAL, rehearsed_node
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.visibility import visible

__all__ = ["node_without_torch"]


def node_without_torch(launch: Launch, environ: Mapping[str, str]) -> Node | None:
    """Return this host and its visible devices; None if only torch knows them.

    A rehearsal says what there is. NVML knows NVIDIA's devices by the numbers that
    torch gives them, if they are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID; which MIG
    slices a process sees, the runtime decides.

    Raises:
        LaunchError: Several nodes are rehearsed, and the launch selects none.
        DeviceError: The rehearsed machine cannot be read.
    """
    if wanted := environ.get(REHEARSAL):
        return rehearsed_node(wanted, launch, environ)
    there = nvml_node(socket.gethostname())
    if there is None or not there.devices or any(d.mig for d in there.devices):
        return None
    return visible(there, environ) if counted_alike(there, environ) else None

"""Fakes of torch's and NVML's calls, since no test machine has a GPU.

Both fakes are made from a Node. They have the calls that gpumap makes and no others,
with the types and the constants of the real ones.
"""

import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace

import pytest
import torch

from gpumap.mapping.devices import Device, Link, Node

LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


def pretend_torch(
    monkeypatch: pytest.MonkeyPatch,
    devices: Sequence[Device],
    *,
    counted: int | None = None,
    hip: str | None = None,
) -> None:
    """Let torch's calls return these devices, in this order.

    counted: the CUDA runtime's own count, if torch's is of another mask.
    """
    kind = devices[0].kind
    runtimes_own = len(devices) if counted is None else counted

    def get_device_properties(index: int) -> SimpleNamespace:
        assert index < runtimes_own, "Invalid device id"
        return properties(devices[index])

    module = SimpleNamespace(get_device_properties=get_device_properties)
    name = "_cuda_getDeviceCount"
    monkeypatch.setattr(torch._C, name, lambda: runtimes_own, raising=False)  # noqa: SLF001 - CUDA's own count
    accelerator = torch.accelerator
    monkeypatch.setattr(accelerator, "is_available", lambda: True)
    monkeypatch.setattr(accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(accelerator, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(torch.version, "hip", hip)


def properties(device: Device) -> SimpleNamespace:
    """Return a device in the form of torch 2.13's device properties."""
    found = SimpleNamespace(
        name=device.name,
        total_memory=device.total_memory,
        multi_processor_count=device.multiprocessors,
        uuid=(device.mig or device.uuid or "").partition("-")[2],
    )
    if device.compute_capability:
        found.major, found.minor = device.compute_capability
    if device.pci_bus_id:
        domain, bus, rest = device.pci_bus_id.split(":")
        found.pci_domain_id, found.pci_bus_id = int(domain, 16), int(bus, 16)
        found.pci_device_id = int(rest.split(".")[0], 16)
    return found


class NVMLError(Exception):
    """What pynvml raises."""


class Nvml(ModuleType):
    """A fake pynvml of a Node; its handles are Devices, of GPUs and of MIG slices."""

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 36

    def __init__(self, node: Node, *, switched: bool = False) -> None:
        """Answer for a node; switched puts its NVLinks behind switches."""
        super().__init__("pynvml")
        self.node = node
        self.switched = switched
        self.open = 0
        self.reaches, self.state = 1, 1
        self.lost: list[int] = []
        self.processes: dict[str, dict[str, dict[int, int | None]]] = {}
        self.reserved: int | None = None
        self.displays: list[str] = []
        self.numa_nodes: list[str] = []
        self.in_mig_mode = [device.mig for device in node.devices if device.mig]
        uuids = dict.fromkeys(device.mig or device.uuid for device in node.devices)
        self.gpus = [
            next(d for d in node.devices if uuid in (d.mig, d.uuid)).model_copy(
                update={"uuid": uuid, "mig": None}
            )
            for uuid in uuids
        ]

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        if index in self.lost:
            raise NVMLError
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        found = [d for d in (*self.gpus, *self.node.devices) if d.uuid == uuid]
        if not found or found[0].index in self.lost:
            raise NVMLError
        return found[0]

    def nvmlDeviceGetUUID(self, handle: Device) -> bytes:
        return str(handle.uuid).encode()  # text in newer versions, bytes in older

    def nvmlDeviceGetName(self, handle: Device) -> str:
        return str(handle.name)

    def nvmlDeviceGetPciInfo(self, handle: Device) -> SimpleNamespace:
        return SimpleNamespace(busId=str(handle.pci_bus_id).upper().encode())

    def nvmlDeviceGetMemoryInfo(
        self, handle: Device, version: int | None = None
    ) -> SimpleNamespace:
        if version and self.reserved is None:
            raise NVMLError  # the second version came with driver 510
        total, free = handle.total_memory, handle.free_memory
        return SimpleNamespace(total=total, free=free, reserved=self.reserved)

    def nvmlDeviceGetComputeRunningProcesses_v3(
        self, handle: Device
    ) -> list[SimpleNamespace]:
        return self.running(handle, "compute")

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(
        self, handle: Device
    ) -> list[SimpleNamespace]:
        return self.running(handle, "mps")

    def nvmlDeviceGetGraphicsRunningProcesses_v3(
        self, handle: Device
    ) -> list[SimpleNamespace]:
        return self.running(handle, "graphics")

    def nvmlDeviceGetDisplayActive(self, handle: Device) -> int:
        return int(handle.uuid in self.displays)

    def nvmlDeviceGetNumaNodeId(self, handle: Device) -> int:
        if handle.uuid not in self.numa_nodes:
            raise NVMLError
        return 2 + handle.index

    def nvmlDeviceGetUtilizationRates(self, handle: Device) -> SimpleNamespace:
        if handle.utilization is None:
            raise NVMLError
        return SimpleNamespace(gpu=handle.utilization, memory=0)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Device) -> tuple[int, int]:
        assert handle.compute_capability
        return handle.compute_capability

    def nvmlDeviceGetMemoryAffinity(
        self, handle: Device, words: int, scope: int
    ) -> list[int]:
        assert scope == 0
        bits = 0 if handle.numa_node is None else 1 << handle.numa_node
        return [bits >> 64 * word & (2**64 - 1) for word in range(words)]

    def nvmlDeviceGetCpuAffinity(self, handle: Device, words: int) -> list[int]:
        bits = sum(1 << cpu for cpu in handle.cpu_affinity or ())
        return [bits >> 64 * word & (2**64 - 1) for word in range(words)]

    def nvmlDeviceGetMigMode(self, handle: Device) -> list[int]:
        if handle.uuid in self.in_mig_mode:
            return [1, 1]
        raise NVMLError  # not supported, as before the A100

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: Device) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Device, index: int) -> Device:
        parts = [d for d in self.node.devices if d.mig == handle.uuid]
        if index >= len(parts):
            raise NVMLError
        return parts[index]

    def nvmlDeviceGetAttributes(self, handle: Device) -> SimpleNamespace:
        return SimpleNamespace(multiprocessorCount=handle.multiprocessors)

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Device, two: Device) -> int:
        return LEVELS[self.link(one, two).pcie or "SYS"]

    def nvmlDeviceGetNvLinkState(self, handle: Device, link: int) -> int:
        if link >= len(self.ends(handle)):
            raise NVMLError
        return 1

    def nvmlDeviceGetNvLinkCapability(
        self, _handle: Device, _link: int, capability: int
    ) -> int:
        return self.reaches if capability == 0 else 1

    def nvmlDeviceGetFieldValues(
        self, handle: Device, ids: Sequence[tuple[int, int]]
    ) -> list[SimpleNamespace]:
        there = len(self.ends(handle))
        values = [SimpleNamespace(uiVal=self.state * (n < there)) for _, n in ids]
        return [SimpleNamespace(nvmlReturn=0, value=value) for value in values]

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, _handle: Device, _link: int) -> int:
        return 2 if self.switched else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(
        self, handle: Device, link: int
    ) -> SimpleNamespace:
        return self.nvmlDeviceGetPciInfo(self.ends(handle)[link])

    def running(self, handle: Device, kind: str) -> list[SimpleNamespace]:
        """Return the processes of a kind, or refuse as where NVML cannot tell."""
        kinds = self.processes.get(str(handle.uuid), {"compute": {}})
        if kind not in kinds:
            raise NVMLError
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=memory)
            for pid, memory in kinds[kind].items()
        ]

    def link(self, one: Device, two: Device) -> Link:
        pair = {one.index, two.index}
        return next(x for x in self.node.links if {x.a, x.b} == pair)

    def ends(self, handle: Device) -> list[Device]:
        """Return the remote end of each NVLink of a GPU, or itself for a switch."""
        counts = [
            (other, self.link(handle, other).nvlinks)
            for other in self.gpus
            if other != handle and self.node.links
        ]
        if self.switched:
            return [handle] * max(count for _, count in counts)
        return [other for other, count in counts for _ in range(count)]


def pretend_nvml(
    monkeypatch: pytest.MonkeyPatch, node: Node, *, switched: bool = False
) -> Nvml:
    """Replace pynvml by a fake with all devices of a node, in its order."""
    nvml = Nvml(node, switched=switched)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml

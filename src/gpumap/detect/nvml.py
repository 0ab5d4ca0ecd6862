"""What NVML tells of NVIDIA's devices: all there are, read without starting CUDA.

Source of names and meanings: the NVML API reference, through nvidia-ml-py.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations
from typing import Any

from gpumap.mapping.devices import Device, Link, Node

__all__ = ["nvml_node"]

log = logging.getLogger("gpumap")

# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`; two chips of one board
# (INTERNAL, 0) have one bridge above them.
_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_NODE_SCOPE = 0  # NVML_AFFINITY_SCOPE_NODE
# Words of 64 bits: more NUMA nodes and CPUs than any host has.
_NUMA_WORDS, _CPU_WORDS = 16, 64


def nvml_node(hostname: str) -> Node | None:
    """Return every NVIDIA device of this host, in the order of nvidia-smi.

    No mask counts here. A GPU in MIG mode is left out; its slices stand in its place.
    None where nvidia-ml-py (the extra "nvml") or the driver's library is not there.
    """
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.debug("NVML does not start: %s", error)
        return None
    try:
        return _Reader(nvml).node(hostname)
    finally:
        nvml.nvmlShutdown()


@dataclass(frozen=True)
class _Reader:
    """Asks NVML, which may not know this or that of some device."""

    nvml: Any

    def ask(self, name: str, *args: object) -> Any:  # noqa: ANN401 - pynvml has no types
        """Return a function's answer; None where device, driver or binding lack it."""
        function = getattr(self.nvml, name, None)
        if function is None:
            return None
        try:
            answer = function(*args)
        except self.nvml.NVMLError:
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def node(self, hostname: str) -> Node:
        found: list[tuple[object, dict[str, object]]] = []
        for place in range(self.nvml.nvmlDeviceGetCount()):
            handle = self.nvml.nvmlDeviceGetHandleByIndex(place)
            whole = self.gpu(handle) | {"physical_index": place}
            found += self.slices(handle, whole) or [(handle, whole)]
        return Node(
            hostname=hostname,
            devices=tuple(
                Device.model_validate({"kind": "cuda", "index": place, **fields})
                for place, (_, fields) in enumerate(found)
            ),
            # Slices do not reach each other, nor other devices.
            links=self.links(
                [(p, h) for p, (h, fields) in enumerate(found) if "mig" not in fields]
            ),
        )

    def gpu(self, handle: object) -> dict[str, object]:
        """Return what is known of a device, by the names of Device's fields."""
        pci, memory = (
            self.ask("nvmlDeviceGetPciInfo", handle),
            self.ask("nvmlDeviceGetMemoryInfo", handle),
        )
        numa = _bits(
            self.ask("nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, _NODE_SCOPE)
        )
        cpus = _bits(self.ask("nvmlDeviceGetCpuAffinity", handle, _CPU_WORDS))
        used = self.ask("nvmlDeviceGetUtilizationRates", handle)
        return {
            "uuid": self.ask("nvmlDeviceGetUUID", handle),
            "pci_bus_id": pci and _text(pci.busId).lower(),
            "name": self.ask("nvmlDeviceGetName", handle),
            "total_memory": memory and memory.total,
            "free_memory": memory and memory.free,
            "utilization": used and used.gpu,
            "compute_capability": self.ask(
                "nvmlDeviceGetCudaComputeCapability", handle
            ),
            "numa_node": numa[0] if len(numa) == 1 else None,
            "cpu_affinity": cpus or None,
        }

    def slices(
        self, handle: object, whole: dict[str, object]
    ) -> list[tuple[object, dict[str, object]]]:
        """Return a GPU's MIG instances; none where it is not in MIG mode."""
        mode = self.ask("nvmlDeviceGetMigMode", handle)
        if not mode or not mode[0]:
            return []
        found: list[tuple[object, dict[str, object]]] = []
        for place in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            if part is None:
                continue
            own = self.gpu(part)
            attributes = self.ask("nvmlDeviceGetAttributes", part)
            own = {name: value for name, value in own.items() if value is not None}
            own["multiprocessors"] = attributes and attributes.multiprocessorCount
            found.append((part, whole | own | {"mig": whole["uuid"]}))
        return found

    def links(self, gpus: list[tuple[int, object]]) -> tuple[Link, ...]:
        ends = {place: self.nvlinks(handle) for place, handle in gpus}
        buses = {
            _text(pci.busId).lower(): place
            for place, handle in gpus
            if (pci := self.ask("nvmlDeviceGetPciInfo", handle))
        }
        found: list[Link] = []
        for (a, first), (b, second) in combinations(gpus, 2):
            level = self.ask("nvmlDeviceGetTopologyCommonAncestor", first, second)
            direct = sum(buses.get(end) == b for end in ends[a])
            switched = min(ends[a].count("switch"), ends[b].count("switch"))
            fields = {"nvlinks": direct or switched, "pcie": _PATHS.get(level)}
            found.append(Link.model_validate({"a": a, "b": b, **fields}))
        return tuple(found)

    def nvlinks(self, handle: object) -> list[str]:
        """Return where each active NVLink of a device leads: a PCI bus ID, or a switch.

        Behind switches every device reaches every other with all of its links.
        """
        ends: list[str] = []
        for link in range(getattr(self.nvml, "NVML_NVLINK_MAX_LINKS", 18)):
            if not self.ask("nvmlDeviceGetNvLinkState", handle, link):
                continue
            if self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _SWITCH:
                ends.append("switch")
            elif pci := self.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link):
                ends.append(_text(pci.busId).lower())
        return ends


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _bits(words: Iterable[int] | None) -> tuple[int, ...]:
    """Return the places of the bits that are set, in words of 64."""
    return tuple(
        64 * place + bit
        for place, word in enumerate(words or ())
        for bit in range(64)
        if word >> bit & 1
    )

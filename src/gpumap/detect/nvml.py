"""All NVIDIA devices of this host, from NVML, without starting CUDA.

Source of names and meanings: the NVML API reference, through nvidia-ml-py.
"""

import logging
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations
from typing import Any

from gpumap.mapping.devices import Device, Link, Node

__all__ = ["Use", "nvml_node", "nvml_use"]

log = logging.getLogger(__name__)

# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`; two chips of one board
# (INTERNAL, 0) have one bridge above them.
_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_P2P = 0  # NVML_NVLINK_CAP_P2P_SUPPORTED
_STATE = 165  # NVML_FI_DEV_NVLINK_GET_STATE
_NODE_SCOPE = 0  # NVML_AFFINITY_SCOPE_NODE
_WITH_RESERVED = 0x02000028  # nvmlMemory_v2
_ABSENT = (9, 12)  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
_SHARED_BY_SLICES = (
    "physical_index",
    "pci_bus_id",
    "name",
    "compute_capability",
    "numa_node",
    "cpu_affinity",
)
# Words of 64 bits: more NUMA nodes and CPUs than any host has.
_NUMA_WORDS, _CPU_WORDS = 16, 64


@dataclass(frozen=True)
class Use:
    """How a device is used at this moment.

    Attributes:
        free_memory: In bytes.
        utilization: In percent.
        taken_memory: In bytes, by processes of all users and containers, without what
            the driver reserves. None where NVML does not tell, or cannot: the memory of
            a GPU that is a NUMA node is the operating system's, as on GH200.
        display: Whether it drives a screen.
        compute: The memory, in bytes, of each process that computes, by process id;
            None if NVML does not tell.
        graphics: The same of each process that draws.
    """

    free_memory: int | None
    utilization: int | None
    taken_memory: int | None
    display: bool
    compute: Mapping[int, int] | None
    graphics: Mapping[int, int]


def nvml_node(hostname: str) -> Node | None:
    """Return every NVIDIA device of this host, in the order of nvidia-smi.

    Masks are ignored. A GPU in MIG mode is replaced by its slices. None if nvidia-ml-py
    (the extra "nvml") or the driver's library is missing.
    """
    with _opened() as reader:
        return None if reader is None else reader.node(hostname)


def nvml_use(uuids: Iterable[str]) -> dict[str, Use]:
    """Return how these devices and slices are used, by UUID.

    What NVML does not know is missing; without NVML, that is all.
    """
    with _opened() as reader:
        if reader is None:
            return {}
        handles = {
            uuid: reader.ask("nvmlDeviceGetHandleByUUID", uuid) for uuid in uuids
        }
        return {
            uuid: reader.use(handle)
            for uuid, handle in handles.items()
            if handle is not None
        }


@contextmanager
def _opened() -> "Generator[_Reader | None, None, None]":
    """Start NVML, and stop it on leaving; None if there is none."""
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        # A missing driver is normal; one that does not match its library is not.
        absent = getattr(error, "value", None) in _ABSENT
        log.log(
            logging.DEBUG if absent else logging.WARNING,
            "NVML does not start: %s",
            error,
        )
        yield None
        return
    reader = _Reader(nvml)
    try:
        yield reader
    finally:
        reader.ask("nvmlShutdown")


@dataclass(frozen=True)
class _Reader:
    """Calls NVML; a call that a device does not support returns None."""

    nvml: Any

    def ask(self, name: str, *args: object) -> Any:  # noqa: ANN401 - pynvml has no types
        """Return a function's result; None if device, driver or binding lack it."""
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
        for place in range(self.ask("nvmlDeviceGetCount") or 0):
            handle = self.ask("nvmlDeviceGetHandleByIndex", place)
            if handle is None:
                log.warning("NVML cannot open device %d of %s.", place, hostname)
                continue
            whole = self.gpu(handle) | {"physical_index": place}
            parts = self.slices(handle, whole)
            found += [(handle, whole)] if parts is None else parts
        return Node(
            hostname=hostname,
            devices=tuple(
                Device.model_validate({"kind": "cuda", "index": place, **fields})
                for place, (_, fields) in enumerate(found)
            ),
            # MIG slices have no links, neither to each other nor to other devices.
            links=self.links(
                {p: item for p, item in enumerate(found) if "mig" not in item[1]}
            ),
        )

    def gpu(self, handle: object) -> dict[str, object]:
        """Return what NVML knows about a device, by the names of Device's fields."""
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
            "total_memory": (memory and memory.total) or None,
            "free_memory": memory and memory.free,
            "utilization": used and used.gpu,
            "compute_capability": self.ask(
                "nvmlDeviceGetCudaComputeCapability", handle
            ),
            "numa_node": numa[0] if len(numa) == 1 else None,
            "cpu_affinity": cpus or None,
        }

    def use(self, handle: object) -> Use:
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        exact = self.ask("nvmlDeviceGetMemoryInfo", handle, _WITH_RESERVED)
        is_numa_node = self.ask("nvmlDeviceGetNumaNodeId", handle) not in (None, -1)
        used = self.ask("nvmlDeviceGetUtilizationRates", handle)
        compute, mps, graphics = (
            self.processes(handle, kind)
            for kind in ("Compute", "MPSCompute", "Graphics")
        )
        return Use(
            free_memory=memory and memory.free,
            utilization=used and used.gpu,
            taken_memory=None
            if exact is None or is_numa_node
            else exact.total - exact.reserved - exact.free,
            display=bool(self.ask("nvmlDeviceGetDisplayActive", handle)),
            compute=None if compute is None else compute | (mps or {}),
            graphics=graphics or {},
        )

    def processes(self, handle: object, kind: str) -> dict[int, int] | None:
        """Return the memory of each process of a kind; 0 where that is not told.

        The functions without a version raise an error of their own on older drivers.
        """
        found = self.ask(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle)
        if found is None:
            return None
        return {process.pid: process.usedGpuMemory or 0 for process in found}

    def slices(
        self, handle: object, whole: dict[str, object]
    ) -> list[tuple[object, dict[str, object]]] | None:
        """Return a GPU's MIG instances; None if it is not in MIG mode."""
        mode = self.ask("nvmlDeviceGetMigMode", handle)
        if not mode or not mode[0]:
            return None
        shared = {name: whole[name] for name in _SHARED_BY_SLICES}
        found: list[tuple[object, dict[str, object]]] = []
        for place in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            if part is None:
                continue
            attributes = self.ask("nvmlDeviceGetAttributes", part)
            own = {name: x for name, x in self.gpu(part).items() if x is not None}
            own["multiprocessors"] = attributes and attributes.multiprocessorCount
            found.append((part, shared | own | {"mig": whole["uuid"]}))
        return found

    def links(
        self, gpus: dict[int, tuple[object, dict[str, object]]]
    ) -> tuple[Link, ...]:
        ends = {
            place: self.nvlinks(handle, fields["compute_capability"])
            for place, (handle, fields) in gpus.items()
        }
        found: list[Link] = []
        for (a, (first, _)), (b, (second, fields)) in combinations(gpus.items(), 2):
            level = self.ask("nvmlDeviceGetTopologyCommonAncestor", first, second)
            direct = ends[a].count(str(fields["pci_bus_id"]))
            switched = min(ends[a].count("switch"), ends[b].count("switch"))
            link = {"nvlinks": direct or switched, "pcie": _PATHS.get(level)}
            found.append(Link.model_validate({"a": a, "b": b, **link}))
        return tuple(found)

    def nvlinks(self, handle: object, compute_capability: object) -> list[str]:
        """Return the remote end of each active NVLink: a PCI bus ID, or "switch".

        Behind switches every device reaches every other with all of its links.
        """
        ends: list[str] = []
        for link in range(getattr(self.nvml, "NVML_NVLINK_MAX_LINKS", 18)):
            if not self.is_up(handle, link, compute_capability):
                continue
            if self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _SWITCH:
                ends.append("switch")
            elif pci := self.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link):
                ends.append(_text(pci.busId).lower())
        return ends

    def is_up(self, handle: object, link: int, compute_capability: object) -> bool:
        """Tell whether GPUs reach each other over an NVLink of a device.

        Source: NCCL, src/graph/xml.cc, which asks for the state by a field's value from
        compute capability 9.0 on.
        """
        reaches = self.ask("nvmlDeviceGetNvLinkCapability", handle, link, _P2P)
        if reaches is not None and not reaches:
            return False
        if isinstance(compute_capability, tuple) and compute_capability >= (9, 0):
            values = self.ask("nvmlDeviceGetFieldValues", handle, [(_STATE, link)])
            if values and values[0].nvmlReturn == 0:
                return bool(values[0].value.uiVal)
        return bool(self.ask("nvmlDeviceGetNvLinkState", handle, link))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _bits(words: Iterable[int] | None) -> tuple[int, ...]:
    """Return the positions of the bits that are set in words of 64 bits."""
    return tuple(
        64 * place + bit
        for place, word in enumerate(words or ())
        for bit in range(64)
        if word >> bit & 1
    )

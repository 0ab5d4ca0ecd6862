"""What only a machine with an NVIDIA GPU can show; one is enough for most of it.

`nox -s gpu` runs these with the torch that is installed; elsewhere they are skipped.
"""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import gpumap
from helpers import spawnjobs
from helpers.fault_table import NAMES, TABLE, Fault, check
from helpers.jobs import run
from helpers.programs import run_python

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs an NVIDIA GPU, and there is none"
    ),
]

# Asks the driver itself on which devices this process has a context.
CONTEXTS = """
import ctypes, json
import gpumap

def contexts():
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for index in range(count.value):
        device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDevicePrimaryCtxGetState(
            device, ctypes.byref(flags), ctypes.byref(active)
        )
        found += [index] * active.value
    return found

node = gpumap.detect_node()
detected = contexts()
last = len(node.devices) - 1
with gpumap.session(gpus=[last]) as s:
    s.device
    inside = contexts()
print(json.dumps([detected, inside, last]))
"""


def alone(code: str) -> str:
    """Run Python code in a single process of its own, and return its last line."""
    environ = {n: value for n, value in os.environ.items() if n.startswith("CUDA")}
    done = run_python("-c", code, environ=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_torch_and_nvml_tell_of_the_same_devices() -> None:
    """The detected UUID, bus ID, name and memory are those of torch and of NVML."""
    nvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py, the extra nvml")
    nvml.nvmlInit()
    for device in gpumap.detect_node("cuda").devices:
        handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        properties = torch.cuda.get_device_properties(device.index)
        assert str(properties.uuid) in str(device.uuid)
        assert nvml.nvmlDeviceGetName(handle) == device.name == properties.name
        assert nvml.nvmlDeviceGetIndex(handle) == device.physical_index
        assert device.pci_bus_id == nvml.nvmlDeviceGetPciInfo(handle).busId.lower()
        total = nvml.nvmlDeviceGetMemoryInfo(handle).total
        assert 0.9 * total < (device.total_memory or 0) <= total
        assert 0 <= (device.free_memory or 0) <= total
        assert device.numa_node is None or device.cpu_affinity
    nvml.nvmlShutdown()


def test_one_process_trains_over_nccl() -> None:
    """A single process trains over NCCL on cuda:0, and its group is gone afterwards."""
    with gpumap.ddp_session(torch.nn.Linear(2, 1)) as m:
        assert dist.get_backend() == "nccl"
        device = gpumap.current().device
        assert device == torch.device("cuda", 0)
        m(torch.ones(4, 2, device=device)).sum().backward()
        assert m.module.weight.grad.tolist() == [[4.0, 4.0]]
    assert not dist.is_initialized()


def test_two_processes_on_one_gpu_are_refused_before_nccl() -> None:
    """Two ranks on one GPU are refused by its UUID, before NCCL starts."""
    uuid = gpumap.detect_node("cuda").devices[0].uuid
    ended = run(
        "timed", every={"CUDA_VISIBLE_DEVICES": str(uuid), "NCCL_DEBUG": "INFO"}
    )
    for rank in ended:
        assert rank.code == 1
        assert f"rank 0 and rank 1 are both on one device, {uuid}." in rank.out
        assert "RollCallError" in rank.out
        assert "Duplicate GPU" not in rank.out
        assert "NCCL INFO" not in rank.out


def test_no_context_besides_its_own() -> None:
    """Detection opens no CUDA context; a session opens at most its own device's."""
    detected, inside, own = json.loads(alone(CONTEXTS))
    assert detected == []
    assert inside in ([], [own])


def test_spawn_works_where_cuda_has_been_started() -> None:
    """spawn() works where CUDA has been started, though a fork could not use it."""
    torch.ones(1, device="cuda")
    [rank] = gpumap.spawn(spawnjobs.who, nprocs=1)
    assert rank["device"] == "cuda:0"


def test_every_device_is_measured_in_a_process_of_its_own() -> None:
    """measure() scores each GPU at more than 1 TFLOP/s, keyed by its UUID."""
    scores = gpumap.measure()
    devices = gpumap.detect_node("cuda").devices
    assert list(scores) == [device.uuid for device in devices]
    assert all(score > 1 for score in scores.values())


def test_all_reduce_is_right_on_every_size(tmp_path: Path) -> None:
    """The all-reduce benchmark finds no wrong sum over NCCL on all GPUs."""
    file = tmp_path / "found.json"
    script = Path(__file__).parent.parent.parent / "benchmarks/allreduce.py"
    command = [str(script), "-e", "1M", "--rounds", "2", "--json", str(file)]
    done = run_python(*command)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["device"] == "cuda"
    assert found["backend"] == "nccl"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.parametrize("fault", TABLE, ids=NAMES)
def test_survivors_name_who_failed_first_on_nccl(fault: Fault) -> None:
    """Each way to fail of tests/runtime/test_faults.py, on real NCCL."""
    if fault[3] > torch.cuda.device_count():
        pytest.skip(f"needs {fault[3]} NVIDIA GPUs")
    check(fault, longer=8.0, notices=False)


def test_an_error_of_the_last_kernel_ends_the_rank_with_its_own_traceback() -> None:
    """A device-side assert that nothing in the block waits for is still raised."""
    code = (
        "import gpumap, torch\n"
        "with gpumap.session() as s:\n"
        "    torch.zeros(1, device=s.device)[torch.tensor([5], device=s.device)]\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 1, done.stderr
    assert "device-side assert" in done.stderr


def test_a_context_on_another_device_is_told() -> None:
    """A tensor that was made on the first GPU before a session on the second."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    code = (
        "import gpumap, torch\n"
        "torch.zeros(1, device='cuda:0')\n"
        "with gpumap.session(gpus=[1]): pass\n"
    )
    done = run_python("-c", code)
    assert "has a context on cuda:0 as well, from before its session" in done.stderr

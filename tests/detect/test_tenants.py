"""Who uses a device, from NVML's lists and from /proc."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpumap.detect.processes import tenant_of
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.detect.tenants import with_tenants
from gpumap.mapping.devices import Device, Node, Tenant
from helpers.nodes import MIG, node
from helpers.pretended import Nvml, pretend_nvml

GIB, MIB = 2**30, 2**20
SLEEP = "import time; time.sleep(60)"
NOBODYS_PID = 2**22 + 1  # above the kernel's largest


@contextmanager
def running(*arguments: str, user: int | None = None) -> Generator[int, None, None]:
    """Run a program, and give its process id once it runs."""
    with subprocess.Popen(arguments, user=user, stdin=subprocess.DEVNULL) as process:
        try:
            # The kernel shows a program's arguments a moment after its start.
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
                time.sleep(0.01)
            yield process.pid
        finally:
            process.kill()


def idle(count: int, *, free: int = 23 * GIB, total: int = 24 * GIB) -> Node:
    """Return a node whose devices have this much memory."""
    one = node(count)
    memory = {"total_memory": total, "free_memory": free}
    devices = tuple(device.model_copy(update=memory) for device in one.devices)
    return one.model_copy(update={"devices": devices})


def uuid_of(one: Node, index: int = 0) -> str:
    """Return a device's UUID."""
    return str(one.devices[index].uuid)


def told(
    monkeypatch: pytest.MonkeyPatch, one: Node, reserved: int | None = 1 * GIB
) -> Nvml:
    """Let NVML know the devices of a node, by default with all memory accounted for."""
    nvml = pretend_nvml(monkeypatch, one)
    nvml.reserved = reserved
    return nvml


def pids(one: Node, index: int = 0) -> list[int | None] | None:
    """Return the process ids of a device's tenants; None if they are not known."""
    tenants = with_tenants(one, {}).devices[index].tenants
    return None if tenants is None else [tenant.pid for tenant in tenants]


def test_the_processes_that_compute_on_a_device_are_its_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device's tenants are the processes that NVML lists as computing on it."""
    one = idle(2)
    nvml = told(monkeypatch, one)
    with running(sys.executable, "-c", SLEEP) as mine:
        nvml.processes[uuid_of(one, 1)] = {"compute": {mine: GIB}, "mps": {1: None}}
        assert [pids(one, 0), pids(one, 1)] == [[], [1, mine]]
    assert nvml.open == 0


def test_memory_and_utilization_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free memory and utilization are replaced by what NVML tells now."""
    told(monkeypatch, idle(1, free=23 * GIB))
    old = {"free_memory": 5 * GIB, "utilization": 97}
    before = idle(1).devices[0].model_copy(update=old)
    [now] = with_tenants(Node(hostname="n1", devices=(before,)), {}).devices
    assert (now.free_memory, now.utilization) == (23 * GIB, None)


def test_a_slice_has_its_own_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process on one MIG slice is no tenant of the other slices of its GPU."""
    nvml = pretend_nvml(monkeypatch, MIG)
    nvml.processes[uuid_of(MIG, 1)] = {"compute": {1: None}}
    found = with_tenants(MIG, {}).devices
    assert [len(device.tenants or ()) for device in found] == [0, 1, 0, 0, 0]


def test_this_process_is_no_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this process nor one of its threads makes a device busy."""
    one = idle(1, free=20 * GIB)
    nvml = told(monkeypatch, one)
    nvml.processes[uuid_of(one)] = {"compute": {os.getpid(): 3 * GIB}}
    assert pids(one) == []
    nvml.processes[uuid_of(one)] = {"compute": {threading.get_native_id(): 3 * GIB}}
    assert pids(one) == []


def test_what_only_draws_is_no_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A display server does not make a workstation's device busy."""
    one = idle(1, free=22 * GIB)
    nvml = told(monkeypatch, one)
    nvml.displays.append(uuid_of(one))
    nvml.processes[uuid_of(one)] = {"compute": {}, "graphics": {1: 700 * MIB}}
    assert pids(one) == []


@pytest.mark.parametrize(
    ("taken", "display", "graphics", "expected"),
    [
        (2 * GIB, True, {1: GIB}, []),
        (2 * GIB + 1, True, {1: 2 * GIB}, [1]),
        (2 * GIB + 1, True, {}, [None]),
        (256 * MIB, False, {1: 4 * MIB}, []),
        (256 * MIB + 1, False, {1: 250 * MIB}, [1]),
        (256 * MIB + 1, False, {}, [None]),
    ],
)
def test_memory_that_no_listed_process_computes_in_makes_a_device_busy(
    monkeypatch: pytest.MonkeyPatch,
    taken: int,
    display: bool,  # noqa: FBT001 - a column
    graphics: dict[int, int | None],
    expected: list[int | None],
) -> None:
    """Above 2 GiB under a screen, or 256 MiB without one, somebody uses a device.

    NVML lists the processes of this PID namespace only. Nothing is known of a tenant
    that it does not list.
    """
    one = idle(1, free=23 * GIB - taken)
    nvml = told(monkeypatch, one)
    nvml.displays += [uuid_of(one)] * display
    nvml.processes[uuid_of(one)] = {"compute": {}, "graphics": graphics}
    assert pids(one) == expected


@pytest.mark.parametrize("reserved", [1 * GIB, None])
def test_memory_tells_nothing_where_it_is_not_the_drivers(
    monkeypatch: pytest.MonkeyPatch, reserved: int | None
) -> None:
    """Memory makes no device busy if it is the system's, or the reserve is unknown.

    The memory of a GPU that is a NUMA node holds the system's page cache; a driver
    before 510 does not tell what it reserves: 912 MB on an A100.
    """
    one = idle(1, free=10 * GIB)
    nvml = told(monkeypatch, one, reserved)
    nvml.numa_nodes += [uuid_of(one)] * (reserved is not None)
    assert pids(one) == []


def test_the_server_of_mps_is_no_tenant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MPS's server stays when its clients have gone; the clients are the tenants."""
    server = tmp_path / "nvidia-cuda-mps-server"
    server.symlink_to(sys.executable)
    one = idle(1)
    nvml = told(monkeypatch, one)
    with running(str(server), "-c", SLEEP) as pid:
        nvml.processes[uuid_of(one)] = {"compute": {pid: 30 * MIB}}
        assert pids(one) == []
        nvml.processes[uuid_of(one)]["mps"] = {1: GIB}
        assert pids(one) == [1]


def test_without_nvml_no_tenants_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-ml-py the node stays as it is."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert with_tenants(idle(2), {}) == idle(2)


def test_of_devices_that_nvml_does_not_know_no_tenants_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AMD's devices, other kinds and what NVML cannot open or tell have None."""
    one = idle(5)
    nvml = told(monkeypatch, one)
    nvml.lost.append(0)
    nvml.processes[uuid_of(one, 1)] = {"graphics": {}}
    changes: tuple[dict[str, object], ...] = (
        {},
        {},
        {"rocm": True},
        {"kind": "xpu"},
        {},
    )
    devices = tuple(
        device.model_copy(update=change)
        for device, change in zip(one.devices, changes, strict=True)
    )
    found = with_tenants(Node(hostname="n1", devices=devices), {}).devices
    assert [device.tenants for device in found] == [None, None, None, None, ()]


def test_a_described_device_has_the_described_tenants_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a rehearsal the description stands; without tenants in it there are none."""
    nvml = told(monkeypatch, idle(2))
    ann = Tenant(pid=7, user="ann")
    busy = Device(kind="cuda", index=0, uuid="GPU-a", free_memory=5, tenants=(ann,))
    plain = Device(kind="cuda", index=1, uuid="GPU-b")
    described = Node(hostname="n1", devices=(busy, plain))
    found = with_tenants(described, {REHEARSAL: "machine.json"})
    assert found.devices[0] == busy
    assert found.devices[1] == plain.model_copy(update={"tenants": ()})
    assert nvml.open == 0


def test_a_process_is_known_as_ps_knows_it() -> None:
    """User, command and start are those that ps prints, up to a rounded second.

    Of the program's path only the name is kept.
    """
    ps = shutil.which("ps")
    if ps is None:
        pytest.skip("needs ps")
    with running(sys.executable, "-c", SLEEP, "--epochs", "3") as pid:
        found = tenant_of(pid)
        fields = "user:64=,lstart=,args="
        shown = subprocess.check_output(
            [ps, "-ww", "-o", fields, "-p", str(pid)],
            env={**os.environ, "LC_ALL": "C"},
            text=True,
            timeout=30,
        )
    user, _, rest = shown.strip().partition(" ")
    started, command = rest.strip()[:24], rest.strip()[24:].strip()
    command = command.removeprefix(f"{Path(sys.executable).parent}/")
    assert (found.pid, found.user) == (pid, user)
    assert found.command == command[:60] + "…" * (len(command) > 60)
    seen = datetime.strptime(started, "%a %b %d %H:%M:%S %Y").astimezone()
    known = datetime.strptime(str(found.since), "%Y-%m-%d %H:%M:%S").astimezone()
    assert abs(seen - known) <= timedelta(seconds=1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start as another user")
def test_a_user_without_a_name_is_told_by_number() -> None:
    """A user that the system has no name for is "uid 54321"."""
    sleep = shutil.which("sleep")
    assert sleep
    with running(sleep, "60", user=54321) as pid:
        found = tenant_of(pid)
    assert (found.user, found.command) == ("uid 54321", "sleep 60")


def test_a_command_cannot_disturb_the_terminal() -> None:
    """Line ends, escapes and broken text in a command line are shown as marks."""
    odd = os.fsdecode(b"a\nb\x1b[2J\xff")
    with running(sys.executable, "-c", SLEEP, odd) as pid:
        command = str(tenant_of(pid).command)
    assert len(command) <= 61
    assert command.isprintable()


def test_a_process_that_does_not_show_is_known_by_its_id() -> None:
    """Of a process that /proc does not show, only the process id is known."""
    assert tenant_of(NOBODYS_PID) == Tenant(pid=NOBODYS_PID)

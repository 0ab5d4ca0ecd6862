"""A Slurm of three nodes on this machine: n1 and n2 with four fake GPUs, n3 with two.

Everything lives in one folder: key, sockets, state, logs. Nothing is written to /etc.
"""

import os
import secrets
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

SIZES = {"n1": 4, "n2": 4, "n3": 2}
_MEM_MAJOR, _NULL_MINOR = 1, 3


@contextmanager
def slurm(folder: Path) -> Generator[Path, None, None]:
    """Start the daemons, yield the path of slurm.conf, stop the daemons."""
    host = socket.gethostname().partition(".")[0]
    for name in ("munge", "spool", "state", "log"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    for number in range(4):
        # Slurm hands out character devices only; these are /dev/null by another name.
        device = os.makedev(_MEM_MAJOR, _NULL_MINOR)
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o666, device)
    ports = _free_ports(len(SIZES) + 1)
    configuration = folder / "slurm.conf"
    configuration.write_text(_slurm_conf(folder, host, ports))
    (folder / "gres.conf").write_text(
        "".join(
            f"NodeName={node} Name=gpu File={folder}/gpu[0-{count - 1}] "
            "Flags=nvidia_gpu_env\n"
            for node, count in SIZES.items()
        )
    )
    environ = {**os.environ, "SLURM_CONF": str(configuration)}
    try:
        _munge(folder)
        _daemon(["slurmctld"], environ)
        for node in SIZES:
            _daemon(["slurmd", "-N", node], environ)
        _wait_until_idle(environ, folder)
        yield configuration
    finally:
        for pid_file in [
            *sorted(folder.glob("slurmd-*.pid")),
            folder / "slurmctld.pid",
            folder / "munge" / "pid",
        ]:
            _stop(pid_file)


def _slurm_conf(folder: Path, host: str, ports: list[int]) -> str:
    nodes = "".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 "
        f"RealMemory=1000 Gres=gpu:{count}\n"
        for (node, count), port in zip(SIZES.items(), ports[1:], strict=True)
    )
    return f"""\
ClusterName=gpumap
FirstJobId={100 * os.getpid() + 1}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _munge(folder: Path) -> None:
    names = {"key-file": "key", "socket": "socket", "pid-file": "pid"}
    names |= {"log-file": "log", "seed-file": "seed"}
    _daemon(
        ["munged", *(f"--{o}={folder}/munge/{name}" for o, name in names.items())],
        dict(os.environ),
    )


def _daemon(command: list[str], environ: dict[str, str]) -> None:
    """Run a program that goes into the background by itself."""
    subprocess.run(command, env=environ, check=True, timeout=30)


def _wait_until_idle(environ: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        idle = subprocess.run(
            ["sinfo", "--noheader", "--states=idle", "--format=%D"],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        if idle.stdout.strip() == str(len(SIZES)):
            return
        time.sleep(0.1)
    logs = "\n".join(path.read_text() for path in (folder / "log").iterdir())
    message = f"Slurm's nodes did not become idle:\n{logs}"
    raise RuntimeError(message)


def _stop(pid_file: Path) -> None:
    """End a daemon; now and then slurmctld ignores a first SIGTERM."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if _runs(pid):
            os.kill(pid, sign)
        for _ in range(60):
            if not _runs(pid):
                return
            time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()

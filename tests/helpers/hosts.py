"""Two hosts on this machine: network namespaces on one bridge, with their own names."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ADDRESSES = {"hosta": "10.77.0.1", "hostb": "10.77.0.2"}
# A second network, of hosta and of a host that is no part of the job.
STRANGERS = {"hosta": "10.78.0.1", "stranger": "10.78.0.2"}


@dataclass(frozen=True)
class Hosts:
    """Two hosts on which commands can be started, and whose link can be cut.

    Attributes:
        prefix: The prefix of the namespaces' names.
        names: A file in the form of /etc/hosts.
        started: The processes that were started on the hosts.
    """

    prefix: str
    names: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self,
        host: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        names: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command on a host; names is its /etc/hosts, instead of self.names."""
        enter = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'
        process = subprocess.Popen(
            [
                *("ip", "netns", "exec", f"{self.prefix}{host}"),
                *("unshare", "--uts", "--mount", "bash", "-c", enter),
                *(host, str(names or self.names), *command),
            ],
            env=dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def stop(self) -> None:
        """Kill the processes that still run."""
        while self.started:
            process = self.started.pop()
            process.kill()
            process.communicate()

    def listening(self, host: str) -> set[str]:
        """Return ADDRESS:PORT of every TCP socket that listens on a host."""
        done = subprocess.run(
            ["ip", "netns", "exec", f"{self.prefix}{host}", "ss", "-Hltn"],
            capture_output=True,
            text=True,
            check=True,
        )
        return {line.split()[3] for line in done.stdout.splitlines()}

    def cut(self, host: str) -> None:
        """Take a host's link down at the bridge, so that neither side is told."""
        _ip("-n", f"{self.prefix}bridge", "link", "set", f"to-{host}", "down")


@contextmanager
def two_hosts(folder: Path) -> Generator[Hosts, None, None]:
    """Create the bridge and the hosts, and delete them afterwards."""
    prefix = f"gpumap{os.getpid()}-"
    bridge = f"{prefix}bridge"
    names = folder / "hosts"
    lines = [f"{address} {host}\n" for host, address in ADDRESSES.items()]
    names.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    made: list[str] = []
    try:
        hosts = {**ADDRESSES, **STRANGERS}
        for name in (bridge, *(f"{prefix}{host}" for host in hosts)):
            _ip("netns", "add", name)
            made.append(name)
        _ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        _ip("-n", bridge, "link", "set", "br0", "up")
        for host, address in ADDRESSES.items():
            own, end = f"{prefix}{host}", f"to-{host}"
            _ip(
                "-n",
                bridge,
                "link",
                "add",
                end,
                "type",
                "veth",
                "peer",
                "eth0",
                "netns",
                own,
            )
            _ip("-n", bridge, "link", "set", end, "master", "br0", "up")
            _ip("-n", own, "link", "set", "lo", "up")
            _ip("-n", own, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", own, "link", "set", "eth0", "up")
        inside, outside = f"{prefix}hosta", f"{prefix}stranger"
        _ip(
            *("-n", inside, "link", "add", "eth1", "type", "veth"),
            *("peer", "eth1", "netns", outside),
        )
        for host, address in STRANGERS.items():
            _ip("-n", f"{prefix}{host}", "addr", "add", f"{address}/24", "dev", "eth1")
            _ip("-n", f"{prefix}{host}", "link", "set", "eth1", "up")
        yield Hosts(prefix, names)
    finally:
        for name in made:
            _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        done.check_returncode()

"""One job across two hosts, and what becomes of it when the link is cut."""

import re
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from helpers.environments import clean_environment
from helpers.hosts import ADDRESSES, STRANGERS, Hosts, two_hosts
from helpers.launchers import HERE, REPORT, need, reports

PORT = 29511
EVERYWHERE = "0.0.0.0"  # noqa: S104 - what is tested


@pytest.fixture
def hosts(tmp_path: Path) -> Generator[Hosts, None, None]:
    """Make two hosts, and end what a test has left running on them."""
    need("ip", "ss", "unshare", root=True)
    with two_hosts(tmp_path) as made:
        try:
            yield made
        finally:
            made.stop()


def rank(number: int) -> dict[str, str]:
    """Return the variables of a rank that is alone on its host."""
    return {
        **clean_environment(),
        "RANK": str(number),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(number),
        "MASTER_ADDR": "hosta",
        "MASTER_PORT": str(PORT),
    }


def wait_until_training(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Read each rank's output until it has printed TRAINING."""
    for process in processes:
        assert process.stdout is not None
        said: list[str] = []
        while not (said and said[-1].startswith("TRAINING")):
            said.append(process.stdout.readline())
            assert said[-1], "".join(said)


def test_two_agents_run_one_job(hosts: Hosts, machines: str) -> None:
    """Two agents of torchrun are one job, and each node rehearses its own machine."""
    agents = []
    for host, size in zip(ADDRESSES, (2, 1), strict=True):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--nproc-per-node", str(size), "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", "hosta:29512", "--rdzv-id", "hosts", REPORT]
        environ = {**clean_environment(), "GPUMAP_REHEARSAL": machines}
        agents.append(hosts.start(host, command, environ))
    outs = [agent.communicate(timeout=100)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outs
    ranks = reports("".join(outs))
    assert len(ranks) == 3
    assert {r["host"] for r in ranks} == {"machine0", "machine1"}


@pytest.mark.parametrize("address", ["hosta", "localhost"])
def test_a_master_that_is_loopback_on_its_own_host_is_reached(
    hosts: Hosts, tmp_path: Path, address: str
) -> None:
    """If MASTER_ADDR is loopback on rank 0's host, the other host still gets through.

    Debian's installer maps the host's name to 127.0.1.1; operators write localhost.
    gloo would listen on that address too.
    """
    names = []
    for own, other in (("hosta", "hostb"), ("hostb", "hosta")):
        file = tmp_path / own
        file.write_text(
            f"127.0.0.1 localhost\n127.0.1.1 {own}\n{ADDRESSES[other]} {other}\n"
        )
        names.append(file)
    command = [sys.executable, REPORT]
    ranks = [
        hosts.start("hosta", command, rank(0) | {"MASTER_ADDR": address}, names[0]),
        hosts.start("hostb", command, rank(1), names[1]),
    ]
    outs = [process.communicate(timeout=100)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outs
    assert len(reports("".join(outs))) == 2
    assert f"MASTER_ADDR {address} is loopback (127.0." in outs[0]
    assert "set MASTER_ADDR to its address: 10.77.0.1 (eth0)" in outs[0]
    assert "every interface" not in outs[1]


def test_an_address_that_leads_here_from_elsewhere_is_told_with_the_way_out(
    hosts: Hosts, tmp_path: Path
) -> None:
    """A MASTER_ADDR that rank 0's host lacks is an error that suggests 0.0.0.0.

    It may be the name of a service or an address of a NAT. With 0.0.0.0 on rank 0 the
    ranks meet.
    """
    names = tmp_path / "names"
    names.write_text(f"127.0.0.1 localhost\n{ADDRESSES['hostb']} service\n")
    lost = rank(0) | {"MASTER_ADDR": "service"}
    out = hosts.start("hosta", [sys.executable, REPORT], lost, names).communicate(
        timeout=100
    )[0]
    assert "MASTER_ADDR service is not an address of hosta, where rank 0 runs." in out
    assert "Its addresses are 10.77.0.1 (eth0), 10.78.0.1 (eth1)" in out
    assert "set MASTER_ADDR=0.0.0.0 on rank 0 alone" in out
    ranks = [
        hosts.start(host, [sys.executable, REPORT], rank(n) | {"MASTER_ADDR": there})
        for n, (host, there) in enumerate((("hosta", EVERYWHERE), ("hostb", "hosta")))
    ]
    outs = [process.communicate(timeout=100)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outs


def test_the_store_listens_on_the_masters_address_only(hosts: Hosts) -> None:
    """The store listens on MASTER_ADDR, not on loopback or on every interface."""
    command = [sys.executable, str(HERE / "hold.py"), "3000"]
    ranks = [hosts.start(h, command, rank(n)) for n, h in enumerate(ADDRESSES)]
    wait_until_training(ranks)
    at_port = {x for x in hosts.listening("hosta") if x.endswith(f":{PORT}")}
    elsewhere = {x for x in hosts.listening("hostb") if x.endswith(f":{PORT}")}
    outs = [process.communicate(timeout=100)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outs
    assert at_port == {f"{ADDRESSES['hosta']}:{PORT}"}
    assert elsewhere == set()


KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
    print("connected")
except OSError as error:
    print(error)
"""
# torch's own store, as env:// opens it on rank 0.
TORCHS = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore("hosta", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("TRAINING", flush=True)
time.sleep(60)
"""


def knock(hosts: Hosts, port: int) -> str:
    """Connect to hosta from a host of another network; return what came of it."""
    command = [sys.executable, "-c", KNOCK, STRANGERS["hosta"], str(port)]
    return hosts.start("stranger", command, clean_environment()).communicate(
        timeout=30
    )[0]


def test_another_network_cannot_reach_the_store(hosts: Hosts) -> None:
    """A host of another network reaches torch's own store, but not gpumap's."""
    torchs = [sys.executable, "-c", TORCHS, str(PORT + 1)]
    wait_until_training([hosts.start("hosta", torchs, clean_environment())])
    assert knock(hosts, PORT + 1) == "connected\n"
    before = hosts.listening("hosta")
    command = [sys.executable, str(HERE / "hold.py"), "100000000"]
    ranks = [hosts.start(h, command, rank(n)) for n, h in enumerate(ADDRESSES)]
    wait_until_training(ranks)
    assert "refused" in knock(hosts, PORT)
    # gloo's sockets too: each on its host's own address in the job's network.
    new = hosts.listening("hosta") - before
    assert {address.rpartition(":")[0] for address in new} == {ADDRESSES["hosta"]}


def test_a_cut_link_ends_both_sides_with_the_other_ranks_name(hosts: Hosts) -> None:
    """After the link is cut both ranks end within 30 s and name the other rank.

    The collective's time limit is 5 s, the wait for an answer 5 s, and a rank that was
    not told waits 10 s.
    """
    command = [sys.executable, str(HERE / "hold.py"), "100000000"]
    ranks = [hosts.start(h, command, rank(n)) for n, h in enumerate(ADDRESSES)]
    wait_until_training(ranks)
    hosts.cut("hostb")
    began = time.monotonic()
    outs = [process.communicate(timeout=60)[0] for process in ranks]
    took = time.monotonic() - began
    assert [process.returncode for process in ranks] == [1, 1], outs
    assert took < 30, outs
    assert re.search(
        r"SessionError: rank 1 \(pid \d+ on hostb\), on cpu, was not heard of: ",
        outs[0],
    )
    assert "gpumap: raised on rank 1 (pid" in outs[1]
    assert re.search(
        r"rank 0 \(pid \d+ on hosta\), on cpu, hosts the store, and ",
        outs[1],
    )


def test_a_master_address_of_another_host_is_told(hosts: Hosts) -> None:
    """A MASTER_ADDR of another host is an error on rank 0, which names the variable."""
    command = [sys.executable, str(HERE / "hold.py"), "1"]
    environ = {**rank(0), "MASTER_ADDR": "hostb"}
    process = hosts.start("hosta", command, environ)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "MASTER_ADDR hostb is not an address of hosta, where rank 0 runs." in out

"""The real torchrun."""

import re
import sys
import time

from helpers.jobs import free_port
from helpers.launchers import REPORT, Run, Shown, reports
from helpers.programs import start_program

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def test_standalone(run: Run) -> None:
    """Three workers on one node: device index is the local rank."""
    ranks = run([*TORCHRUN, "--standalone", "--nproc-per-node", "3", REPORT])
    assert {rank["launcher"] for rank in ranks} == {"torchrun"}
    assert [rank["local_rank"] for rank in ranks] == [0, 1, 2]
    assert [rank["physical"] for rank in ranks] == [0, 1, 2]
    assert {rank["num_nodes"] for rank in ranks} == {1}


def test_virtual_local_rank(run: Run) -> None:
    """Each worker sees one device of its own, which is index 0."""
    command = [*TORCHRUN, "--standalone", "--virtual-local-rank"]
    ranks = run([*command, "--nproc-per-node", "2", REPORT], CUDA_VISIBLE_DEVICES="3,1")
    assert [rank["mask"] for rank in ranks] == ["3", "1"]
    assert [rank["index"] for rank in ranks] == [0, 0]
    assert [rank["physical"] for rank in ranks] == [3, 1]
    assert [rank["local_rank"] for rank in ranks] == [0, 1]


def test_two_agents_with_two_processes_and_one(machines: str) -> None:
    """Two agents with two processes and one are nodes of one job, in either order."""
    endpoint = f"127.0.0.1:{free_port()}"
    agents = []
    for size in (2, 1):
        command = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", str(size)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
        command += ["--rdzv-id", "uneven", "--local-addr", "127.0.0.1", REPORT]
        agents.append(start_program(command, {"GPUMAP_REHEARSAL": machines}))
        time.sleep(1)
    outs = [agent.communicate(timeout=100)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outs
    ranks = reports("".join(outs))
    sizes = {rank["node_rank"]: rank["local_world_size"] for rank in ranks}
    assert sorted(sizes.values()) == [1, 2]
    assert [r["index"] for r in ranks] == [r["local_rank"] for r in ranks]
    assert [r["host"] for r in ranks] == [f"machine{r['node_rank']}" for r in ranks]
    first = re.findall(r'REPORT .*"node_rank": (\d)', outs[0])
    assert len(set(first)) == 1


def test_python_m_gpumap_shows_the_same(shown: Shown) -> None:
    """`gpumap show` prints one launch line per rank under torchrun."""
    lines = shown(
        [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "gpumap", "show"]
    )
    assert [line.partition(", store")[0] for line in lines] == [
        f"launch: torchrun, rank {rank} of 2, local rank {rank} of 2, node 0 of 1"
        for rank in range(2)
    ]

"""A rank that fails under a real launcher: every rank of the job ends, and soon."""

import re
import sys
import time

import pytest

from helpers.accelerator import accelerator
from helpers.fault_table import FAULTS, SLACK
from helpers.jobs import free_port
from helpers.launchers import need
from helpers.programs import run_program

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
COMMANDS = {
    "torchrun": TORCHRUN,
    "mpirun.openmpi": [
        *("mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-np", "3"),
        sys.executable,
    ],
    "mpiexec.hydra": ["mpiexec.hydra", "-n", "3", sys.executable],
    "srun": ["srun", "--quiet", "-N1", "-n3", "-w", "n1", sys.executable],
}
# The first test may have to build the accelerator.
pytestmark = pytest.mark.timeout(600)


# Each fault by each backend, without a launcher: tests/runtime/test_faults.py.
@pytest.mark.parametrize(
    ("how", "backend"), [("raise", "gloo"), ("SIGKILL", "NCCL's manners")]
)
@pytest.mark.parametrize("launcher", COMMANDS)
def test_a_rank_that_fails_ends_the_job(
    launcher: str, how: str, backend: str, request: pytest.FixtureRequest
) -> None:
    """If rank 1 fails, the whole job ends within 10 s, and its output says so."""
    environ = {"MASTER_PORT": str(free_port()), "LIMIT": "60", "START": "60"}
    if launcher == "srun":
        conf: str = request.getfixturevalue("slurm_conf")
        # No name server knows the host names of the test's Slurm.
        environ |= {"SLURM_CONF": conf, "MASTER_ADDR": "127.0.0.1"}
    elif launcher != "torchrun":
        need(launcher)
    if backend != "gloo":
        environ |= accelerator()
    done = run_program([*COMMANDS[launcher], str(FAULTS), "body", how, "1"], environ)
    ended = time.monotonic()
    out = done.stdout + done.stderr
    assert done.returncode != 0, out
    assert ended - float(re.findall(r"FAULT (\S+)", out)[0]) < 10 + SLACK, out
    told = "bad batch" if how == "raise" else r"rank 1 \(pid|Signal 9|signal 9|Killed"
    assert re.search(told, out), out

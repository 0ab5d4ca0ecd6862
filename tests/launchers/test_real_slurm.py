"""The real Slurm: srun, sbatch, and what runs inside them."""

import contextlib
import os
import pty
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.environments import clean_environment
from helpers.jobs import free_port
from helpers.launchers import REPORT, Report, Run, Shown, reports

SRUN = ["srun", "--quiet"]
# The nodes of the test's Slurm have names that no name server knows.
LOCAL = {"MASTER_ADDR": "127.0.0.1"}


def places(ranks: list[Report]) -> list[tuple[int, int]]:
    """Return (node_rank, local_rank) of each rank."""
    return [(rank["node_rank"], rank["local_rank"]) for rank in ranks]


# Options, then of each rank: (node_rank, local_rank), index after and before masking.
CASES: dict[str, tuple[str, list[tuple[int, int]], list[int], list[int]]] = {
    "even": (
        "-N2 --ntasks-per-node=2 -w n1,n2",
        [(0, 0), (0, 1), (1, 0), (1, 1)],
        [0, 1, 0, 1],
        [0, 1, 0, 1],
    ),
    "uneven": (
        "-N2 -n3 -w n1,n2",
        [(0, 0), (0, 1), (1, 0)],
        [0, 1, 0],
        [0, 1, 0],
    ),
    "cyclic": (
        "-N2 -n4 --ntasks-per-node=2 -w n1,n2 -m cyclic",
        [(0, 0), (1, 0), (0, 1), (1, 1)],
        [0, 0, 1, 1],
        [0, 0, 1, 1],
    ),
    "three nodes, the last with two GPUs": (
        "-N3 -n3 --ntasks-per-node=1 -w n1,n2,n3",
        [(0, 0), (1, 0), (2, 0)],
        [0, 0, 0],
        [0, 0, 0],
    ),
    "a GPU for each task": (
        "-N1 -n3 -w n1 --gpus-per-task=1",
        [(0, 0), (0, 1), (0, 2)],
        [0, 0, 0],
        [0, 1, 2],
    ),
    "two GPUs for each task": (
        "-N1 -n2 -w n1 --gpus-per-task=2",
        [(0, 0), (0, 1)],
        # It may be one mask for both tasks: the local rank selects a device.
        [0, 1],
        [0, 3],
    ),
    "bound by a map": (
        "-N1 -n2 -w n1 --gres=gpu:4 --gpu-bind=map_gpu:3,1",
        [(0, 0), (0, 1)],
        [0, 0],
        [3, 1],
    ),
    "bound to nothing": (
        "-N1 -n2 -w n1 --gpus-per-task=1 --gpu-bind=none",
        [(0, 0), (0, 1)],
        [0, 1],
        [0, 1],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_srun(case: str, run: Run, python: list[str], slurm_conf: str) -> None:
    """Each task of srun has the node rank, local rank and device of the table."""
    options, where, index, physical = CASES[case]
    ranks = run([*SRUN, *options.split(), *python], SLURM_CONF=slurm_conf, **LOCAL)
    assert {rank["launcher"] for rank in ranks} == {"Slurm"}
    assert places(ranks) == where
    assert [rank["index"] for rank in ranks] == index
    assert [rank["physical"] for rank in ranks] == physical


def batch(
    machines: str, tmp_path: Path, slurm_conf: str, options: str, line: str
) -> list[Report]:
    """Run a batch script to its end and return the reports of its ranks."""
    out = tmp_path / "out"
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{line}\necho ENDED $?\n")
    subprocess.run(
        ["sbatch", "--quiet", f"--output={out}", *options.split(), str(script)],
        env={
            **clean_environment(),
            **LOCAL,
            "GPUMAP_REHEARSAL": machines,
            "SLURM_CONF": slurm_conf,
        },
        check=True,
        timeout=30,
    )
    deadline = time.monotonic() + 100
    text = ""
    while "ENDED" not in text:
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
        text = out.read_text() if out.exists() else ""
    assert "ENDED 0" in text, text
    return reports(text)


def test_srun_inside_sbatch(machines: str, tmp_path: Path, slurm_conf: str) -> None:
    """Inside sbatch the tasks of the srun step are the ranks."""
    line = f"srun --quiet {sys.executable} {REPORT}"
    ranks = batch(machines, tmp_path, slurm_conf, "-N2 -n3 -w n1,n2", line)
    assert places(ranks) == [(0, 0), (0, 1), (1, 0)]


def test_a_step_smaller_than_its_job(
    machines: str, tmp_path: Path, slurm_conf: str
) -> None:
    """Two tasks on the second of the job's nodes are a world of two."""
    line = f"srun --quiet -N1 -n2 -w n2 {sys.executable} {REPORT}"
    ranks = batch(
        machines, tmp_path, slurm_conf, "-N2 -n4 --ntasks-per-node=2 -w n1,n2", line
    )
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    assert places(ranks) == [(0, 0), (0, 1)]
    assert {rank["num_nodes"] for rank in ranks} == {1}


def test_plain_python_inside_sbatch_waits_for_nobody(
    machines: str, tmp_path: Path, slurm_conf: str
) -> None:
    """Plain python in a batch script is a single process, though SLURM_NTASKS is 4."""
    line = f"{sys.executable} {REPORT}"
    [alone] = batch(machines, tmp_path, slurm_conf, "-N1 -n4 -w n1", line)
    assert (alone["launcher"], alone["world_size"]) == ("single process", 1)


def test_the_shell_of_a_terminal_says_so_in_its_first_seconds(slurm_conf: str) -> None:
    """A script in `srun -n 2 --pty bash` is soon told how to be a single process."""
    code = "import gpumap; gpumap.session(device='cpu', start_timeout=7).__enter__()"
    typed = f"{shlex.join([sys.executable, '-c', code])}; exit 0\n"
    command = [*SRUN, "-N1", "-n2", "-w", "n1", "--pty", "bash", "--norc"]
    terminal, far = pty.openpty()
    with subprocess.Popen(
        command,
        env={**clean_environment(), **LOCAL, "SLURM_CONF": slurm_conf},
        stdin=far,
        stdout=far,
        stderr=far,
        start_new_session=True,
    ) as step:
        os.close(far)
        os.write(terminal, typed.encode())
        text = b""
        with contextlib.suppress(OSError):  # what reading a closed terminal raises
            while more := os.read(terminal, 4096):
                text += more
    os.close(terminal)
    assert step.returncode == 0
    waiting, _, error = text.decode().partition("Traceback")
    assert "rank 1 of 2 not here yet" in waiting
    for told in (waiting, error):
        assert "GPUMAP_LAUNCHER=none makes this a single process" in told


def test_torchrun_inside_srun(run: Run, slurm_conf: str) -> None:
    """Inside srun the ranks and nodes are torchrun's, and Slurm's tasks its agents."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "job"]
    torchrun += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    torchrun += ["--local-addr", "127.0.0.1", REPORT]
    options = ["-N2", "--ntasks-per-node=1", "-w", "n1,n2"]
    ranks = run([*SRUN, *options, *torchrun], SLURM_CONF=slurm_conf)
    assert {rank["launcher"] for rank in ranks} == {"torchrun"}
    assert places(ranks) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("options", "where", "store"),
    [
        ("-N2 -n3 -w n1,n2 -m plane=2", ["0 of 2", "0 of 2", "1 of 2"], "n1:"),
        ("-n3 -m arbitrary -w n2,n1,n1", ["1 of 2", "0 of 2", "0 of 2"], "?:"),
    ],
    ids=["plane", "arbitrary"],
)
def test_other_distributions(
    options: str, where: list[str], store: str, shown: Shown, slurm_conf: str
) -> None:
    """Under `-m arbitrary` rank 0 is not on the first node: no address is guessed.

    Without an address no session could start, and the command's exit code says so.
    """
    command = [*SRUN, *options.split(), sys.executable, "-m", "gpumap", "show"]
    lines = shown(command, starts=store != "?:", SLURM_CONF=slurm_conf)
    assert [line.split(", node ")[1].split(",")[0] for line in lines] == where
    assert all(f", store {store}" in line for line in lines)


def test_python_m_gpumap_shows_the_same(shown: Shown, slurm_conf: str) -> None:
    """`gpumap show` prints one launch line per task, with Slurm's ranks."""
    command = [
        *SRUN,
        *["-N2", "-n3", "-w", "n1,n2"],
        sys.executable,
        "-m",
        "gpumap",
        "show",
    ]
    lines = shown(command, SLURM_CONF=slurm_conf)
    assert [line.partition(", store n1:")[0] for line in lines] == [
        "launch: Slurm, rank 0 of 3, local rank 0 of 2, node 0 of 2",
        "launch: Slurm, rank 1 of 3, local rank 1 of 2, node 0 of 2",
        "launch: Slurm, rank 2 of 3, local rank 0 of 1, node 1 of 2",
    ]

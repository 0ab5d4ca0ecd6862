"""Scripts that know nothing of gpumap, started by `gpumap run` under real launchers.

Each is written as its library's documentation writes one, and reports how that library
sees its place, and how the training went.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers.accelerator import accelerator
from helpers.jobs import free_port
from helpers.launchers import need
from helpers.programs import run_program

SCRIPTS = Path(__file__).parent / "scripts"
PYTHON = sys.executable
TORCHRUN = f"{PYTHON} -m torch.distributed.run --standalone --nproc-per-node 2"
OPEN_MPI = "mpirun.openmpi --oversubscribe --allow-run-as-root"
SRUN = "srun --quiet --kill-on-bad-exit -w n1,n2"
SAMPLES = 64
# A launcher that is asked to end ends its ranks; a job takes 40 s on a busy machine.
BOUND = ["timeout", "--kill-after=10", "200"]
# The first test may have to build the accelerator.
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Layout:
    """A job's command line, gpumap's options, and what is right for each rank."""

    launch: str
    gpus: str
    local_ranks: tuple[int, ...]
    masks: tuple[str, ...]
    nodes: int = 1


LAYOUTS = {
    name: Layout(launch, gpus="3,1", local_ranks=(0, 1), masks=("3,1", "3,1"))
    for name, launch in {
        "torchrun": TORCHRUN,
        "Open MPI": f"{OPEN_MPI} -np 2 {PYTHON}",
        "MPICH": f"mpiexec.hydra -n 2 {PYTHON}",
    }.items()
} | {
    "Slurm, even": Layout(
        f"{SRUN} -N2 --ntasks-per-node=2 {PYTHON}",
        gpus="3,1",
        local_ranks=(0, 1, 0, 1),
        masks=("3,1",) * 4,
        nodes=2,
    ),
    "Slurm, cyclic": Layout(
        f"{SRUN} -N2 --ntasks-per-node=2 -m cyclic {PYTHON}",
        gpus="3,1",
        local_ranks=(0, 0, 1, 1),
        masks=("3,1",) * 4,
        nodes=2,
    ),
    "Slurm, uneven": Layout(
        f"{SRUN} -N2 -n4 -m plane=3 {PYTHON}",
        gpus="5,3,6",
        local_ranks=(0, 1, 2, 0),
        masks=("5,3,6", "5,3,6", "5,3,6", "5"),
        nodes=2,
    ),
}
TRAINER = (
    "--use_cpu --report_to none --save_strategy no --disable_tqdm true "
    "--logging_steps 1 --learning_rate 0.01 --output_dir"
)
# The module that each script imports.
CLIENTS = {
    "trainer": "transformers",
    "accelerated": "accelerate",
    "fabric": "lightning_fabric",
    "ignited": "ignite",
    "plain": "torch",
}


def command(layout: Layout, client: str, folder: Path, *options: str) -> list[str]:
    """Return what a user types to train with a script in all ranks of a layout."""
    words = [*layout.launch.split(), "-m", "gpumap", "run", *options]
    words.append(str(SCRIPTS / f"{client}.py"))
    if client == "trainer":
        words += [*TRAINER.split(), str(folder)]
    if client == "accelerated":
        words.append("--cpu")
    if client == "fabric":
        words += ["--accelerator", "cpu", "--num-nodes", str(layout.nodes)]
        words += ["--devices", str(max(layout.local_ranks) + 1)]
    return words


@pytest.fixture
def environ(machines: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return what a layout's jobs need here, besides what their launcher sets."""
    layout = request.getfixturevalue("layout")
    found = {"GPUMAP_REHEARSAL": machines, "HF_HUB_OFFLINE": "1"}
    if layout.launch.startswith("srun"):
        # No name server knows the host names of the test's Slurm.
        found |= {"MASTER_ADDR": "127.0.0.1"}
        found |= {"SLURM_CONF": request.getfixturevalue("slurm_conf")}
    elif layout.launch.startswith("mpi"):
        need(layout.launch.split()[0])
        found |= {"MASTER_PORT": str(free_port())}
    return found


def run(words: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; what it writes is one text."""
    return run_program(
        [*BOUND, *words],
        environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        timeout=250,
    )


def reports(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return what each rank reported, in the order of the ranks."""
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    return sorted(map(json.loads, lines), key=lambda report: int(report["rank"]))


def trained(ranks: list[dict[str, Any]], size: int) -> None:
    """Check that all ranks have trained together, each on its share of the samples."""
    assert [rank["rank"] for rank in ranks] == list(range(size))
    assert {rank["world_size"] for rank in ranks} == {size}
    assert {rank["samples"] for rank in ranks} == {SAMPLES / size}
    assert len({rank["weights"] for rank in ranks}) == 1
    assert all(first > last for first, last in (rank["losses"] for rank in ranks))


def need_client(client: str) -> None:
    """Skip the test without its library."""
    if find_spec(CLIENTS[client]) is None:
        pytest.skip(f"needs {CLIENTS[client]}, which nox -s clients installs")


JOBS = [
    pytest.param(client, layout, id=f"{client}-{name}")
    for client in CLIENTS
    for name, layout in LAYOUTS.items()
    # Fabric refuses this one, as the next test shows.
    if (client, name) != ("fabric", "Slurm, uneven")
]


@pytest.mark.parametrize(("client", "layout"), JOBS)
def test_each_rank_sees_its_place_and_trains(
    client: str, layout: Layout, environ: dict[str, str], tmp_path: Path
) -> None:
    """Each library finds its rank, local rank and mask, and trains with all others."""
    need_client(client)
    words = command(layout, client, tmp_path, "--gpus", layout.gpus)
    ranks = reports(run(words, environ))
    trained(ranks, len(layout.local_ranks))
    assert tuple(rank["local_rank"] for rank in ranks) == layout.local_ranks
    assert tuple(rank["mask"] for rank in ranks) == layout.masks


@pytest.mark.parametrize("layout", [LAYOUTS["Slurm, uneven"]], ids=["uneven"])
def test_fabric_itself_refuses_nodes_of_unequal_size(
    layout: Layout, environ: dict[str, str], tmp_path: Path
) -> None:
    """Fabric wants as many tasks on each node, and ends with an error of its own."""
    need_client("fabric")
    words = command(layout, "fabric", tmp_path, "--gpus", layout.gpus)
    done = run(words, environ)
    assert done.returncode != 0
    assert "You set `--ntasks=4` in your SLURM bash script" in done.stdout


@pytest.mark.parametrize("layout", [LAYOUTS["Open MPI"]], ids=["Open MPI"])
def test_with_own_each_rank_has_one_device_and_local_rank_0(
    layout: Layout, environ: dict[str, str], tmp_path: Path
) -> None:
    """With --own a script sees its own device alone, and takes cuda:0 for it."""
    words = command(layout, "plain", tmp_path, "--own", "--gpus", layout.gpus)
    ranks = reports(run(words, environ))
    trained(ranks, 2)
    assert [rank["local_rank"] for rank in ranks] == [0, 0]
    assert [rank["mask"] for rank in ranks] == ["3", "1"]


def test_a_script_trains_on_the_device_of_its_local_rank(tmp_path: Path) -> None:
    """On an accelerator each rank trains on the device that its local rank counts.

    That device's driver has no mask, so that no other device could be meant.
    """
    words = command(LAYOUTS["torchrun"], "plain", tmp_path)
    ranks = reports(run(words, accelerator()))
    trained(ranks, 2)
    assert [rank["device"] for rank in ranks] == ["pretend:0", "pretend:1"]


def test_without_a_mask_no_other_device_can_be_chosen(tmp_path: Path) -> None:
    """Where no mask can make LOCAL_RANK mean the chosen device, no script starts."""
    words = command(LAYOUTS["torchrun"], "plain", tmp_path, "--gpus", "2,3")
    done = run(words, accelerator())
    assert done.returncode == 1
    assert "Devices of the kind pretend have no mask" in done.stdout
    assert '{"rank"' not in done.stdout

"""`gpumap run` under the real launchers, with a script that knows none of them."""

import json
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from helpers.environments import clean_environment
from helpers.hosts import Hosts, two_hosts
from helpers.jobs import free_port
from helpers.launchers import need
from helpers.programs import run_program
from helpers.ranks_of_run import VIEW, script

# The nodes of the test's Slurm have names that no name server knows.
LOCAL = {"MASTER_ADDR": "127.0.0.1"}
View = dict[str, str]


@pytest.fixture
def train(tmp_path: Path) -> str:
    """Return the path of a script that prints what it finds."""
    return script(tmp_path)


def views(text: str) -> list[View]:
    """Return what each rank's script found, in the order of the ranks."""
    # The launcher may put two ranks' texts on one line.
    parts = [f"[[{part}" for part in text.split("[[")[1:]]
    found: list[View] = [json.JSONDecoder().raw_decode(part)[0][1] for part in parts]
    found.sort(key=lambda view: int(view["RANK"]))
    assert [view["RANK"] for view in found] == [str(n) for n in range(len(found))], text
    assert {view["WORLD_SIZE"] for view in found} == {str(len(found))}
    return found


def run(
    command: Sequence[str], words: Sequence[str], machines: str, **environ: str
) -> list[View]:
    """Run `gpumap run` with these words under a command that starts its ranks."""
    environ = {"GPUMAP_REHEARSAL": machines, **environ}
    gpumap = [sys.executable, "-m", "gpumap", "run"]
    done = run_program([*command, *gpumap, *words], environ, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return views(done.stdout)


# Options of srun and of run; each rank's node, local rank and mask, by hand.
CASES: dict[str, tuple[str, str, list[tuple[str, str, str]]]] = {
    "even": (
        "-N2 --ntasks-per-node=2 -w n1,n2",
        "--gpus 3,1",
        [("0", "0", "3,1"), ("0", "1", "3,1"), ("1", "0", "3,1"), ("1", "1", "3,1")],
    ),
    "uneven": (
        "-N2 -n3 -w n1,n2",
        "--gpus 2,0",
        [("0", "0", "2,0"), ("0", "1", "2,0"), ("1", "0", "2")],
    ),
    "cyclic, by global rank": (
        "-N2 -n4 --ntasks-per-node=2 -w n1,n2 -m cyclic",
        "--strategy modulo",
        [("0", "0", "0,2"), ("1", "0", "1,3"), ("0", "1", "0,2"), ("1", "1", "1,3")],
    ),
    "a GPU for each task": (
        "-N1 -n3 -w n1 --gpus-per-task=1",
        "",
        [("0", "0", "0"), ("0", "0", "1"), ("0", "0", "2")],
    ),
    "bound to nothing": (
        "-N1 -n2 -w n1 --gpus-per-task=1 --gpu-bind=none",
        "--gpus 1,0",
        [("0", "0", "1,0"), ("0", "1", "1,0")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_srun(case: str, train: str, machines: str, slurm_conf: str) -> None:
    """Each task's script finds the node, the local rank and the mask of the table."""
    options, words, expected = CASES[case]
    command = ["srun", "--quiet", *options.split()]

    found = run(
        command, [*words.split(), train], machines, SLURM_CONF=slurm_conf, **LOCAL
    )

    names = ("NODE_RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
    assert [tuple(view[name] for name in names) for view in found] == expected
    assert len({view["MASTER_PORT"] for view in found}) == 1


MPI = {
    "mpirun.openmpi": ("--oversubscribe", "--allow-run-as-root", "-np", "3"),
    "mpiexec.hydra": ("-n", "3"),
}


@pytest.mark.parametrize("program", MPI)
def test_mpi(program: str, train: str, machines: str) -> None:
    """Three ranks have one mask, whose entries are theirs by local rank."""
    need(program)
    command, port = [program, *MPI[program]], str(free_port())

    found = run(command, ["--gpus", "3,0,2", train], machines, MASTER_PORT=port)

    assert [view["LOCAL_RANK"] for view in found] == ["0", "1", "2"]
    assert {view["CUDA_VISIBLE_DEVICES"] for view in found} == {"3,0,2"}
    assert {view["MASTER_ADDR"] for view in found} == {"127.0.0.1"}
    assert not [name for view in found for name in view if "TORCHELASTIC" in name]


def test_torchrun(train: str, machines: str) -> None:
    """Typed where the script's name would stand, with -m."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words = ["-m", "gpumap", "run", "--gpus", "3,0", train]

    done = run_program([*torchrun, *words], {"GPUMAP_REHEARSAL": machines})
    found = views(done.stdout)

    assert [view["LOCAL_RANK"] for view in found] == ["0", "1"]
    assert {view["CUDA_VISIBLE_DEVICES"] for view in found} == {"3,0"}


@pytest.fixture
def hosts(tmp_path: Path) -> Generator[Hosts, None, None]:
    """Make two hosts, and end what a test has left running on them."""
    need("ip", "unshare", root=True)
    with two_hosts(tmp_path) as made:
        try:
            yield made
        finally:
            made.stop()


def test_hosts_are_numbered_where_the_launcher_does_not(
    hosts: Hosts, train: str
) -> None:
    """With Open MPI's variables two hosts find which is the first, by their ranks."""
    gpumap = [sys.executable, "-m", "gpumap", "run", train]
    placed = [("hosta", 0, 0), ("hostb", 1, 0), ("hostb", 2, 1)]
    sizes = {"hosta": 1, "hostb": 2}
    started = []
    for host, rank, local_rank in placed:
        told = {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": 3,
            "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": sizes[host],
            "MASTER_ADDR": "hosta",
            "MASTER_PORT": 29512,
            "GPUMAP_REHEARSAL": "dgx-a100",
        }
        environ = clean_environment() | {name: str(x) for name, x in told.items()}
        started.append(hosts.start(host, gpumap, environ))

    text = "".join(process.communicate(timeout=100)[0] for process in started)
    found = views(text)

    assert [view["NODE_RANK"] for view in found] == ["0", "1", "1"]
    assert [view["GROUP_RANK"] for view in found] == ["0", "1", "1"]
    assert {view["GROUP_WORLD_SIZE"] for view in found} == {"2"}
    masks = [view["CUDA_VISIBLE_DEVICES"] for view in found]
    assert masks == ["0", "0,1", "0,1"]


def test_slurm_sees_the_scripts_own_end(
    tmp_path: Path, machines: str, slurm_conf: str
) -> None:
    """The exit code of a task is that of its script, and no process is in between."""
    text = f"{VIEW}sys.exit(7)"
    command = ["srun", "--quiet", "-N1", "-n2", "-w", "n1", sys.executable, "-m"]

    done = run_program(
        [*command, "gpumap", "run", script(tmp_path, text)],
        {"GPUMAP_REHEARSAL": machines, "SLURM_CONF": slurm_conf, **LOCAL},
    )

    assert done.returncode == 7


@pytest.mark.parametrize("program", MPI)
def test_ranks_that_a_script_starts_find_their_own_launcher(
    program: str, tmp_path: Path, machines: str
) -> None:
    """A driver under `gpumap run` starts three ranks, which are no worlds of one."""
    need(program)
    text = (
        "import sys, gpumap; x = gpumap.detect_launch()\n"
        'sys.stdout.write(f"{x.rank} {x.world_size}\\n")'
    )
    driver = [sys.executable, "-m", "gpumap", "run", "--no-python", program]
    inner = [sys.executable, script(tmp_path, text)]

    done = run_program([*driver, *MPI[program], *inner], {"GPUMAP_REHEARSAL": machines})

    assert sorted(done.stdout.split("\n")) == ["", "0 3", "1 3", "2 3"], done.stderr

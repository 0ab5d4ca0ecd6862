"""What `gpumap run` in front of a script costs, until the script has ended.

`python benchmarks/run.py [ROUNDS]` runs four jobs, 7 rounds by default after one that
is not counted: a script that does nothing and one that imports torch, each as one
process, and as two ranks whose variables are set as by a launcher that costs nothing.
In each round every job is run by itself, behind `gpumap run` in rehearsal of a DGX
A100, where nothing imports torch before the script, and behind it where only torch can
tell the devices: without a rehearsal and without NVML. All on the CPU, in one order and
then in the other. Prints medians, with their quartiles, of the seconds until the last
rank has ended, and of those that a rank used a CPU for, which other programs disturb
less; and what `gpumap run` adds to the job by itself in the same round: seconds, and
the ratio.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from parts.figures import quartiles
from parts.two_ranks import free_port

SCRIPTS = {"nothing": "", "import torch": "import torch\n"}
SIZES = (1, 2)
ALONE = "by itself"
WAYS: dict[str, dict[str, str]] = {
    ALONE: {"CUDA_VISIBLE_DEVICES": ""},
    "gpumap run, rehearsed": {"GPUMAP_REHEARSAL": "dgx-a100"},
    "gpumap run, by torch": {"CUDA_VISIBLE_DEVICES": ""},
}
_PATIENCE = 120.0
# What another job, a rehearsal or a mask has left in this environment.
_OTHERS = ("GPUMAP_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
_MASKS = "VISIBLE_DEVICES"


class Job(NamedTuple):
    """A script, and by how many ranks it is run."""

    script: str
    size: int


class Spent(NamedTuple):
    """Seconds of a job.

    Attributes:
        clock: From the first rank's start to the last one's end.
        cpu: Of a rank, user's and system's; the mean of the ranks.
    """

    clock: float
    cpu: float


class Added(NamedTuple):
    """What a way adds to a job: quartiles and median.

    Attributes:
        seconds: Of the job.
        more: Of those, seconds that the job by itself does not take, round by round.
        ratio: Its seconds over those by itself, round by round.
    """

    seconds: tuple[float, float, float]
    more: tuple[float, float, float]
    ratio: tuple[float, float, float]


Found = dict[tuple[Job, str], list[Spent]]


def main(rounds: int) -> None:
    """Print both tables."""
    jobs = [Job(*both) for both in product(SCRIPTS, SIZES)]
    found: Found = {}
    with tempfile.TemporaryDirectory() as folder:
        _write_files(Path(folder))
        for number in range(rounds + 1):
            turn = list(product(jobs, WAYS))
            for job, way in turn[:: -1 if number % 2 else 1]:
                spent = run_job(job, way, Path(folder))
                # The first round warms the files' cache up.
                found.setdefault((job, way), []).extend([spent] if number else [])
    print("\n".join([*table(found, "clock"), "", *table(found, "cpu")]))


def run_job(job: Job, way: str, folder: Path) -> Spent:
    """Return the seconds that a job takes.

    Raises:
        RuntimeError: A rank did not end with exit code 0, or not within 120 s.
    """
    script = str(folder / f"{job.script}.py")
    prefix = [] if way == ALONE else ["-m", "gpumap", "run"]
    environments = list(_environments(job.size, way, folder))
    with ExitStack() as running:
        began, used = time.perf_counter(), _cpu_of_ended()
        ranks = [
            subprocess.Popen(
                [sys.executable, *prefix, script],
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for env in environments
        ]
        for rank in ranks:
            running.enter_context(rank)
            running.callback(rank.kill)
        ends = [_end(rank, began + _PATIENCE) for rank in ranks]
        clock = time.perf_counter() - began
    if bad := "; ".join(end for end in ends if end is not None):
        raise RuntimeError(f"{job.script}, {job.size} ranks, {way}: {bad}")
    return Spent(clock, (_cpu_of_ended() - used) / job.size)


def table(found: Found, what: Literal["clock", "cpu"]) -> Iterator[str]:
    """Yield a line for each job by itself, and below it one for each way."""
    unit = {"clock": "s", "cpu": "CPU s"}[what]
    yield (
        f"{'the script':12}{'ranks':>6}  {'way':22}{unit:>24}{unit + ' more':>24}"
        f"{'ratio':>24}"
    )
    for job in dict.fromkeys(job for job, _ in found):
        alone = [getattr(spent, what) for spent in found[job, ALONE]]
        for way in WAYS:
            of = added([getattr(spent, what) for spent in found[job, way]], alone)
            row = f"{job.script:12}{job.size:6}  {way:22}{_three(of.seconds, 3):>24}"
            if way != ALONE:
                row += f"{_three(of.more, 3):>24}{_three(of.ratio, 2):>24}"
            yield row


def added(seconds: Sequence[float], alone: Sequence[float]) -> Added:
    """Return what a way adds to a job by itself, in the same rounds."""
    pairs = list(zip(seconds, alone, strict=True))
    return Added(
        seconds=quartiles(seconds),
        more=quartiles([way - by_itself for way, by_itself in pairs]),
        ratio=quartiles([way / by_itself for way, by_itself in pairs]),
    )


def _write_files(folder: Path) -> None:
    for name, text in SCRIPTS.items():
        (folder / f"{name}.py").write_text(text)
    # The extra nvml as it is where it is not installed.
    hidden = folder / "without_nvml"
    hidden.mkdir()
    (hidden / "pynvml.py").write_text("raise ImportError('hidden')\n")


def _environments(size: int, way: str, folder: Path) -> Iterator[dict[str, str]]:
    """Yield each rank's environment; a single process has no launcher."""
    env = dict(_kept(os.environ.items())) | WAYS[way]
    paths = [str(folder / "without_nvml"), env.get("PYTHONPATH", "")]
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if size == 1:
        yield env | {"GPUMAP_LAUNCHER": "none"}
        return
    job = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank in range(size):
        yield env | job | {"RANK": str(rank), "LOCAL_RANK": str(rank)}


def _kept(variables: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in variables:
        if not name.startswith(_OTHERS) and _MASKS not in name:
            yield name, value


def _cpu_of_ended() -> float:
    """Return the CPU seconds of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end(rank: subprocess.Popen[str], deadline: float) -> str | None:
    """Return why a rank did not end well; None if it did."""
    try:
        _, errors = rank.communicate(timeout=max(0.0, deadline - time.perf_counter()))
    except subprocess.TimeoutExpired:
        return f"no end within {_PATIENCE:.0f} s"
    if rank.returncode == 0:
        return None
    return f"exit code {rank.returncode}: {errors.strip() or 'it said nothing'}"


def _three(values: tuple[float, float, float], digits: int) -> str:
    """Return the median, and the quartiles in brackets."""
    low, median, high = (f"{value:.{digits}f}" for value in values)
    return f"{median} ({low}-{high})"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)

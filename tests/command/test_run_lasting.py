"""`gpumap run`: claims and CPUs that last as long as the script, and gpumap in it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpumap.detect.claims import Claims, holder_of
from helpers.environments import rank_environment
from helpers.jobs import free_port
from helpers.programs import run_python
from helpers.ranks_of_run import ended, run_ranks, script, start_rank

WAITS = "import sys; print(flush=True); sys.stdin.read()"


def uuid(index: int) -> str:
    """Return the UUID of a device of the rehearsed DGX A100."""
    return f"GPU-a100000{index}-0000-4000-8000-00000000000{index}"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a folder for claims."""
    folder = tmp_path / "claims"
    folder.mkdir(mode=0o1777)
    return folder


def test_a_claim_lasts_as_long_as_the_script(tmp_path: Path, shared: Path) -> None:
    """It survives exec, and ends with the process."""
    process = start_rank(
        ["--claim", "--gpus", "5", script(tmp_path, WAITS)],
        {"GPUMAP_CLAIMS": str(shared)},
        stdin=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    holder = holder_of(shared, uuid(5))
    with Claims(shared) as other:
        taken = other.take(uuid(5))
    ended(process)

    assert holder is not None
    assert holder.pid == process.pid
    assert not taken
    assert holder_of(shared, uuid(5)) is None


def test_a_shell_that_opens_files_of_its_own_keeps_the_claim(shared: Path) -> None:
    """`exec 9>file` and its like, for all descriptors of one digit."""
    opens = 'for n in 3 4 5 6 7 8 9; do eval "exec $n>/dev/null"; done; '
    process = start_rank(
        ["--claim", "--gpus", "5", "--no-python", "sh", "-c", f"{opens} echo; read x"],
        {"GPUMAP_CLAIMS": str(shared)},
        stdin=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    holder = holder_of(shared, uuid(5))
    ended(process)

    assert holder is not None
    assert holder.pid == process.pid


def test_another_job_finds_the_device_claimed(tmp_path: Path, shared: Path) -> None:
    """A second `gpumap run --claim` of the device ends with 1 and names the holder."""
    claims = {"GPUMAP_CLAIMS": str(shared)}
    words = ["--claim", "--gpus", "5", script(tmp_path, WAITS)]
    first = start_rank(words, claims, stdin=subprocess.PIPE)
    assert first.stdout is not None
    first.stdout.readline()
    second = ended(start_rank(words, claims))
    ended(first)

    assert second.code == 1
    assert f"is claimed already.\n{shared}: by root, pid {first.pid}" in second.err


def test_idle_gives_two_jobs_different_devices(tmp_path: Path, shared: Path) -> None:
    """Two ranks of one job and one of another have three devices."""
    claims = {"GPUMAP_CLAIMS": str(shared)}
    waits = script(
        tmp_path, "import os;print(os.environ['CUDA_VISIBLE_DEVICES'])\n" + WAITS
    )
    port = free_port()
    ranks = [
        start_rank(
            ["--strategy", "idle", waits],
            {**rank_environment(rank, 2, port), **claims},
            stdin=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    masks = []
    for process in ranks:
        assert process.stdout is not None
        masks.append(process.stdout.readline().strip())
    alone = ended(start_rank(["--strategy", "idle", waits], claims))
    for process in ranks:
        ended(process)

    assert masks[0] == masks[1]
    assert len({*masks[0].split(","), alone.out.split()[0]}) == 3


IN_A_SESSION = """\
import json, logging, os, subprocess, sys
import gpumap
from gpumap.detect.claims import holder_of
from pathlib import Path
log = []
with gpumap.session({options}) as s:
    uuid = s.placement.device.uuid
    found = [s.launch.model_dump(mode="json"), uuid]
holder = holder_of(Path(os.environ["GPUMAP_CLAIMS"]), uuid)
asks = "import os, gpumap.detect.claims as c; print(c.held_before(os.environ))"
child = subprocess.run(
    [sys.executable, "-c", asks], capture_output=True, text=True, check=True
)
print(json.dumps([*found, os.getpid(), holder and holder.pid, child.stdout.strip()]))
"""


@pytest.mark.parametrize(
    ("options", "own"), [("", []), ("claim=True", ["--own"]), ("strategy='idle'", [])]
)
def test_gpumap_in_the_script_finds_the_same_launch_and_device(
    tmp_path: Path, shared: Path, options: str, own: list[str]
) -> None:
    """Its session has the device that is claimed for it, and the claim outlasts it."""
    text = IN_A_SESSION.replace("{options}", options)
    environ = {"GPUMAP_CLAIMS": str(shared)}
    plain = run_python(
        "-c",
        "import gpumap; print(gpumap.detect_launch().model_dump_json())",
        environ={**rank_environment(1, 2, 29500)},
    )
    words = ["--claim", "--gpus", "6,3", *own, script(tmp_path, text)]
    done = run_ranks(words, environ=environ)

    assert [x.code for x in done] == [0, 0], done[0].err
    found = [json.loads(x.out) for x in done]
    assert [one[1] for one in found] == [uuid(6), uuid(3)]
    expected = json.loads(plain.stdout)
    for name in ("launcher", "rank", "world_size", "local_rank", "local_world_size"):
        assert found[1][0][name] == expected[name]
    # Rank 0 claims for its node; no child of a script has part in that.
    assert [one[3] for one in found] == [found[0][2], found[0][2]]
    assert [one[4] for one in found] == ["None", "None"]


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to give each rank one"
)
def test_a_script_runs_on_the_cpus_of_its_rank(tmp_path: Path) -> None:
    """With --bind exclusive two ranks have no CPU in common; children neither."""
    text = (
        "import json, os, subprocess, sys\n"
        "asks = 'import os; print(len(os.sched_getaffinity(0)))'\n"
        "child = [sys.executable, '-c', asks]\n"
        "n = subprocess.run(child, capture_output=True, text=True, check=True).stdout\n"
        "threads = os.environ['OMP_NUM_THREADS']\n"
        "print(json.dumps([sorted(os.sched_getaffinity(0)), int(n), threads]))\n"
    )
    own = script(tmp_path, text)
    environ = {"GPUMAP_REHEARSAL": "", "OMP_NUM_THREADS": ""}

    done = run_ranks(["--bind", "exclusive", own], environ=environ)

    assert [x.code for x in done] == [0, 0], done[0].err
    (one, n, threads), (other, _, _) = (json.loads(x.out) for x in done)
    assert one
    assert not set(one) & set(other)
    assert n == len(one)
    assert int(threads) >= 1


def test_a_rehearsal_binds_nothing(tmp_path: Path) -> None:
    """The CPUs of a machine that is not there are not this one's."""
    own = script(tmp_path, "import os; print(sorted(os.sched_getaffinity(0)))")

    done = ended(start_rank(["--bind", "numa", own], {}))

    assert json.loads(done.out) == sorted(os.sched_getaffinity(0))

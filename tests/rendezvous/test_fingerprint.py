"""Which differences show that two processes belong to different jobs."""

from typing import Any

import pytest

from gpumap.mapping.launch import Launch
from gpumap.rendezvous.fingerprint import Fingerprint, fingerprint_of, mismatch
from helpers.jobs import free_port
from helpers.programs import run_python, start_python

OWNER = Fingerprint(
    rank=0,
    hostname="n1",
    pid=100,
    pid_space="k1/4026531836",
    job_id=None,
    spawner=None,
    parent=50,
    script="train.py",
    arguments="a1",
    environment={"HOME": "h", "JOB": "a"},
)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"parent": 51}, None),
        ({"hostname": "n2", "arguments": "b2", "environment": {}}, None),
        (
            {"hostname": "n2", "script": "other.py"},
            "another script: train.py and other",
        ),
        ({"arguments": "b2"}, "other arguments"),
        ({"environment": {"HOME": "h", "JOB": "b"}}, "another environment: JOB"),
        ({"environment": {"HOME": "h"}}, "another environment: JOB"),
        ({"parent": 51, "environment": {}}, None),
        ({"job_id": "7"}, "another job: None and 7"),
        ({"spawner": 100}, None),
        ({"spawner": 200}, "another spawning process: None and 200"),
        # Two hosts of one name, or two containers of one host.
        ({"pid_space": "k2/4026531836", "spawner": 200, "arguments": "b2"}, None),
        ({"pid_space": None, "arguments": "b2"}, None),
    ],
    ids=str,
)
def test_evidence(changed: dict[str, Any], said: str | None) -> None:
    """Between processes of different hosts or parents fewer fields are compared."""
    newcomer = OWNER.model_copy(update={"rank": 1, "pid": 101, **changed})
    found = mismatch(OWNER, newcomer)
    assert (found or "").startswith(said or "")
    assert (found is None) == (said is None)


def test_a_jobs_name_outweighs_all_evidence() -> None:
    """Where job ids are known they alone decide, whatever else is alike or differs."""
    a = OWNER.model_copy(update={"job_id": "7"})
    b = a.model_copy(update={"arguments": "b2", "environment": {}, "spawner": 9})
    assert mismatch(a, b) is None
    assert mismatch(a, a.model_copy(update={"job_id": "8"})) is not None


def test_ranks_spawned_by_one_python_are_one_job() -> None:
    """Ranks with one spawning process are one job, whatever else differs."""
    a = OWNER.model_copy(update={"spawner": 50})
    b = a.model_copy(update={"rank": 1, "arguments": "b2", "environment": {}})
    assert mismatch(a, b) is None
    assert mismatch(a, b.model_copy(update={"spawner": 51})) is not None


def test_secrets_and_ranks_are_not_compared() -> None:
    """A fingerprint omits secrets and ranks; other values are 4 hex digits each."""
    code = (
        "from gpumap.rendezvous.fingerprint import fingerprint_of\n"
        "from gpumap.mapping.launch import Launch\n"
        "launch = Launch(launcher='x', rank=0, world_size=2)\n"
        "print(fingerprint_of(launch).model_dump_json())"
    )
    extra = {"API_TOKEN": "t0psecret", "MY_RANK": "1", "PLAIN": "value"}
    done = run_python("-c", code, environ=extra)
    found = Fingerprint.model_validate_json(done.stdout)
    assert "PLAIN" in found.environment
    assert not {"API_TOKEN", "MY_RANK"} & set(found.environment)
    assert {len(digest) for digest in found.environment.values()} == {4}
    assert fingerprint_of(Launch(launcher="x", rank=1, world_size=2)).rank == 1


SPAWNED = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import gpumap

def work(rank, port, number):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank),
                      LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    with gpumap.session(start_timeout=30):
        x = torch.tensor([float(number)])
        dist.all_reduce(x)
        sys.stdout.write(f"sum {x.item()}\\n")
        sys.stdout.flush()

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1], int(sys.argv[2])), nprocs=2)
"""


def test_two_scripts_that_spawn_on_one_port_do_not_mix(tmp_path: Any) -> None:
    """Two runs of an mp.spawn script with a fixed port never join each other's job."""
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    port = str(free_port())
    processes = [start_python(str(script), port, number) for number in ("1", "100")]
    outs = [process.communicate(timeout=100)[0] for process in processes]
    sums = {line for out in outs for line in out.splitlines() if line.startswith("sum")}
    assert sums in ({"sum 2.0"}, {"sum 200.0"}, {"sum 2.0", "sum 200.0"}), outs
    assert 0 in [process.returncode for process in processes], outs
    for process, out in zip(processes, outs, strict=True):
        assert process.returncode == 0 or "another spawning process" in out, outs

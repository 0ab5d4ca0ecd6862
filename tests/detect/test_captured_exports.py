"""What a rank of every captured job exports, against the captured files themselves.

The files are read by host, rank and mask, and not by gpumap's code.
"""

from collections import Counter
from collections.abc import Mapping

import pytest

from gpumap.detect.launchers import detect_launch
from gpumap.detect.rehearsal import machine
from gpumap.errors import LaunchError, PlacementError
from gpumap.mapping.environment import environment
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.pool import place
from gpumap.mapping.visibility import visible
from helpers.captured import jobs

# prterun tells a rank and no size: no launch.
JOBS = {name: job for name, job in jobs().items() if name != "prrte-n3"}
# Of five tasks on four devices the fifth has none.
CROWDED = {"slurm-N2-hetero-n6", "slurm22-het42gpus"}
# Each task was given two devices of its own, for two tasks: it takes one by local rank.
TWO_EACH = {"slurm22-N1n2bindmask", "slurm22-gputask2"}
MPI = ("openmpi", "mpich", "impi", "slurm22-sbatchOmpirun")
FULL = machine("dgx-a100")


def host_of(environ: Mapping[str, str]) -> str:
    """Return the host that a file names, with torchrun's number of an agent on it."""
    names = ("SLURMD_NODENAME", "#HOSTNAME")
    name = next((environ[n] for n in names if n in environ), "")
    return f"{name}/{environ.get('GROUP_RANK')}"


def given(environ: Mapping[str, str]) -> list[str]:
    """Return the devices that a file's mask lists, or all of the machine's."""
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    every = [str(index) for index in range(len(FULL.devices))]
    return every if mask is None else mask.split(",")


def addressed(name: str, job: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return a job, with the address that its user has to set under MPI."""
    if not name.startswith(MPI):
        return job
    address = {"MASTER_ADDR": "nodea", "MASTER_PORT": "29500"}
    return [environ | address for environ in job]


def placed(launch: Launch, environ: Mapping[str, str]) -> Placement:
    """Return the placement by local rank, on the machine as the process sees it."""
    return place(launch, visible(FULL, environ), "local_rank")


def exports_of(job: list[dict[str, str]], *, own: bool = False) -> list[dict[str, str]]:
    """Return what each rank of a job exports."""
    launches = [detect_launch(environ) for environ in job]
    hosts = [host_of(environ) for environ in job]
    found: list[dict[str, str]] = []
    for launch, environ, host in zip(launches, job, hosts, strict=True):
        neighbours = [x for x, h in zip(launches, hosts, strict=True) if h == host]
        neighbours.sort(key=lambda x: x.local_rank or 0)
        asked = [] if launch.devices_bound else neighbours
        devices = [placed(x, environ).device for x in asked]
        mine = placed(launch, environ)
        found.append(
            environment(mine, launch, devices=devices, own=own, environ=environ)
        )
    return found


@pytest.mark.parametrize("name", sorted(set(JOBS) - CROWDED))
def test_the_exports_of_a_captured_job_are_what_its_files_say(name: str) -> None:
    """Ranks, sizes, node numbers, address and mask fit the files of every job."""
    job = addressed(name, JOBS[name])
    found = exports_of(job)
    hosts = [host_of(environ) for environ in job]
    sizes = Counter(hosts)
    n = len(job)
    assert sorted(int(x["RANK"]) for x in found) == list(range(n))
    assert {x["WORLD_SIZE"] for x in found} == {str(n)}
    assert [x["LOCAL_WORLD_SIZE"] for x in found] == [str(sizes[h]) for h in hosts]
    addresses = {(x.get("MASTER_ADDR"), x.get("MASTER_PORT")) for x in found}
    assert len(addresses) == 1
    if n > 1:
        assert None not in addresses.pop()
    for host, size in sizes.items():
        here = [x for x, h in zip(found, hosts, strict=True) if h == host]
        files = [environ for environ, h in zip(job, hosts, strict=True) if h == host]
        masks = [x["CUDA_VISIBLE_DEVICES"] for x in here]
        local_ranks = sorted(int(x["LOCAL_RANK"]) for x in here)
        if min(len(given(environ)) for environ in files) < size:
            # Each task sees fewer devices than there are tasks: only its own.
            assert masks == [given(environ)[0] for environ in files]
            assert local_ranks == [0] * size
            continue
        assert masks == [",".join(given(environ)[:size]) for environ in files]
        assert local_ranks == list(range(size))
        assert len(set(masks)) == 1 or name in TWO_EACH


@pytest.mark.parametrize("name", sorted(set(JOBS) - CROWDED))
def test_a_nodes_number_is_its_own(name: str) -> None:
    """Where a launcher numbers the nodes, hosts and numbers go together one to one."""
    job = addressed(name, JOBS[name])
    found = exports_of(job)
    numbers = [x.get("NODE_RANK") for x in found]
    hosts = [host_of(environ) for environ in job]
    assert numbers == [x.get("GROUP_RANK") for x in found]
    counts = {x.get("GROUP_WORLD_SIZE") for x in found}
    if None in numbers:
        assert set(numbers) == {None}
        assert name.startswith(MPI)
        return
    pairs = set(zip(hosts, numbers, strict=True))
    assert len(pairs) == len(set(hosts)) == len(set(numbers))
    assert counts == {str(len(pairs))}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", sorted(set(JOBS) - CROWDED))
def test_the_exports_are_read_back_as_the_same_launch(name: str, *, own: bool) -> None:
    """A script that detects its launch among the exports finds the one they are from.

    So it does where LOCAL_RANK is 0, since each sees its own device alone.
    """
    job = addressed(name, JOBS[name])
    for environ, exports in zip(job, exports_of(job, own=own), strict=True):
        before = detect_launch(environ)
        after = detect_launch(environ | exports)
        told = {"launcher", "rank", "world_size", "local_rank", "local_world_size"}
        told |= {"node_rank", "num_nodes", "node_ranks", "job_id", "start_command"}
        assert after.model_dump(include=told) == before.model_dump(include=told)
        alone = own and (before.local_world_size or 1) > 1
        assert after.devices_bound == (alone or before.devices_bound)
        if before.master_addr is not None and not before.one_node:
            assert after.master_addr == before.master_addr


@pytest.mark.parametrize("name", sorted(CROWDED))
def test_a_rank_too_many_has_its_device_alone_or_none(name: str) -> None:
    """Five tasks on four devices have none by local rank; sharing one, only with own.

    A mask that lists a device twice would be empty.
    """
    crowd = [environ for environ in JOBS[name] if host_of(environ).startswith("n1")]
    launches = [detect_launch(environ) for environ in crowd]
    with pytest.raises(PlacementError, match="5 processes on dgx-a100 have 4 devices"):
        placed(launches[0], crowd[0])
    node = visible(FULL, crowd[0])
    gpus = [0, 1, 2, 3, 0]
    sharing = [place(x, node, gpus=gpus, oversubscribe=True) for x in launches]
    devices = [placement.device for placement in sharing]
    with pytest.raises(PlacementError, match=r"own=True \(--own") as caught:
        environment(sharing[4], launches[4], devices=devices, environ=crowd[4])
    assert caught.value.happened.startswith("CUDA_VISIBLE_DEVICES cannot name cuda:0")
    found = environment(sharing[4], launches[4], own=True, environ=crowd[4])
    assert (found["CUDA_VISIBLE_DEVICES"], found["LOCAL_RANK"]) == ("0", "0")
    assert (found["RANK"], found["LOCAL_WORLD_SIZE"]) == ("4", "5")


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("openmpi-2x2bynode", ("MASTER_ADDR",)),
        ("impi-2x2", ("MASTER_ADDR",)),
        ("mpich-2x2", ("MASTER_ADDR", "MASTER_PORT")),
        ("mpich-n4", ("MASTER_PORT",)),
    ],
)
def test_ranks_that_cannot_meet_get_no_variables(
    name: str, missing: tuple[str, ...]
) -> None:
    """MPI tells ranks and no address: an error says which variables to set."""
    with pytest.raises(LaunchError) as caught:
        exports_of(JOBS[name])
    assert caught.value.variables == missing

"""Only the device, for a script without a session."""

import logging
import sys
from collections.abc import Generator, Mapping

import pytest
import torch
import torch.distributed as dist

import gpumap
from gpumap.errors import DeviceError, LaunchError, PlacementError, SessionError
from gpumap.mapping.devices import Device, Node
from gpumap.mapping.launch import Launch
from helpers.captured import environment
from helpers.environments import clean_environment, rank_environment
from helpers.launchers import need
from helpers.nodes import node
from helpers.pretended import pretend_torch
from helpers.programs import run_program, run_python

Patch = pytest.MonkeyPatch
FIND = "p = gpumap.find_placement(); print(p.launch.rank, p.device.index, p.device."


def first_of_all(_launch: Launch, node: Node) -> Device:
    """Place every rank on the first device."""
    return node.devices[0]


def rank(patch: Patch, rank: int, world_size: int, machine: str = "dgx-a100") -> None:
    """Let this process be a rank on one pretended machine."""
    for name, value in rank_environment(rank, world_size, 29500).items():
        patch.setenv(name, value)
    patch.setenv("GPUMAP_REHEARSAL", machine)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: Patch) -> None:
    """Start each test without a launcher's variables."""
    monkeypatch.setattr("os.environ", clean_environment())


@pytest.fixture
def group() -> Generator[None, None, None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("captured", range(4))
def test_under_mpirun_it_is_the_local_ranks_device(
    captured: int, monkeypatch: Patch
) -> None:
    """Open MPI's ranks 0 to 3, dealt to two nodes in turn, have local ranks 0, 0, 1, 1.

    Source: the variables that its mpirun set, as captured.
    """
    told = environment(f"openmpi-2x2bynode-rank{captured}")
    assert told["OMPI_COMM_WORLD_LOCAL_RANK"] == str([0, 0, 1, 1][captured])
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUMAP_REHEARSAL", "dgx-a100")
    found = gpumap.find_placement()
    assert found.launch.launcher == "Open MPI"
    assert (found.launch.rank, found.device.index) == (captured, [0, 0, 1, 1][captured])
    assert found.device.torch == torch.device("cpu")


def test_the_pool_is_that_of_the_argument_or_of_the_environment(
    monkeypatch: Patch,
) -> None:
    """Local rank 1 has the second device that gpus lists, or else GPUMAP_GPUS."""
    rank(monkeypatch, 1, 2)
    assert gpumap.find_placement(gpus=[6, 5]).device.index == 5
    monkeypatch.setenv("GPUMAP_GPUS", "2,3")
    assert gpumap.find_placement().device.index == 3
    assert gpumap.find_placement(gpus=[6, 5]).device.index == 5
    assert gpumap.find_placement(device="cpu").device.kind == "cpu"


def test_it_is_the_placement_of_a_session(monkeypatch: Patch) -> None:
    """A session that is asked for the same gives the same placement, and so inside."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "t4x4")
    before = gpumap.find_placement(gpus=[2])
    with gpumap.session(gpus=[2]) as opened:
        assert opened.placement == before == gpumap.find_placement(gpus=[2])
        assert opened.device == before.device.torch
    assert before.device.index == 2


def test_a_rehearsal_is_said_once(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 0 says that a machine is pretended; other ranks do not."""
    for place in range(2):
        rank(monkeypatch, place, 2, "t4x4")
        gpumap.find_placement()
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [line for line in told if "rehearsal" in line] == [
        "rehearsal of t4x4: no GPU is used, device.torch is the CPU"
    ]


def test_real_devices_are_torchs_and_the_current_one_stays(monkeypatch: Patch) -> None:
    """Local rank 1 of two has cuda:1, and no device is made the current one."""
    rank(monkeypatch, 1, 2)
    monkeypatch.delenv("GPUMAP_REHEARSAL")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    pretend_torch(monkeypatch, node(2).devices)
    monkeypatch.setattr(torch.accelerator, "set_device_index", pytest.fail)
    assert gpumap.find_placement(backend="gloo").device.torch == torch.device("cuda:1")
    with pytest.raises(DeviceError, match="device='xpu' was asked for, and there is"):
        gpumap.find_placement(device="xpu")


def test_what_one_rank_sees_to_be_wrong_is_refused(monkeypatch: Patch) -> None:
    """Two ranks on one device, and fewer devices than processes, as in a session."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "t4x4")
    two = Launch(launcher="x", rank=0, world_size=8, node_ranks=(0, 4), num_nodes=4)
    with pytest.raises(PlacementError) as caught:
        gpumap.find_placement("modulo", launch=two)
    assert caught.value.ranks == (0, 4)
    assert caught.value.happened == (
        "rank 0 and rank 4 are both placed on cuda:0 (GPU-00040000…) on host t4x4."
    )
    rank(monkeypatch, 0, 5, "t4x4")
    with pytest.raises(PlacementError, match="5 processes on t4x4 have 4 devices"):
        gpumap.find_placement()


def test_ranks_share_a_device_if_the_backend_can(monkeypatch: Patch) -> None:
    """oversubscribe=True is refused unless the script's process group is gloo's."""
    rank(monkeypatch, 1, 2)
    with pytest.raises(PlacementError, match="oversubscribe=True, and the backend"):
        gpumap.find_placement(gpus=[5, 5], oversubscribe=True)
    found = gpumap.find_placement(gpus=[5, 5], oversubscribe=True, backend="gloo")
    assert found.device.index == 5


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"strategy": "idle"}, "idle"),
        ({"strategy": "closest"}, "closest"),
        ({"strategy": first_of_all}, "first_of_all"),
        ({"scores": lambda device: device.index}, "scored"),
    ],
    ids=["idle", "closest", "function", "scores"],
)
def test_what_a_node_decides_together_is_left_to_those_that_talk(
    asked: Mapping[str, object], name: str, monkeypatch: Patch
) -> None:
    """Of two processes on a node none decides alone by what may differ for each."""
    rank(monkeypatch, 1, 2)
    with pytest.raises(PlacementError) as caught:
        gpumap.find_placement(**asked)  # type: ignore[arg-type]
    error = caught.value
    assert error.happened == (
        f'rank 1 alone cannot know which device strategy "{name}" gives it.'
    )
    assert error.seen == (
        "One process of the node decides that for all, and find_placement() talks to "
        "no other."
    )
    assert error.hint == (
        "Open a gpumap.session(…), or start the script with `gpumap run`, where they "
        "do; or name the devices with gpus=[…]."
    )
    assert error.ranks == (1,)


def test_a_process_alone_decides_for_itself(monkeypatch: Patch) -> None:
    """The only process of a node has no others to ask: scores 0 to 3 give device 3."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "t4x4")
    assert gpumap.find_placement(first_of_all, gpus=[0, 1]).device.index == 0
    assert gpumap.find_placement(scores=lambda device: device.index).device.index == 3
    assert gpumap.find_placement("idle", gpus=[2, 1]).strategy == "idle"
    assert gpumap.find_placement("closest").strategy == "closest"


def test_where_the_launcher_tells_no_local_rank_it_is_asked_for(
    monkeypatch: Patch,
) -> None:
    """RANK and WORLD_SIZE alone do not say which device of the node is a rank's."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "t4x4")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LaunchError, match="the launcher does not say it"):
        gpumap.find_placement()
    mine = Launch(launcher="mine", rank=1, world_size=2, local_rank=1)
    assert gpumap.find_placement(launch=mine).device.index == 1


def test_arguments_of_another_type_are_refused() -> None:
    """A device is named by its type, such as "cuda"."""
    with pytest.raises(SessionError, match="device=1 is a int"):
        gpumap.find_placement(device=1)  # type: ignore[arg-type]


@pytest.mark.usefixtures("group")
def test_a_process_group_that_exists_tells_the_rank(monkeypatch: Patch) -> None:
    """Variables that contradict it are refused."""
    assert gpumap.find_placement(device="cpu").launch.world_size == 1
    rank(monkeypatch, 1, 2)
    with pytest.raises(SessionError, match="the process group says rank 0 of 1"):
        gpumap.find_placement()


def test_a_child_of_multiprocessing_without_a_rank_is_refused() -> None:
    """Each of mp.spawn's processes would take itself for the only one."""
    code = (
        "import multiprocessing, gpumap\n"
        "def child():\n"
        "    try: gpumap.find_placement(device='cpu')\n"
        "    except gpumap.LaunchError as error: print(error.happened)\n"
        "p = multiprocessing.get_context('fork').Process(target=child)\n"
        "p.start(); p.join()"
    )
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = run_python("-c", code, environ=address)
    told = "this process has an address to meet others at, and no rank.\n"
    assert done.stdout == told, done.stderr


def test_a_rehearsal_imports_no_torch() -> None:
    """Not before its torch.device is asked for."""
    code = (
        f"import sys, gpumap; {FIND}kind, 'torch' in sys.modules); "
        "print(p.device.torch)"
    )
    told = rank_environment(1, 2, 29500) | {"GPUMAP_REHEARSAL": "t4x4"}
    done = run_python("-c", code, environ=told)
    assert done.stdout == "1 1 cuda False\ncpu\n", done.stderr


def test_a_script_under_the_real_mpirun_has_its_device() -> None:
    """Of two processes rank 1 has the second device, without a word to the other."""
    need("mpirun.openmpi")
    mpirun = ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-np", "2"]
    code = f"import gpumap; {FIND}kind)"
    done = run_program(
        [*mpirun, sys.executable, "-c", code], {"GPUMAP_REHEARSAL": "t4x4"}
    )
    assert sorted(done.stdout.splitlines()) == ["0 0 cuda", "1 1 cuda"], done.stderr

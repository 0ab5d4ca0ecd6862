"""`gpumap show`: what it prints, what it saves and how it exits."""

import json
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
import torch

import gpumap
from gpumap.command.main import main
from gpumap.detect.claims import Claims
from helpers.nodes import MIG
from helpers.pretended import pretend_nvml
from helpers.programs import run_python

Shown = pytest.CaptureFixture[str]
LAUNCHED = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_PORT": "29500",
}


def show(options: Sequence[str]) -> int:
    """Run `gpumap show` with these options in this process."""
    return main(["show", *options])


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide nvidia-ml-py, unless a test provides a fake."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of rank 1 of 2 on a rehearsed DGX A100."""
    for name, value in (LAUNCHED | {"GPUMAP_REHEARSAL": "dgx-a100"}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("one_of_two")
def test_a_rank_shows_its_launch_its_node_and_its_own_placement(capsys: Shown) -> None:
    """Local rank 1 prints its launch, node and placement, and no tables of the node."""
    assert show(["--gpus", "2,GPU-a1000005"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        (
            "launch: torch variables, rank 1 of 2, local rank 1 of 2, node 0 of 1, "
            "store ?:29500"
        ),
        "node: dgx-a100 (rehearsal of dgx-a100): 8 devices visible",
        "rank  node  host      local_rank  device                  "
        "name                   why",
        "1     0     dgx-a100  1           cuda:5 (GPU-a1000005…)  "
        "NVIDIA A100-SXM4-40GB  explicit: gpus[local_rank]",
    ]


@pytest.mark.usefixtures("one_of_two")
def test_local_rank_0_shows_devices_links_and_the_plan_of_the_node(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local rank 0 lists the visible devices by index and by physical index."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,2")
    assert show([]) == 0
    head, devices, links, plan = capsys.readouterr().out.split("\n\n")
    assert "(rehearsal of dgx-a100), CUDA_VISIBLE_DEVICES='6,2': 2 devices" in head
    assert [row.split()[:2] for row in devices.splitlines()[1:]] == [
        ["cuda:0", "6"],
        ["cuda:1", "2"],
    ]
    assert "00000000:b7:00.0" in devices
    assert links.splitlines()[1].split() == ["cuda:0", "X", "NV12"]
    assert [row.split()[4] for row in plan.splitlines()[1:]] == ["cuda:0", "cuda:1"]


@pytest.mark.usefixtures("one_of_two")
def test_it_says_what_would_stop_a_session(capsys: Shown) -> None:
    """An error that would stop a session is printed, and the exit code is 1."""
    assert show(["--gpus", "2,9"]) == 1
    assert "DeviceError: there is no device 9 on dgx-a100." in capsys.readouterr().out


@pytest.mark.usefixtures("one_of_two")
def test_a_launch_that_contradicts_itself_is_said(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contradictory launch prints its LaunchError first, with exit code 1."""
    monkeypatch.setenv("RANK", "7")
    assert show([]) == 1
    assert capsys.readouterr().out.startswith("LaunchError: rank 7 is out of range")


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *(("--gpus", ""), ("--gpus", "2,,3"), ("--nproc", "0"), ("--nproc", "two")),
        *(("--scores", "speed"), ("--scores", "0=fast"), ("--scores", "=1")),
    ],
)
def test_a_value_that_cannot_be_read_is_told_with_its_option(
    option: str, wrong: str, capsys: Shown
) -> None:
    """An invalid value is an argparse error with the option's name, exit code 2."""
    with pytest.raises(SystemExit) as caught:
        show([option, wrong])
    assert caught.value.code == 2
    assert f"argument {option}" in capsys.readouterr().err


@pytest.mark.usefixtures("one_of_two")
def test_two_ranks_on_one_device_are_said(capsys: Shown) -> None:
    """Two ranks on one device print the PlacementError that a session would raise."""
    assert show(["--strategy", "modulo", "--gpus", "2"]) == 1
    out = capsys.readouterr().out
    assert "PlacementError: rank 0 and rank 1 are both placed on cuda:2" in out


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ("--machine dgx1-v100 --nproc 2 --strategy linked", ["cuda:0", "cuda:3"]),
        ("--machine t4x4 --gpus 3,1", ["cuda:3", "cuda:1"]),
        ("--machine rtx3090x2", ["cuda:0", "cuda:1"]),
        ("--machine rtx3090-gtx1080 --nproc 1 --scores memory", ["cuda:0"]),
        ("--machine t4x4 --nproc 2 --scores 3=9,2=7,1=1,0=1", ["cuda:3", "cuda:2"]),
    ],
)
def test_a_machine_one_does_not_have_is_planned(
    capsys: Shown, options: str, devices: list[str]
) -> None:
    """--machine plans a described machine, by default with a process per device."""
    assert show([*options.split(), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    placed = [f"cuda:{place['device']['index']}" for place in report["placements"]]
    assert placed == devices
    assert report["error"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--machine dgx1-v100 --nproc 2 --gpus 0,5,3",
            "cuda:0, cuda:5 reach each other through SYS at best, cuda:0, cuda:3 "
            'through NV2: write gpus=[0, 3], or let strategy="linked" choose.',
        ),
        (
            "--machine rtx3090-gtx1080",
            "NVIDIA GeForce GTX 1080 and NVIDIA GeForce RTX 3090 train together: every "
            "step waits for the slowest",
        ),
        (
            "--machine rtx3090x4 --nproc 2",
            "2 of 4 devices on rtx3090x4 will be used. "
            "To use all: torchrun --nproc-per-node 4",
        ),
    ],
)
def test_it_warns_of_what_works_and_could_be_better(
    capsys: Shown, options: str, said: str
) -> None:
    """A plan that works but could be better prints a warning, with exit code 0."""
    assert show(options.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"warning: {said}") for line in lines), lines


def test_a_mask_that_is_a_slip_is_said(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A malformed mask is warned about, even if it leaves no device to start on."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", '"0"')
    assert show(["--machine", "t4x4", "--gpus", "0"]) == 1
    out = capsys.readouterr().out
    assert "warning: CUDA_VISIBLE_DEVICES='\"0\"' has '\"0\"', which is neither" in out
    assert "DeviceError: there is no device 0 on t4x4." in out


def test_a_saved_node_can_be_rehearsed(
    tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved node can be loaded again; saving under a mask says that it is partial."""
    path = tmp_path / "here.json"
    assert show(["--machine", "t4x4", "--save", str(path)]) == 0
    assert gpumap.Node.model_validate_json(path.read_text()) == gpumap.machine("t4x4")
    assert show(["--machine", str(path), "--gpus", "1"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert show(["--machine", "t4x4", "--save", str(path)]) == 0
    assert "holds what CUDA_VISIBLE_DEVICES leaves visible" in capsys.readouterr().out
    assert show(["--machine", "t4x4", "--save", str(tmp_path)]) == 1
    assert "nothing was saved: " in capsys.readouterr().out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disc_leaves_the_old_file_as_it_was(
    tmp_path: Path, capsys: Shown
) -> None:
    """If the disk is full, --save fails and the old file keeps its contents."""
    path = tmp_path / "here.json"
    path.write_text("old")
    (tmp_path / "here.json.part").symlink_to("/dev/full")
    assert show(["--machine", "t4x4", "--save", str(path)]) == 1
    assert "nothing was saved: [Errno 28] No space left" in capsys.readouterr().out
    assert path.read_text() == "old"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs no GPU")
@pytest.mark.parametrize(
    ("cuda", "why"),
    [
        (None, "it is built without CUDA."),
        ("13.0", "a mask hides them, or the driver is older than torch's CUDA."),
    ],
)
def test_devices_that_torch_does_not_see_are_said(
    cuda: str | None, why: str, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that NVML finds and torch does not see is reported, with why it may be."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    pretend_nvml(monkeypatch, MIG)
    assert show([]) == 0
    out = capsys.readouterr().out
    assert "sees no accelerator, and NVML finds NVIDIA A100-SXM4-40GB MIG 2g" in out
    assert why in out


def test_what_a_terminal_cannot_show_is_no_traceback(tmp_path: Path) -> None:
    """An ASCII terminal and a mask that is not valid Unicode cause no traceback."""
    for option in ("--nproc=2", "--json"):
        environ = {"PYTHONIOENCODING": "ascii", "CUDA_VISIBLE_DEVICES": "0,\udcff"}
        command = ("-m", "gpumap", "show", "--machine", "t4x4", option)
        done = run_python(*command, environ=environ, cwd=tmp_path)
        assert "Traceback" not in done.stderr
        assert "CUDA_VISIBLE_DEVICES" in done.stdout


def test_the_environment_names_a_pool(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --gpus the devices of GPUMAP_GPUS are planned, as in a session."""
    monkeypatch.setenv("GPUMAP_GPUS", "3,1")
    assert show(["--machine", "t4x4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [p["device"]["index"] for p in report["placements"]] == [3, 1]


def test_on_slices_as_many_processes_fit_as_gpus(capsys: Shown) -> None:
    """On MIG slices there is a process per GPU; the error names one slice of each."""
    path = str(Path(__file__).parents[1] / "data/a100-mig.json")
    assert show(["--machine", path]) == 1
    out = capsys.readouterr().out
    assert "rank 0 of 2" in out
    assert "of which there are 2: gpus=[0, 3]" in out


def test_the_page_shows_what_is_printed(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example in docs/devices.md is the command's output, word for word."""
    page = (Path(__file__).parents[2] / "docs/devices.md").read_text()
    example = page.split("```shell\n")[1].split("```")[0]
    command, shown = example.split("\n", maxsplit=1)
    assert command == ("$ CUDA_VISIBLE_DEVICES=6,2 gpumap show --machine dgx-a100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,2")
    assert show(["--machine", "dgx-a100"]) == 0
    assert capsys.readouterr().out == shown


def two_nodes(folder: Path) -> str:
    """Return a file with two nodes: four RTX 3090s, and two of other cards."""
    nodes = [gpumap.machine("rtx3090x4"), gpumap.machine("rtx3090-gtx1080")]
    file = folder / "two.json"
    file.write_text(f"[{','.join(node.model_dump_json() for node in nodes)}]")
    return str(file)


def test_all_nodes_of_a_description_are_shown(capsys: Shown, tmp_path: Path) -> None:
    """A file of two nodes shows the devices, the ranks and the warnings of both."""
    options = f"--machine {two_nodes(tmp_path)} --nproc 2 --json"
    assert show(options.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert [node["hostname"] for node in found["cluster"]] == [
        "rtx3090x4",
        "rtx3090-gtx1080",
    ]
    places = [(p["launch"]["rank"], p["device"]["name"]) for p in found["placements"]]
    assert [rank for rank, _ in places] == [0, 1, 2, 3]
    assert places[3] == (3, "NVIDIA GeForce GTX 1080")
    assert any("the slower: leave it out" in w for w in found["warnings"])
    assert show(options.removesuffix("--json").split()) == 0
    out = capsys.readouterr().out
    assert out.count("devices visible") == 2
    hosts = [row.split()[2] for row in out.splitlines() if row[:1].isdecimal()]
    assert hosts == ["rtx3090x4"] * 2 + ["rtx3090-gtx1080"] * 2


def test_each_node_of_a_description_is_filled(capsys: Shown, tmp_path: Path) -> None:
    """Without --nproc each node has a process per device: four and two."""
    assert show(["--machine", two_nodes(tmp_path)]) == 0
    rows = [r for r in capsys.readouterr().out.splitlines() if r[:1].isdecimal()]
    assert [row.split()[:2] for row in rows] == [
        *[["0", "0"], ["1", "0"], ["2", "0"], ["3", "0"]],
        *[["4", "1"], ["5", "1"]],
    ]


def test_a_node_that_cannot_hold_its_ranks_is_named(
    capsys: Shown, tmp_path: Path
) -> None:
    """If four processes fit the first node but not the second, the error names it."""
    assert show(["--machine", two_nodes(tmp_path), "--nproc", "4"]) == 1
    out = capsys.readouterr().out
    assert "4 processes on rtx3090-gtx1080 have 2 devices" in out


def test_nodes_alike_are_pretended_by_number(capsys: Shown, tmp_path: Path) -> None:
    """--nodes 3 plans three equal nodes; a file of two nodes refuses it."""
    assert show(["--machine", "dgx-a100", "--nodes", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("devices visible") == 1
    assert out.splitlines()[-1].split()[:4] == ["23", "2", "dgx-a100", "7"]
    assert show(["--machine", two_nodes(tmp_path), "--nodes", "3"]) == 1
    assert "--nodes is 3, and" in capsys.readouterr().out


def test_sharing_on_purpose_is_shown_as_a_session_would_have_it(capsys: Shown) -> None:
    """Sharing by --oversubscribe is planned for gloo and refused for NCCL."""
    sharing = ["--machine", "rtx3090x2", "--nproc", "4", "--gpus", "0,1,0,1"]
    sharing.append("--oversubscribe")
    assert show([*sharing, "--backend", "gloo"]) == 0
    rows = [r for r in capsys.readouterr().out.splitlines() if r[:1].isdecimal()]
    assert [row.split()[4] for row in rows] == ["cuda:0", "cuda:1"] * 2
    assert show(sharing) == 1
    assert "cannot run two ranks on one device" in capsys.readouterr().out


def test_ranks_without_an_address_to_meet_at_are_told(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank without a MASTER_ADDR shows its plan and a LaunchError, exit code 1."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "dgx-a100")
    for name, value in (("RANK", 1), ("SIZE", 4), ("LOCAL_RANK", 1), ("LOCAL_SIZE", 2)):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    assert show([]) == 1
    out = capsys.readouterr().out
    assert "1     ?     dgx-a100  1           cuda:1" in out
    assert "LaunchError: rank 1 of 4 does not know where to meet the others" in out


@pytest.mark.parametrize(("kind", "code"), [("npu", 0), ("potato", 1)])
def test_a_kind_that_no_torch_trains_on_is_told(
    capsys: Shown, tmp_path: Path, kind: str, code: int
) -> None:
    """A kind unknown to torch is an error; npu is not, even without torch_npu."""
    file = tmp_path / "machine.json"
    devices = [{"kind": kind, "index": 0}]
    file.write_text(json.dumps({"hostname": "n1", "devices": devices}))
    assert show(["--machine", str(file)]) == code
    told = f"torch knows no process group backend for {kind!r} devices."
    assert (told in capsys.readouterr().out) == bool(code)


def test_a_path_that_is_no_unicode_goes_to_json_too(
    capsys: Shown, tmp_path: Path
) -> None:
    """A path that is not valid Unicode does not break the JSON output."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.json")
    Path(path).write_text(gpumap.machine("t4x4").model_dump_json())
    assert show(["--machine", path, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["placements"]) == 4


def test_a_folder_is_no_file_to_save_to(capsys: Shown) -> None:
    """--save with a folder prints that nothing was saved, with exit code 1."""
    assert show(["--machine", "t4x4", "--save", "."]) == 1
    assert "nothing was saved: " in capsys.readouterr().out


def rows(shown: str) -> list[list[str]]:
    """Return the words of each rank's line."""
    return [row.split() for row in shown.splitlines() if row[:1].isdecimal()]


def test_the_cpus_of_each_rank_are_shown(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local rank 0 shows those of all ranks of its node, another rank its own."""
    assert show(["--machine", "dgx-a100", "--nproc", "3", "--bind", "numa"]) == 0
    beside = ["48-63,176-191", "48-63,176-191", "16-31,144-159"]
    assert [row[8] for row in rows(capsys.readouterr().out)] == beside
    for name, value in (LAUNCHED | {"GPUMAP_REHEARSAL": "dgx-a100"}).items():
        monkeypatch.setenv(name, value)
    assert show(["--bind", "exclusive"]) == 0
    out = capsys.readouterr().out
    assert " 56-63,184-191  local_rank" in out
    assert "hyper-threads" not in out


def test_cores_that_a_description_does_not_tell_are_warned_about(
    capsys: Shown,
) -> None:
    """Two ranks deal the CPUs beside GPUs 0 and 1 of a DGX-1, whatever their cores."""
    options = ["--machine", "dgx1-v100", "--nproc", "2", "--bind", "exclusive"]
    assert show(options) == 0
    assert (
        "warning: which of the CPUs 0-19,40-59 are hyper-threads of one core is not "
        "known"
    ) in capsys.readouterr().out


def test_a_rank_that_sees_its_own_device_alone_shows_what_is_shared_out(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a session knows the others' devices, and so which part of the CPUs it is."""
    own = {"GPUMAP_REHEARSAL": "dgx-a100", "CUDA_VISIBLE_DEVICES": "1"}
    for name, value in (LAUNCHED | own).items():
        monkeypatch.setenv(name, value)
    assert show(["--bind", "exclusive"]) == 0
    out = capsys.readouterr().out
    assert " 48-63,176-191  torch variables gave this process its own device" in out
    assert "warning: of the CPUs shown, --bind exclusive gives this process a part" in (
        out
    )
    assert show(["--bind", "numa"]) == 0
    assert "of the CPUs shown" not in capsys.readouterr().out


def test_a_device_without_cpus_stops_the_exclusive_and_is_warned_about_otherwise(
    capsys: Shown, tmp_path: Path
) -> None:
    """A session refuses bind="exclusive" there, and opens with "numa" unbound."""
    file = tmp_path / "here.json"
    devices = [{"kind": "cuda", "index": 0, "uuid": "GPU-5c3a"}]
    file.write_text(json.dumps({"hostname": "n1", "devices": devices}))
    told = "the system does not tell which CPUs are beside cuda:0 (GPU-5c3a…)."
    assert show(["--machine", str(file), "--bind", "numa"]) == 0
    assert f"warning: {told} " in capsys.readouterr().out
    assert show(["--machine", str(file), "--bind", "exclusive"]) == 1
    assert f"PlacementError: {told}" in capsys.readouterr().out


def test_processes_whose_number_is_not_told_cannot_deal_cpus(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of a session with bind="exclusive"."""
    monkeypatch.setenv("GPUMAP_REHEARSAL", "dgx-a100")
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.setenv(name, LAUNCHED[name])
    monkeypatch.setenv("MASTER_ADDR", "n1")
    assert show(["--bind", "exclusive"]) == 1
    assert 'LaunchError: bind="exclusive" deals the CPUs' in capsys.readouterr().out


def test_the_closest_devices_are_shown_by_this_processs_cpus(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs 4 and 5 of a DGX A100 are beside CPU 112."""
    monkeypatch.setattr("gpumap.command.placing.bound_cpus", lambda: (112,))
    closest = ["--machine", "dgx-a100", "--strategy", "closest"]
    assert show([*closest, "--nproc", "1"]) == 0
    out = capsys.readouterr().out
    assert [row[4] for row in rows(out)] == ["cuda:4"]
    assert "warning: strategy" not in out
    assert show([*closest, "--nproc", "2"]) == 0
    out = capsys.readouterr().out
    assert [row[4] for row in rows(out)] == ["cuda:4", "cuda:5"]
    assert (
        'warning: strategy "closest" is shown as if each of 2 processes were bound to '
        "CPUs 112, as this one is."
    ) in out


@pytest.mark.usefixtures("one_of_two")
def test_under_a_launcher_only_a_session_knows_the_closest_devices(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher may bind each process elsewhere; that is no error."""
    monkeypatch.setattr("gpumap.command.placing.bound_cpus", lambda: (112,))
    assert show(["--strategy", "closest"]) == 0
    out = capsys.readouterr().out
    assert rows(out) == []
    assert out.splitlines()[-1] == (
        'warning: strategy "closest" goes by the CPUs that each process of this node '
        "is bound to, which only a session compares; this one's are 112."
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert show(["--strategy", "closest"]) == 0
    assert [row[4] for row in rows(capsys.readouterr().out)] == ["cuda:0"]


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Claims]:
    """Claims in a folder of the test's own, which are released at its end."""
    folder = tmp_path / "claims"
    folder.mkdir()
    monkeypatch.setenv("GPUMAP_CLAIMS", str(folder))
    with Claims(folder) as mine:
        yield mine


@pytest.mark.usefixtures("claims")
def test_idle_devices_of_a_described_machine_are_shown(
    capsys: Shown, tmp_path: Path
) -> None:
    """A device with a tenant is shown with it, and is not taken."""
    node = gpumap.machine("rtx3090x2")
    used = node.devices[0].model_copy(
        update={"tenants": (gpumap.Tenant(pid=7, user="ann"),)}
    )
    file = tmp_path / "here.json"
    file.write_text(
        node.model_copy(update={"devices": (used, node.devices[1])}).model_dump_json()
    )
    assert show(["--machine", str(file), "--strategy", "idle", "--nproc", "1"]) == 0
    out = capsys.readouterr().out
    assert "used by" in out
    assert "ann, pid 7" in out
    assert "nobody" in out
    assert "idle: the 1 of the pool with most free" in out


def test_a_claimed_device_is_not_idle(capsys: Shown, claims: Claims) -> None:
    """Who holds it is in the table and in the JSON, as in a session's decision."""
    node = gpumap.machine("rtx3090x2")
    assert claims.take(str(node.devices[0].uuid))
    idle = ["--machine", "rtx3090x2", "--strategy", "idle", "--nproc", "1"]
    assert show(idle) == 0
    out = capsys.readouterr().out
    assert [row[4] for row in rows(out)] == ["cuda:1"]
    assert f"pid {os.getpid()}" in out
    assert show([*idle, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tenants = [device["tenants"] for device in found["node"]["devices"]]
    assert [[t["pid"] for t in mine] for mine in tenants] == [[os.getpid()], []]
    assert tenants[0][0]["claims"]
    assert found["placements"][0]["device"]["index"] == 1


def test_who_uses_a_device_is_shown_though_too_few_are_idle(
    capsys: Shown, claims: Claims
) -> None:
    """The table has the tenants where the error says that nothing can start."""
    assert claims.take(str(gpumap.machine("rtx3090x2").devices[0].uuid))
    options = ["--machine", "rtx3090x2", "--nproc", "2", "--strategy", "idle"]
    assert show(options) == 1
    out = capsys.readouterr().out
    assert " (claim)" in out
    assert 'PlacementError: strategy "idle" wants 2 devices' in out


def test_a_saved_node_has_its_cpus(capsys: Shown, tmp_path: Path) -> None:
    """A rehearsal of it elsewhere knows which hyper-threads are one core's."""
    file = tmp_path / "here.json"
    assert show(["--save", str(file)]) == 0
    saved = gpumap.Node.model_validate_json(file.read_text())
    assert saved.cpus is not None
    found = {cpu for core in saved.cpus.cores for cpu in core}
    assert os.sched_getaffinity(0) <= found
    assert "node:" in capsys.readouterr().out

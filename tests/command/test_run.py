"""`gpumap run`: what the script finds, and that nothing of gpumap is left beside it."""

import json
import os
import signal
import socket
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from gpumap.command.program import program_of
from helpers.environments import rank_environment
from helpers.jobs import free_port
from helpers.programs import run_program
from helpers.ranks_of_run import (
    VIEW,
    ended,
    run_ranks,
    script,
    start_rank,
)


@pytest.fixture
def train(tmp_path: Path) -> str:
    """Return the path of a script that prints what it finds."""
    return script(tmp_path)


@pytest.fixture
def no_torch(tmp_path: Path) -> dict[str, str]:
    """Return variables under which an import of torch fails."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    return {"PYTHONPATH": str(tmp_path)}


def test_a_script_alone_is_a_world_of_one_on_the_device_that_was_named(
    train: str,
) -> None:
    """All of env:// is set, the mask has one device, and the port is free."""
    done = ended(start_rank(["--gpus", "5", train, "--epochs", "3"], {}))
    view = done.view

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    found = [view[n] for n in (*names, "NODE_RANK", "GROUP_WORLD_SIZE")]
    assert found == ["0", "1", "0", "1", "0", "0", "1"]
    assert view["CUDA_VISIBLE_DEVICES"] == "5"
    assert done.words == ["--epochs", "3"]
    with socket.socket() as listener:
        listener.bind((view["MASTER_ADDR"], int(view["MASTER_PORT"])))


def test_ranks_of_a_node_have_one_mask_in_which_each_finds_its_own(
    train: str, no_torch: dict[str, str]
) -> None:
    """Without torch: both list devices 5 and 2; LOCAL_RANK tells which is whose."""
    views = [x.view for x in run_ranks(["--gpus", "5,2", train], environ=no_torch)]

    assert [view["CUDA_VISIBLE_DEVICES"] for view in views] == ["5,2", "5,2"]
    assert [view["LOCAL_RANK"] for view in views] == ["0", "1"]


def test_own_leaves_each_rank_its_device_alone(train: str) -> None:
    """With --own each sees one device, and takes cuda:0."""
    views = [x.view for x in run_ranks(["--own", "--gpus", "5,2", train])]

    assert [view["CUDA_VISIBLE_DEVICES"] for view in views] == ["5", "2"]
    assert [view["LOCAL_RANK"] for view in views] == ["0", "0"]
    assert [view["RANK"] for view in views] == ["0", "1"]


def test_ranks_that_share_a_device_need_masks_of_their_own(train: str) -> None:
    """A mask cannot list a device twice: --oversubscribe says that --own can."""
    words = ["--oversubscribe", "--gpus", "5,5", train]
    refused = run_ranks(words)
    views = [x.view for x in run_ranks(["--own", *words])]

    assert [x.code for x in refused] == [1, 1]
    assert all("--own" in x.err for x in refused)
    assert [view["CUDA_VISIBLE_DEVICES"] for view in views] == ["5", "5"]


def test_the_pool_that_the_environment_names_is_used_up(train: str) -> None:
    """GPUMAP_GPUS counts without the mask, and so is not left to the script."""
    view = ended(start_rank([train], {"GPUMAP_GPUS": "6"})).view

    assert view["CUDA_VISIBLE_DEVICES"] == "6"
    assert "GPUMAP_GPUS" not in view


def test_an_index_counts_within_the_mask_that_is_set(train: str) -> None:
    """Under CUDA_VISIBLE_DEVICES=6,4,1, devices 2 and 0 are 1 and 6."""
    mask = {"CUDA_VISIBLE_DEVICES": "6,4,1"}
    views = [x.view for x in run_ranks(["--gpus", "2,0", train], environ=mask)]

    assert [view["CUDA_VISIBLE_DEVICES"] for view in views] == ["1,6", "1,6"]


def test_devices_by_global_rank_are_told_to_the_whole_node(train: str) -> None:
    """Open MPI tells no rank the others' ranks, yet both know both devices."""
    port = free_port()
    ranks = [
        start_rank(
            ["--strategy", "modulo", "--gpus", "3,1,7", train],
            {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": str(1 - rank),
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "MASTER_PORT": str(port),
            },
        )
        for rank in (0, 1)
    ]
    views = [ended(process).view for process in ranks]

    assert [view["LOCAL_RANK"] for view in views] == ["1", "0"]
    assert [view["CUDA_VISIBLE_DEVICES"] for view in views] == ["1,3", "1,3"]


def test_a_rank_without_a_local_rank_sees_its_device_alone(train: str) -> None:
    """A pod that was told RANK and WORLD_SIZE takes the only device that it sees."""
    told = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    mask = {"CUDA_VISIBLE_DEVICES": "6"}

    view = ended(start_rank(["--no-roll-call", train], told | mask)).view

    assert (view["CUDA_VISIBLE_DEVICES"], view["LOCAL_RANK"]) == ("6", "0")
    assert "LOCAL_WORLD_SIZE" not in view


def test_ranks_whose_number_is_not_told_share_the_whole_pool(train: str) -> None:
    """Without LOCAL_WORLD_SIZE the mask has every device that a rank may have."""
    environ = {"LOCAL_WORLD_SIZE": ""}

    views = [x.view for x in run_ranks(["--gpus", "5,2,3", train], environ=environ)]

    assert [view["CUDA_VISIBLE_DEVICES"] for view in views] == ["5,2,3", "5,2,3"]
    assert [view["LOCAL_RANK"] for view in views] == ["0", "1"]


def test_on_one_node_the_address_is_the_one_at_which_the_ranks_have_met(
    train: str,
) -> None:
    """A name that nobody can look up does not reach the script."""
    environ = {"MASTER_ADDR": "nosuch.invalid"}

    views = [x.view for x in run_ranks([train], environ=environ)]

    assert [view["MASTER_ADDR"] for view in views] == ["127.0.0.1", "127.0.0.1"]


def test_loading_torch_leaves_the_script_its_cpus(tmp_path: Path) -> None:
    """OMP_PROC_BIND binds the thread that loads libgomp, and exec would keep that."""
    own = script(tmp_path, "import os; print(sorted(os.sched_getaffinity(0)))")
    environ = {"GPUMAP_REHEARSAL": "", "OMP_PROC_BIND": "true"}

    done = ended(start_rank([own], environ))

    assert json.loads(done.out) == sorted(os.sched_getaffinity(0)), done.err


def test_the_words_after_the_script_are_its_own(train: str) -> None:
    """Options of gpumap's name, and two dashes, reach the script as they are."""
    words = ["--gpus", "7", "-m", "x", "--", "--help", "a b", ""]
    done = ended(start_rank(["--gpus", "5", train, *words], {}))

    assert done.words == words
    assert done.view["CUDA_VISIBLE_DEVICES"] == "5"


def test_a_module_and_a_program_are_run_as_torchrun_runs_them(tmp_path: Path) -> None:
    """-m takes a module's name, --no-python any program."""
    (tmp_path / "a_module.py").write_text(VIEW)
    module = start_rank(["-m", "a_module", "x"], {"PYTHONPATH": str(tmp_path)})
    program = start_rank(
        ["--no-python", "sh", "-c", 'echo "$LOCAL_RANK $0 $1"', "-m", "y"], {}
    )

    assert ended(module).words == ["x"]
    assert ended(program).out == "0 -m y\n"


def test_the_script_gets_the_options_of_its_python(tmp_path: Path) -> None:
    """`python -X dev -u -m gpumap run` passes -X dev -u on."""
    own = script(tmp_path, "import sys; print(sys.orig_argv[1:4], sys.flags.dev_mode)")

    done = ended(start_rank([own], {}, ["-X", "dev", "-u"]))

    assert done.out == "['-X', 'dev', '-u'] True\n"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["python", "-um", "gpumap", "run"], ["-u"]),
        (["python", "-mgpumap", "run"], []),
        (["python", "-c", "…", "-u"], []),
        (["python", "/bin/gpumap", "run", "-u"], []),
        (["python", "-W", "ignore", "-OO", "-m", "gpumap"], ["-W", "ignore", "-OO"]),
        (["python", "-Xdev", "-Bm", "gpumap"], ["-Xdev", "-B"]),
    ],
)
def test_the_options_of_python_end_before_the_script(
    words: list[str], options: list[str], monkeypatch: pytest.MonkeyPatch, train: str
) -> None:
    """They are those of its manual, in bundles too."""
    monkeypatch.setattr(sys, "orig_argv", words)
    asked = Namespace(script=train, arguments=[], module=False, no_python=False)

    assert program_of(asked) == [sys.executable, *options, train]


def test_the_script_is_the_process_itself(tmp_path: Path) -> None:
    """It has the process id that was started; its exit code and signals are its own."""
    for code, ends in (("sys.exit(7)", 7), ("os.kill(os.getpid(), 15)", -15)):
        text = f"import os, sys; print(os.getpid(), os.getppid(), flush=True); {code}"
        process = start_rank([script(tmp_path, text)], {})
        done = ended(process)

        assert done.out.split() == [str(done.pid), str(os.getpid())]
        assert done.code == ends


def test_a_program_gets_the_signals_as_the_system_gives_them() -> None:
    """Python ignores SIGPIPE; a program in its place does not inherit that."""
    done = ended(start_rank(["--no-python", "grep", "SigIgn", "/proc/self/status"], {}))

    ignored = int(done.out.split()[1], 16)
    python_ignores = (signal.SIGPIPE, signal.SIGXFSZ)
    assert not [n for n in python_ignores if ignored >> (n - 1) & 1]


HOLDS = """\
import json, os, socket, sys
files = []
for name in os.listdir("/proc/self/fd"):
    try:
        files.append(os.readlink(f"/proc/self/fd/{name}"))
    except FileNotFoundError:  # the listing's own
        pass
threads = len(os.listdir("/proc/self/task"))
if os.environ["RANK"] == "0":
    listener = socket.socket()
    listener.bind((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    listener.listen()
    listener.accept()
else:
    while True:
        try:
            socket.create_connection(
                (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            )
            break
        except ConnectionRefusedError:
            pass
print(sum("socket" in file for file in files), threads)
"""


@pytest.mark.parametrize("_turn", range(3))
def test_the_port_is_free_for_the_script(tmp_path: Path, _turn: int) -> None:
    """Rank 0's script takes it without SO_REUSEADDR at once; none has a socket left."""
    done = run_ranks([script(tmp_path, HOLDS)])

    assert [x.out for x in done] == ["0 1\n", "0 1\n"]


def test_ranks_on_one_device_are_told_so_before_their_script_starts(train: str) -> None:
    """Both end with 1 and the error as a session words it."""
    port = free_port()
    ranks = [
        start_rank([train], {**rank_environment(0, 2, port), "RANK": str(rank)})
        for rank in (0, 1)
    ]
    done = [ended(process) for process in ranks]

    assert [(x.code, x.out) for x in done] == [(1, ""), (1, "")]
    text = "RollCallError: rank 0 and rank 1 are both on one device, GPU-a1000000-"
    assert all(text in x.err for x in done)


def test_a_missing_rank_is_named_in_time(train: str) -> None:
    """After --start-timeout both that are there say that rank 1 of 3 is not."""
    done = run_ranks(["--start-timeout", "1.5", train], 3, ranks=[0, 2])

    assert [x.code for x in done] == [1, 1]
    assert all("rank 1 of 3 did not come within 1.5 s" in x.err for x in done)


def test_without_a_roll_call_nobody_is_awaited(train: str) -> None:
    """Rank 2 of 3 starts alone, with all that its launcher says."""
    [done] = run_ranks(["--no-roll-call", train], 3, ranks=[2])

    assert done.view["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    assert done.view["LOCAL_RANK"] == "2"


def test_what_only_all_ranks_decide_needs_the_roll_call(train: str) -> None:
    """--no-roll-call and --strategy idle contradict each other, in words."""
    [done] = run_ranks(["--no-roll-call", "--strategy", "idle", train], ranks=[1])

    assert done.code == 1
    assert "Leave --no-roll-call out." in done.err


def test_a_script_that_is_missing_on_one_rank_is_told_to_all(train: str) -> None:
    """That rank ends with 2 and a sentence; the other hears why it cannot start."""
    port, folder = free_port(), Path(train).parent
    ranks = [
        start_rank(["train.py"], rank_environment(rank, 2, port), cwd=place)
        for rank, place in enumerate((folder, folder.parent))
    ]
    there, lost = (ended(process) for process in ranks)

    assert (there.code, lost.code) == (1, 2)
    assert "cannot start: there is no script 'train.py'" in there.err
    said = lost.err.splitlines()[-1]
    assert said.startswith("gpumap run: there is no script 'train.py' in ")


def test_a_rank_that_is_stopped_while_it_waits_tells_the_others(train: str) -> None:
    """SIGTERM: it ends with 143, as in a session, and the other names it."""
    port = free_port()
    first, second = (
        start_rank([train], rank_environment(rank, 3, port)) for rank in (0, 1)
    )
    assert second.stderr is not None
    assert first.stderr is not None
    for line in first.stderr:  # once it says who is missing, both may have come
        if "rank 2" in line:
            break
    second.send_signal(signal.SIGTERM)

    assert ended(second).code == 143
    told = ended(first)
    assert told.code == 1
    assert "rank 1 (pid" in told.err


def test_ctrl_c_ends_it_as_it_would_end_the_script(train: str) -> None:
    """The process dies of SIGINT, without a traceback."""
    # A shell starts what runs in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = start_rank([train], rank_environment(0, 2, free_port()))
    signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    for line in process.stderr:
        if "rank 1" in line:
            break
    process.send_signal(signal.SIGINT)
    done = ended(process)

    assert done.code == -signal.SIGINT
    assert "Traceback" not in done.err


def test_scripts_one_after_the_other_meet_anew_on_torchruns_store(train: str) -> None:
    """The store of torchrun outlives them, and what the first wrote is not read."""
    twice = f"{sys.executable} -m gpumap run {train} && " * 2 + "true"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]

    done = run_program(
        [*command, "--no-python", "sh", "-c", twice],
        {"GPUMAP_REHEARSAL": "dgx-a100"},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"CUDA_VISIBLE_DEVICES": "0,1"') == 4


def test_a_program_that_the_system_refuses_is_one_sentence(tmp_path: Path) -> None:
    """It ends with 2."""
    (tmp_path / "tool").write_bytes(b"\x7fELF, but no program")
    (tmp_path / "tool").chmod(0o755)
    done = ended(start_rank(["--no-python", str(tmp_path / "tool")], {}))

    assert done.code == 2
    assert done.err.splitlines()[-1].startswith(
        f"gpumap run: {tmp_path}/tool cannot be"
    )

"""Claims on devices: one holder at a time, of any user, and none after its end."""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpumap.detect import claims as module
from gpumap.detect.claims import Claims, claims_folder, holder_of, with_holders
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Node, Tenant
from helpers.programs import run_program, run_python, start_python

PYTHON = Path(sys.executable).name
NAME = "GPU-5c3a01b2"
TMP = "/tmp"  # noqa: S108 - it is the rule that is tested
ALICE, BOB, CAROL = 54_321, 54_322, 54_323
FIRST = """
import os, sys
from pathlib import Path
from gpumap.detect.claims import Claims, holder_of
folder, name, user = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def become(user):
    if user != os.geteuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


become(user)
"""
HOLD = """
claims = Claims(folder)
print(claims.take(name), flush=True)
sys.stdin.read()
"""
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as other users"
)


@pytest.fixture
def shared() -> Generator[Path, None, None]:
    """Return a folder like /tmp: all may write, and remove what is their own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@contextmanager
def holding(
    folder: Path, *more: str, name: str = NAME, user: int | None = None, first: str = ""
) -> Generator[subprocess.Popen[str], None, None]:
    """Run a process that takes a name and keeps it till the block ends."""
    who = os.geteuid() if user is None else user
    arguments = ("-c", first + FIRST + HOLD, str(folder), name, str(who), *more)
    with start_python(*arguments, stdin=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said == "True\n", said + process.stdout.read()
            yield process
        finally:
            process.kill()


def run(folder: Path, code: str, *more: str, user: int | None = None) -> str:
    """Run code in another process; return what it prints."""
    who = os.geteuid() if user is None else user
    done = run_python("-c", FIRST + code, str(folder), NAME, str(who), *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def taken(folder: Path, user: int | None = None) -> str:
    """Try to take the name in another process; return "True" or "False"."""
    return run(folder, "print(Claims(folder).take(name))", user=user)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, TMP),
        ({"TMPDIR": "/scratch/job7"}, TMP),
        ({"GPUMAP_CLAIMS": ""}, TMP),
        ({"GPUMAP_CLAIMS": "/run/gpus", "TMPDIR": "/scratch/job7"}, "/run/gpus"),
    ],
)
def test_the_folder_is_tmp_unless_gpumap_claims_says_otherwise(
    environ: dict[str, str], folder: str
) -> None:
    """TMPDIR, which differs among jobs, does not change where claims are."""
    assert claims_folder(environ) == Path(folder)


def test_a_relative_folder_is_refused() -> None:
    """A relative GPUMAP_CLAIMS is an error: jobs in other folders would not see it."""
    with pytest.raises(DeviceError) as caught:
        claims_folder({"GPUMAP_CLAIMS": "gpus"})
    assert str(caught.value) == (
        "GPUMAP_CLAIMS='gpus' is another folder for each job.\n"
        "It is relative to the folder that a job is started in.\n"
        "Set GPUMAP_CLAIMS to an absolute path, or unset it for /tmp."
    )


def test_a_name_is_claimed_once_in_a_process(shared: Path) -> None:
    """Other Claims of one process exclude each other; the same ones may ask again."""
    mine, other = Claims(shared), Claims(shared)
    with mine:
        assert mine.take(NAME)
        assert mine.take(NAME)
        assert not other.take(NAME)
        assert other.take("00000000:3b:00.0")
        other.release(NAME)
        assert not other.take(NAME)
        other.release_all()
        holder = holder_of(shared, NAME)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert holder_of(shared, NAME) is None
    assert other.take(NAME)
    other.release(NAME)
    assert mine.take(NAME)
    mine.release_all()


def test_threads_of_a_process_exclude_each_other(shared: Path) -> None:
    """Of eight threads that claim one name together, one gets it."""
    start = threading.Barrier(8)

    def take(claims: Claims) -> bool:
        start.wait(60)
        return claims.take(NAME)

    everyone = [Claims(shared) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(take, everyone)) == [False] * 7 + [True]
    for claims in everyone:
        claims.release_all()


def test_looking_does_not_end_a_claim(shared: Path) -> None:
    """The kernel drops a lock when its process closes the file; a look does not."""
    with Claims(shared) as claims:
        assert claims.take(NAME)
        assert holder_of(shared, NAME) is not None
        assert not Claims(shared).take(NAME)
        assert taken(shared) == "False"
    assert taken(shared) == "True"


def test_a_name_is_released_alone(shared: Path) -> None:
    """Releasing one name leaves the others claimed; another's release does nothing."""
    with Claims(shared) as claims:
        assert claims.take(NAME)
        assert claims.take("GPU-2")
        claims.release("GPU-2")
        claims.release("GPU-3")
        assert taken(shared) == "False"
        assert holder_of(shared, "GPU-2") is None


def test_a_name_may_hold_any_character(shared: Path) -> None:
    """Names are quoted: a slash or dots lead to no other folder."""
    names = ["a/b", "../a", "..", ".", "MIG-GPU-5c3a/7/0", "%2F", "a b"]
    with Claims(shared) as claims:
        assert [claims.take(name) for name in names] == [True] * len(names)
    (own,) = shared.iterdir()
    assert len(list(own.iterdir())) == len(names)


def test_the_holder_is_named(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says the pid; 1,700,000,000 s of Unix time are in November 2023."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    before = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    with holding(shared, "\x1b[31mred\n", "x" * 100) as process:
        holder = holder_of(shared, NAME)
        assert holder is not None
        assert holder.pid == process.pid
        user = run_program(["id", "-un"]).stdout.strip()
        assert holder.user == (f"uid {user}" if user.isdigit() else user)
        assert holder.claims
        assert holder.command is not None
        assert holder.command.startswith(f"{PYTHON} -c ?import os, sys?")
        assert len(holder.command) == 61
        assert holder.command.endswith("…")
        assert holder.since is not None
        after = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        assert before <= holder.since <= after
        (file,) = shared.glob("*/*")
        os.utime(file, (1_700_000_000, 1_700_000_000))
        holder = holder_of(shared, NAME)
        assert holder is not None
        assert holder.since == "2023-11-14 22:13:20"
    with holding(shared):
        holder = holder_of(shared, NAME)
        assert holder is not None
        assert holder.since is not None
        assert holder.since >= before
    monkeypatch.undo()
    time.tzset()


def test_a_time_that_no_calendar_has_is_left_out(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's owner may give it any time; one that is out of range is unknown."""

    def localtime(_: float) -> time.struct_time:
        raise OverflowError(errno.EOVERFLOW, "Value too large for defined data type")

    monkeypatch.setattr(time, "localtime", localtime)
    with Claims(shared) as claims:
        assert claims.take(NAME)
        holder = holder_of(shared, NAME)
        assert holder is not None
        assert holder.since is None


def test_kill_9_releases(shared: Path) -> None:
    """The claims of a process that is killed are free when it has ended."""
    with holding(shared) as process:
        assert not Claims(shared).take(NAME)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        with Claims(shared) as claims:
            assert claims.take(NAME)


def test_a_program_that_lives_on_holds_nothing(shared: Path) -> None:
    """A program started by a holder does not keep its claims when the holder ends."""
    code = """
import subprocess
claims = Claims(folder)
print(claims.take(name))
child = subprocess.Popen(
    ["sleep", "100"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
)
print(child.pid)
os._exit(0)
"""
    took, child = run(shared, code).split()
    try:
        assert took == "True"
        assert taken(shared) == "True"
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_forked_child_neither_holds_nor_releases(shared: Path) -> None:
    """A child sees its parent hold the name, and may end or release as it likes."""
    code = """
import signal
from gpumap.detect import claims as module
claims = Claims(folder)
assert claims.take(name)


def in_child(act):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            code = act()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def look():
    holder = holder_of(folder, name)
    return 7 if holder.pid == os.getppid() and not claims.take(name) else 1


def release():
    claims.release(name)
    claims.release_all()
    return look()


def take_another():
    assert claims.take("GPU-other")
    return look()


print(*map(in_child, (lambda: 0, look, release, take_another, look)))
with module._one_thread:  # as another thread of the parent may have it
    print(in_child(look))
child = os.fork()
if child == 0:
    os.execv(sys.executable, [sys.executable, "-c", "pass"])
os.waitpid(child, 0)
print(in_child(look))
"""
    assert run(shared, code).splitlines() == ["0 7 7 7 7", "7", "7"]


def test_a_child_that_lives_on_holds_nothing(shared: Path) -> None:
    """A forked child that outlives its parent leaves the parent's claims free."""
    code = """
import signal
claims = Claims(folder)
assert claims.take(name)
child = os.fork()
if child == 0:
    signal.alarm(100)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    signal.pause()
print(child)
os._exit(0)
"""
    child = int(run(shared, code))
    try:
        assert taken(shared) == "True"
    finally:
        os.kill(child, signal.SIGKILL)


@as_root
@pytest.mark.parametrize(("one", "two"), [(ALICE, BOB), (BOB, ALICE), (0, BOB)])
def test_two_users_exclude_each_other(shared: Path, one: int, two: int) -> None:
    """A user's claim is seen by another one, who is told pid and user."""
    with holding(shared, user=one) as process:
        assert taken(shared, user=two) == "False"
        said = run(shared, "print(holder_of(folder, name))", user=two)
        name = "root" if one == 0 else f"uid {one}"
        assert said.startswith(f"{name}, pid {process.pid} ({PYTHON} -c ")
    assert taken(shared, user=two) == "True"


@as_root
def test_a_umask_does_not_hide_a_claim(shared: Path) -> None:
    """A claim made under umask 077 is seen by another user all the same."""
    with holding(shared, user=ALICE, first="import os\nos.umask(0o077)"):
        assert taken(shared, user=BOB) == "False"


def test_nobody_else_may_write_to_a_users_folder(shared: Path) -> None:
    """The folder has mode 0755 and the file 0644, under any umask."""
    run(shared, "os.umask(0)\nClaims(folder).take(name)")
    (own,) = shared.iterdir()
    assert own.name == f"gpumap-claims-{os.geteuid()}"
    assert stat.S_IMODE(own.stat().st_mode) == 0o755
    (file,) = own.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    own.chmod(0o777)
    with Claims(shared) as claims:
        assert claims.take(NAME)
        assert len(list(shared.glob("*/*.lock"))) == 2


TOGETHER = """
import multiprocessing, signal
from gpumap.detect import claims as module
module._PATIENCE = float("inf")
users = [int(user) for user in sys.argv[4:]]
context = multiprocessing.get_context("fork")
barrier = context.Barrier(len(users))
answers = context.SimpleQueue()
look, looks = module._locks, []


def together(*arguments):
    # All have looked before one locks; all have locked before one looks again; and all
    # have seen those locks before one gives way.
    looks.append(None)
    if len(looks) == 2:
        barrier.wait(60)
    found = look(*arguments)
    if len(looks) <= 2:
        barrier.wait(60)
    return found


def compete(user):
    become(user)
    signal.alarm(50)
    module._locks = together
    claims = Claims(folder)
    answers.put(claims.take(name))
    barrier.wait(60)


processes = [context.Process(target=compete, args=(user,)) for user in users]
for process in processes:
    process.start()
for process in processes:
    process.join(60)
    process.kill()
print(sorted(answers.get() for _ in users))
"""


@as_root
def test_of_users_at_the_same_moment_exactly_one_gets_it(shared: Path) -> None:
    """Three users who all hold a lock before they look agree on one of them."""
    done = run(shared, TOGETHER, *map(str, (CAROL, ALICE, BOB)))
    assert done == "[False, False, True]"


RACE = """
import random, signal, time
witnesses, users = Path(sys.argv[4]), [int(user) for user in sys.argv[5:]]
names = [f"GPU-{n}" for n in range(8)]
log = os.open(witnesses / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def enter(name):
    # Making a link is atomic, and the link names the process that has made it.
    path = witnesses / name
    while True:
        try:
            path.symlink_to(str(os.getpid()))
        except FileExistsError:
            other = os.readlink(path)
            if not (witnesses / f"killed-{other}").exists():
                os.write(2, f"{name}: {other} and {os.getpid()}\\n".encode())
                os._exit(1)
            path.unlink()
        else:
            return


def compete(number):
    signal.alarm(90)
    become(users[number % len(users)])
    draw, claims = random.Random(number), Claims(folder)
    while True:
        for name in draw.sample(names, len(names)):
            if claims.take(name):
                enter(name)
                os.write(log, f"{name} ".encode())
                time.sleep(draw.random() / 200)
                (witnesses / name).unlink()
                claims.release(name)


def start(number):
    pid = os.fork()
    if pid == 0:
        try:
            compete(number)
        finally:
            os._exit(2)
    return pid


def kill(pid):
    (witnesses / f"killed-{pid}").touch()
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


draw, racing, ended = random.Random(5), [start(n) for n in range(20)], []
for number in range(20, 60):
    time.sleep(0.05)
    ended.append(kill(racing.pop(draw.randrange(20))))
    racing.append(start(number))
ended += [kill(pid) for pid in racing]
print(set(ended), *sorted(set((witnesses / "log").read_text().split())))
"""


@pytest.mark.parametrize(
    "users",
    [
        pytest.param((os.geteuid(),), id="one user"),
        pytest.param((ALICE, BOB, CAROL), id="three users", marks=as_root),
    ],
)
def test_twenty_processes_never_share_one_of_eight_names(
    shared: Path, users: tuple[int, ...]
) -> None:
    """Of twenty processes, one of which is killed every 50 ms, one holds a name.

    A holder leaves a link of its own, which the next one must not find, unless its
    owner was killed.
    """
    with tempfile.TemporaryDirectory() as witnesses:
        Path(witnesses).chmod(0o777)
        said = run(shared, RACE, witnesses, *map(str, users))
    assert said == "{-9} " + " ".join(f"GPU-{n}" for n in range(8))


@contextmanager
def locked(path: Path) -> Generator[None, None, None]:
    """Run a process that locks a file by its path alone."""
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'a')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with start_python("-c", code, str(path), stdin=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield
        finally:
            process.kill()


def test_a_lock_in_any_users_folder_counts(shared: Path) -> None:
    """What counts is a lock of the folder's owner, whatever the folder is called."""
    other = shared / "gpumap-claims-of-another"
    other.mkdir()
    file = other / f"{NAME}.lock"
    file.touch()
    assert holder_of(shared, NAME) is None
    with locked(file):
        assert not Claims(shared).take(NAME)
    assert taken(shared) == "True"


@pytest.mark.parametrize("what", ["file", "link", "pipe", "folder", "far folder"])
def test_what_somebody_has_left_blocks_nothing(shared: Path, what: str) -> None:
    """Files without a lock, links, pipes and folders claim nothing, nor do they hang.

    The links lead to a file, or to a folder with one, that is locked.
    """
    aside = shared / "aside"
    aside.mkdir()
    there = aside / f"{NAME}.lock"
    there.touch()
    left = shared / "gpumap-claims-x"
    if what == "far folder":
        left.symlink_to(aside)
    else:
        left.mkdir()
    (shared / "gpumap-claims-none").touch()
    file = left / there.name
    if what == "file":
        file.touch()
    elif what == "link":
        file.symlink_to(there)
    elif what == "pipe":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    with locked(there), Claims(shared) as claims:
        assert holder_of(shared, NAME) is None
        assert claims.take(NAME)


@as_root
def test_a_folder_is_believed_for_its_owners_files_only(shared: Path) -> None:
    """A locked file of root's in a folder of another user's claims nothing."""
    other = shared / f"gpumap-claims-{ALICE}"
    other.mkdir()
    file = other / f"{NAME}.lock"
    file.touch()
    os.chown(other, ALICE, ALICE)
    with locked(file):
        assert holder_of(shared, NAME) is None
        os.chown(file, ALICE, ALICE)
        assert holder_of(shared, NAME) is not None


@as_root
def test_who_takes_a_users_folder_first_does_not_stop_him(shared: Path) -> None:
    """A user whose folder was made by another one claims in one of another name."""
    run(shared, f"(folder / 'gpumap-claims-{BOB}').mkdir(mode=0o700)", user=ALICE)
    with holding(shared, user=BOB):
        assert taken(shared, user=BOB) == "False"
        assert taken(shared, user=ALICE) == "False"
        assert len(list(shared.glob(f"gpumap-claims-{BOB}-*"))) == 1


@as_root
def test_who_locks_another_users_file_is_named(shared: Path) -> None:
    """A process that takes a read lock on another user's file is named by its own."""
    assert run(shared, "print(Claims(folder).take(name))", user=ALICE) == "True"
    (file,) = shared.glob("*/*.lock")
    code = """
import fcntl
file = open(sys.argv[4])
fcntl.lockf(file, fcntl.LOCK_SH)
print('locked', flush=True)
sys.stdin.read()
"""
    arguments = (str(shared), NAME, str(BOB), str(file))
    with start_python("-c", FIRST + code, *arguments, stdin=subprocess.PIPE) as hostile:
        try:
            assert hostile.stdout is not None
            assert hostile.stdout.readline() == "locked\n"
            said = run(shared, "print(holder_of(folder, name))", user=ALICE)
            assert said.startswith(f"uid {BOB}, pid {hostile.pid} (")
        finally:
            hostile.kill()


@as_root
def test_a_link_to_a_held_file_does_not_end_the_claim(shared: Path) -> None:
    """Another user's hard link to a holder's file is not opened, nor believed."""
    with Claims(shared) as claims:
        assert claims.take(NAME)
        (file,) = shared.glob("*/*.lock")
        other = shared / "gpumap-claims-x"
        other.mkdir()
        for name in (file.name, "GPU-2.lock"):
            (other / name).hardlink_to(file)
        os.chown(other, ALICE, ALICE)
        assert not Claims(shared).take(NAME)
        assert holder_of(shared, "GPU-2") is None
        assert taken(shared) == "False"


def test_a_link_made_while_one_looks_does_not_end_the_claim(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that becomes a link to a held one between two calls is not closed."""
    with Claims(shared) as claims:
        assert claims.take(NAME)
        (held,) = shared.glob("*/*.lock")
        other = shared / "gpumap-claims-x"
        other.mkdir()
        trap = other / "GPU-2.lock"
        trap.touch()
        opened, system = list[int](), os.open

        def swap(path: Path, flags: int) -> int:
            trap.unlink()
            trap.hardlink_to(held)
            opened.append(system(path, flags))
            return opened[0]

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", swap)
            assert holder_of(shared, "GPU-2") is None
        assert len(opened) == 1
        assert taken(shared) == "False"
    os.close(opened[0])


@as_root
def test_a_holder_in_another_pid_namespace_has_a_user_but_no_pid(shared: Path) -> None:
    """A process id that means nothing here is left out, as is its command."""
    code = FIRST + "print(repr(holder_of(folder, name)))"
    unshare = ["unshare", "--pid", "--fork", sys.executable]
    if run_program([*unshare, "-c", "pass"]).returncode:
        pytest.skip("no PID namespace can be made here")
    with holding(shared, user=ALICE):
        done = run_program([*unshare, "-c", code, str(shared), NAME, "0"])
        assert done.stdout.startswith(
            f"Tenant(pid=None, user='uid {ALICE}', command=None, since='"
        ), done.stderr


def test_the_holder_of_a_claim_is_among_the_tenants_of_its_device(
    shared: Path,
) -> None:
    """It comes after those who use the device; by looking nothing is claimed."""
    ann = Tenant(pid=7, user="ann")
    cards = (
        Device(kind="cuda", index=0, uuid="GPU-77a1", tenants=(ann,)),
        Device(kind="cuda", index=1, uuid=NAME, tenants=(ann,)),
        Device(kind="cuda", index=2, uuid="GPU-99c3"),
        Device(kind="npu", index=3),
    )
    node = Node(hostname="n1", devices=cards)
    environ = {"GPUMAP_CLAIMS": str(shared)}
    with holding(shared) as process:
        seen = with_holders(node, environ).devices
    assert [d.tenants and [t.pid for t in d.tenants] for d in seen] == [
        [7],
        [7, process.pid],
        None,
        None,
    ]
    assert [t.claims for t in seen[1].tenants or ()] == [False, True]
    assert with_holders(node, environ) == node
    assert taken(shared) == "True"


def descriptors() -> list[str]:
    """Return the open files of this process."""
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def refusal(folder: Path) -> DeviceError:
    """Return the error of a claim in a folder that cannot be used."""
    with pytest.raises(DeviceError) as caught:
        Claims(folder).take(NAME)
    assert caught.value.happened == f"devices cannot be claimed in {folder}."
    assert caught.value.hint == (
        "Set GPUMAP_CLAIMS, for all jobs alike, to a folder of this machine in which "
        "every user may make folders (chmod 1777), or write claim=False and another "
        'strategy than "idle".'
    )
    assert caught.value.__cause__ is None
    return caught.value


def test_a_folder_that_is_none_is_told(shared: Path) -> None:
    """A folder that is not there, or is a file, is an error in the system's words."""
    none = shared / "none"
    assert refusal(none).seen == (
        f"The system says: [Errno 2] No such file or directory: '{none}'."
    )
    none.touch()
    assert refusal(none).seen.startswith("The system says: [Errno 20] Not a directory")
    with pytest.raises(DeviceError):
        holder_of(none, NAME)


@as_root
def test_a_folder_that_cannot_be_written_is_told(shared: Path) -> None:
    """A user who may make no folder there gets an error that names it."""
    shared.chmod(0o755)
    code = "try:\n    Claims(folder).take(name)\nexcept Exception as e:\n    print(e)"
    happened, seen, hint = run(shared, code, user=ALICE).splitlines()
    assert happened == f"devices cannot be claimed in {shared}."
    own = f"{shared}/gpumap-claims-{ALICE}"
    assert seen == f"The system says: [Errno 13] Permission denied: '{own}'."
    assert hint.startswith("Set GPUMAP_CLAIMS, for all jobs alike, to a folder")


def test_a_file_system_without_locks_is_told(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that has no locks is an error; nothing is held, nothing is open."""

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "lockf", none)
        assert refusal(shared).seen == "The system says: [Errno 37] No locks available."
    assert descriptors() == before
    assert holder_of(shared, NAME) is None


def test_a_process_that_cannot_look_does_not_claim(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a free descriptor it is unknown who holds a name, and that is told."""

    def none(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with holding(shared):
        monkeypatch.setattr(os, "open", none)
        with pytest.raises(DeviceError, match="devices cannot be claimed in"):
            holder_of(shared, NAME)
        assert (
            refusal(shared).seen == "The system says: [Errno 24] Too many open files."
        )


def test_an_interrupted_claim_is_released(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal between the lock and the look leaves nothing claimed."""
    system, looks = module._locks, list[int]()  # noqa: SLF001 - the moment is inside

    def interrupted(folder: Path, name: str) -> object:
        looks.append(1)
        if len(looks) == 2:
            raise KeyboardInterrupt
        return system(folder, name)

    before = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(module, "_locks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Claims(shared).take(NAME)
    assert descriptors() == before
    assert taken(shared) == "True"


def test_a_file_that_is_cleaned_away_before_its_lock_is_not_held(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever locks a file that has been replaced locks the new one instead."""
    system, locks = fcntl.lockf, list[int]()

    def cleaned(file: int, how: int) -> None:
        if not locks:
            (path,) = shared.glob("*/*.lock")
            path.unlink()
            path.touch()
        locks.append(file)
        system(file, how)

    monkeypatch.setattr(fcntl, "lockf", cleaned)
    with Claims(shared) as claims:
        assert claims.take(NAME)
        assert len(locks) == 2
        assert taken(shared) == "False"


def test_a_folder_that_is_claimed_in_is_locked_against_cleaning(shared: Path) -> None:
    """While a claim is held nobody gets an exclusive BSD lock on its folder."""
    with holding(shared) as first, holding(shared, name="GPU-2"):
        first.kill()
        first.wait(60)
        (own,) = shared.iterdir()
        room = os.open(own, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(room, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(room, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with Claims(shared) as claims:
        assert claims.take(NAME)  # whoever locks it does not keep its owner waiting
    os.close(room)


@as_root
def test_systemd_removes_no_file_that_is_claimed(shared: Path, tmp_path: Path) -> None:
    """systemd-tmpfiles removes old files from the folder, and spares claims."""
    rules = tmp_path / "clean.conf"
    rules.write_text(f"d {shared} 1777 root root 0\n")

    def clean() -> None:
        done = run_program(["systemd-tmpfiles", "--clean", str(rules)])
        assert done.returncode == 0, done.stderr

    try:
        clean()
    except FileNotFoundError:
        pytest.skip("systemd-tmpfiles is not installed")
    (shared / "old").touch()
    with holding(shared):
        clean()
        assert not (shared / "old").exists()
        assert taken(shared) == "False"
    clean()
    assert list(shared.iterdir()) == []

"""Claims on devices, as locks that all users of a machine see and the kernel releases.

Each user has a folder of his own in a folder that all share, and in it one file for
each device's name. A claim is a POSIX lock on that file: it ends with its process,
however that ends, and a file without a lock claims nothing.

A folder and its files are believed if they have one owner, so that nobody speaks for
others. What a hostile user can do: keep a process alive that locks every name. It is
named then, as any other holder. Nothing that he leaves behind blocks anything, given
that the shared folder has the sticky bit, as /tmp has. What is not seen: the claims of
a container, or of a job, with another /tmp. And whoever may remove a user's files, that
is he and root, can remove claims; systemd-tmpfiles does not.

Source: fcntl_locking(2); tmpfiles.d(5) on BSD file locks.
"""

import errno
import fcntl
import os
import resource
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote, unquote

from gpumap.detect.processes import local_time, tenant_of, user_name
from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Node, Tenant
from gpumap.mapping.identity import claimed_as

__all__ = [
    "CLAIMS",
    "HELD",
    "Claims",
    "claims_folder",
    "held_before",
    "holder_of",
    "keep_through_exec",
    "with_holders",
]

CLAIMS = "GPUMAP_CLAIMS"
HELD = "GPUMAP_HELD"
"""What `gpumap run` leaves to the script: its process, and who holds its claims."""

_PREFIX, _SUFFIX = "gpumap-claims-", ".lock"
# Seconds for others who claim the same name at the same moment: a look takes them less
# than a millisecond.
_PATIENCE, _PAUSE = 1.0, 0.005
# struct flock: type, whence, start, length, process. Source: fcntl(2).
_FLOCK = "hhqqi4x"
# A script keeps a claim's descriptors through exec: where it opens none of its own.
_HIGH = 1000
# What keeps this process from looking; other errors are the file's.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def claims_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that all users share: GPUMAP_CLAIMS, or else /tmp.

    TMPDIR is not asked: it differs among users and jobs.

    Raises:
        DeviceError: GPUMAP_CLAIMS is no absolute path.
    """
    folder = Path(environ.get(CLAIMS) or "/tmp")  # noqa: S108 - all users have it
    if not folder.is_absolute():
        raise DeviceError(
            f"{CLAIMS}={str(folder)!r} is another folder for each job.",
            "It is relative to the folder that a job is started in.",
            f"Set {CLAIMS} to an absolute path, or unset it for /tmp.",
        )
    return folder


class Claims:
    """The claims of one session, held until they are released or the process ends.

    A forked child holds none of its parent's claims, and cannot end them.
    """

    def __init__(self, folder: Path) -> None:
        """Claim in this folder, which all users share."""
        self._folder = folder

    def __enter__(self) -> Self:
        """Return the claims, which end with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release all."""
        self.release_all()

    def take(self, name: str) -> bool:
        """Claim a device by its UUID or PCI bus ID; tell whether it is claimed here.

        False if another process has it, of whichever user, or other Claims of this one.

        Raises:
            DeviceError: The folder cannot be used.
        """
        with _alone(self._folder):
            if any(x.claims is self and x.name == name for x in _held.values()):
                return True
            return not _locks(self._folder, name) and self._take(name)

    def release(self, name: str) -> None:
        """Release a device, if it is claimed here."""
        with _one_thread:
            for key, held in list(_held.items()):
                if held.claims is self and held.name == name:
                    _let_go(key)

    def release_all(self) -> None:
        """Release every device that is claimed here."""
        with _one_thread:
            for key, held in list(_held.items()):
                if held.claims is self:
                    _let_go(key)

    def _take(self, name: str) -> bool:
        """Lock the own file, then look at those of others.

        Never do two hold a name. In one folder the kernel sees to it. In two folders,
        each locks first and then looks, at folders and at locks: the one that locks
        last sees the lock of the other.

        Nor do two give way to each other: of those who see each other, the folder that
        sorts first stays and waits for the others to give way.
        """
        with ExitStack() as stack:
            own = self._lock(name)
            if own is None:
                return False
            path, key = own
            stack.callback(_let_go, key)
            end = time.monotonic() + _PATIENCE
            while others := [x for x in _locks(self._folder, name) if x.path != path]:
                if min(x.path for x in others) < path or time.monotonic() > end:
                    return False
                time.sleep(_PAUSE)
            stack.pop_all()
            return True

    def _lock(self, name: str) -> tuple[Path, "_Key"] | None:
        """Lock the own file, and say which it is; None if another process has."""
        while True:
            folder = _own_folder(self._folder)
            path = folder / _file(name)
            with ExitStack() as stack:
                room = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                room = _out_of_reach(room)
                stack.callback(os.close, room)
                # The umask may hide both from the other users.
                os.fchmod(room, 0o755)
                # What is not locked may be removed by systemd-tmpfiles after some days.
                with suppress(OSError):
                    fcntl.flock(room, fcntl.LOCK_SH | fcntl.LOCK_NB)
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                file = _out_of_reach(os.open(path.name, flags, 0o644, dir_fd=room))
                stack.callback(os.close, file)
                os.fchmod(file, 0o644)
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return None
                key = _key(os.fstat(file))
                # It may have been removed before it was locked.
                if not _is_at(path, key):
                    continue
                os.utime(file)
                stack.pop_all()
                _held[key] = _Held(self, name, (file, room))
                return path, key


def _out_of_reach(descriptor: int) -> int:
    """Return a descriptor's copy with a number that no shell script opens as its own.

    Closing a low one after it was locked would end the lock.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with suppress(OSError, OverflowError):  # there is no room up there
        copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, min(_HIGH, most // 2))
        os.close(descriptor)
        return copy
    return descriptor


def holder_of(folder: Path, name: str) -> Tenant | None:
    """Return the process that has claimed a device; None if none has.

    Its pid and command are None if it is in another PID namespace.

    Raises:
        DeviceError: The folder cannot be used.
    """
    with _alone(folder):
        return next((_tenant(lock) for lock in _locks(folder, name)), None)


def with_holders(node: Node, environ: Mapping[str, str]) -> Node:
    """Return the node with the holders of claims among its devices' tenants.

    Nothing is claimed by looking. Nobody can hold a device that has no name.

    Raises:
        DeviceError: The folder cannot be used.
    """
    folder = claims_folder(environ)
    devices = tuple(_with_holder(device, node, folder) for device in node.devices)
    return node.model_copy(update={"devices": devices})


def keep_through_exec(holder: int) -> dict[str, str]:
    """Keep what this process has claimed when it becomes another program by exec.

    holder is the process that has claimed this rank's device, this one or another of
    its node. Return the variables by which the program knows.

    Source: execve(2) and fcntl_locking(2): locks stay as long as their file is open.
    """
    for held in _held.values():
        for descriptor in held.descriptors:
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - it has no name
    return {HELD: f"{os.getpid()}:{holder}"}


def held_before(environ: Mapping[str, str]) -> int | None:
    """Return the process that claims for this one since before exec, if one does.

    A child of that program has no part in it.
    """
    own, _, holder = environ.get(HELD, "").partition(":")
    mine = own == str(os.getpid()) and holder.isdecimal()
    return int(holder) if mine else None


def _recall() -> None:
    """Take note of files that were locked before exec, so that none is closed."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own is closed by now
            path = descriptor.readlink()
            if path.parent.name.startswith(_PREFIX) and path.suffix == _SUFFIX:
                name = unquote(path.name.removesuffix(_SUFFIX))
                _held.setdefault(_key(descriptor.stat()), _Held(None, name, ()))


def _with_holder(device: Device, node: Node, folder: Path) -> Device:
    name = claimed_as(device, node)
    holder = None if name is None else holder_of(folder, name)
    if holder is None:
        return device
    return device.model_copy(update={"tenants": (*(device.tenants or ()), holder)})


_Key = tuple[int, int]
"""The device and the inode of a file."""


class _Held(NamedTuple):
    """A claim of this process, and its descriptors: of the file and of its folder.

    One from before exec belongs to no Claims, and is not closed.
    """

    claims: Claims | None
    name: str
    descriptors: tuple[int, ...]


class _Lock(NamedTuple):
    """A lock, as it is seen; pid is 0 if the process is not visible from here."""

    path: Path
    pid: int
    owner: int
    since: float


# A process that closes any descriptor of a file loses its lock, so that all Claims must
# know what others hold.
_held: dict[_Key, _Held] = {}
_one_thread = threading.Lock()


def _forget() -> None:
    """Hold nothing, in a forked child: the kernel has left the locks to its parent."""
    global _one_thread  # noqa: PLW0603 - a thread of the parent may have it for ever
    _one_thread = threading.Lock()
    for key in list(_held):
        _let_go(key)


os.register_at_fork(after_in_child=_forget)


def _let_go(key: _Key) -> None:
    """Close a claim's descriptors, which ends its lock."""
    for descriptor in _held.pop(key).descriptors:
        os.close(descriptor)


@contextmanager
def _alone(folder: Path) -> Generator[None, None, None]:
    """Let one thread use the folder; what the system refuses is a DeviceError."""
    try:
        with _one_thread:
            yield
    except OSError as error:
        raise DeviceError(
            f"devices cannot be claimed in {folder}.",
            f"The system says: {error}.",
            f"Set {CLAIMS}, for all jobs alike, to a folder of this machine in which "
            "every user may make folders (chmod 1777), or write claim=False and "
            'another strategy than "idle".',
        ) from None


def _locks(folder: Path, name: str) -> list[_Lock]:
    """Return all locks on a name, of this process too, sorted by their path."""
    found = (
        _lock_on(path / _file(name), info.st_uid)
        for path, info in sorted(_folders(folder).items())
    )
    return [lock for lock in found if lock is not None]


def _file(name: str) -> str:
    return quote(name, safe="") + _SUFFIX


def _folders(folder: Path) -> dict[Path, os.stat_result]:
    """Return the users' folders; each is believed to be its owner's."""
    found: dict[Path, os.stat_result] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        found[Path(entry.path)] = info
    return found


def _own_folder(folder: Path) -> Path:
    """Return this user's folder, which is made if there is none.

    If another user has made one of that name, it gets a name that nobody can foresee.
    """
    user = os.geteuid()
    usual = folder / f"{_PREFIX}{user}"
    with suppress(FileExistsError):
        usual.mkdir(mode=0o755)
    own = [
        path
        for path, info in _folders(folder).items()
        if info.st_uid == user and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ]
    return (
        min(own) if own else Path(tempfile.mkdtemp(prefix=f"{usual.name}-", dir=folder))
    )


def _lock_on(path: Path, owner: int) -> _Lock | None:
    """Return the lock on a file; None if there is none, or the file is not owner's."""
    try:
        info = path.lstat()
        if not _is_file_of(owner, info):
            return None
        if _key(info) in _held:
            return _Lock(path, os.getpid(), owner, info.st_mtime)
        # Opening what has become a pipe, or has a lease, would wait.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        return None
    info = os.fstat(file)
    if _key(info) in _held:
        return None  # a link made just now by a hostile user: closing it ends our lock
    try:
        if not _is_file_of(owner, info):
            return None
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
    finally:
        os.close(file)
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    held = kind != fcntl.F_UNLCK
    return _Lock(path, max(pid, 0), owner, info.st_mtime) if held else None


def _is_file_of(owner: int, info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_uid == owner


def _is_at(path: Path, key: _Key) -> bool:
    try:
        return _key(path.lstat()) == key
    except FileNotFoundError:
        return False


def _key(info: os.stat_result) -> _Key:
    return info.st_dev, info.st_ino


def _tenant(lock: _Lock) -> Tenant:
    """Return who holds a lock; the user is the process's own, if it can be seen."""
    holder = tenant_of(lock.pid) if lock.pid else Tenant()
    return holder.model_copy(
        update={
            "user": holder.user or user_name(lock.owner),
            "since": local_time(lock.since),
            "claims": True,
        }
    )


if held_before(os.environ) is not None:
    _recall()

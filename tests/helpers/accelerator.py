"""The pretended accelerator of tests/accelerator, built once and kept between runs."""

import fcntl
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from helpers.programs import run_python

__all__ = ["accelerator"]

_HERE = Path(__file__).parent.parent / "accelerator"
_SOURCES = sorted((_HERE / "pretend").glob("*.cpp"))
_BUILD = """
import sys
from torch.utils.cpp_extension import load
load(
    "pretended_accelerator",
    sys.argv[2:],
    build_directory=sys.argv[1],
    extra_cflags=["-O0", "-w"],
    is_python_module=False,
)
"""


def accelerator() -> dict[str, str]:
    """Return the environment variables that give a process the pretended accelerator.

    Without a C++ compiler, ninja or Python's headers, which torch needs to build
    extensions, the test is skipped.
    """
    header = Path(sysconfig.get_path("include")) / "Python.h"
    for what, is_there in (
        ("a C++ compiler", shutil.which(os.environ.get("CXX", "c++"))),
        ("ninja", shutil.which("ninja")),
        (str(header), header.exists()),
    ):
        if not is_there:
            pytest.skip(f"the pretended accelerator needs {what}, which is not there")
    path = os.pathsep.join([str(_HERE), *os.environ.get("PYTHONPATH", "").split()])
    return {"PYTHONPATH": path, "PRETEND_LIBRARY": str(_library())}


@cache
def _library() -> Path:
    """Return the library's path; build it unless these sources were built before."""
    sources = (*_SOURCES, _HERE / "pretend/pretend.h")
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources))
    made_of = f"{sys.implementation.cache_tag}-{torch.__version__}-{digest.hexdigest()}"
    folder = _HERE / "build"
    folder.mkdir(exist_ok=True)
    library = folder / f"{made_of}.so"
    # One of several test processes builds the library. If it is killed, the kernel
    # releases this lock; torch's lock and unfinished files are in a separate folder.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder) as building:
                done = run_python(
                    "-c", _BUILD, building, *map(str, _SOURCES), timeout=600
                )
                assert done.returncode == 0, done.stdout + done.stderr
                (Path(building) / "pretended_accelerator.so").rename(library)
    return library


if __name__ == "__main__":
    print(accelerator())

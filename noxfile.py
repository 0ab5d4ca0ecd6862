"""Everything that is run on gpumap: `nox -l` lists it."""

import os
import shutil
import tempfile
from pathlib import Path

import nox

# pyenv keeps interpreters, but for the chosen one, where PATH does not lead.
PYENV = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
os.environ["PATH"] = os.pathsep.join(
    [*map(str, sorted(PYENV.glob("versions/3.1[123].*/bin"))), os.environ["PATH"]]
)

nox.needs_version = ">=2026.10"  # for sessions that run side by side, by -j
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "types", "mapping", "tests", "launchers"]
nox.options.error_on_missing_interpreters = False
# An interpreter that is not there is said and left out, in CI too.
nox.options.reuse_existing_virtualenvs = True

# Which Debian package brings a program that tests/launchers and tests/clients start.
PROGRAMS = {
    "ip": "iproute2",
    "mpiexec.hydra": "mpich",
    "mpirun.openmpi": "openmpi-bin",
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
}
# What opens the pages, if no other Chromium is there.
BROWSER = {"chromium-headless-shell": "chromium-headless-shell"}
# Most tests wait for processes: more of them at once than there are CPUs. A test's file
# stays together under the launchers, whose daemons are started once for each process.
AT_ONCE = (
    "-n",
    str(2 * (os.cpu_count() or 1)),
    "--dist=worksteal",
    "--durations=10",
)
PROJECT = nox.project.load_toml("pyproject.toml")


def install(session: nox.Session, *groups: str, torch: bool = True) -> None:
    """Install gpumap and dependency groups; torch as pinned, or not at all."""
    wanted = nox.project.dependency_groups(PROJECT, *groups)
    if torch:
        session.install("-c", "constraints.txt", *wanted, "-e", ".")
        return
    runtime = [
        name
        for name in PROJECT["project"]["dependencies"]
        if not name.startswith("torch")
    ]
    session.install(*wanted, *runtime)
    session.install("--no-deps", "-e", ".")


def install_programs(session: nox.Session, programs: dict[str, str]) -> None:
    """Install programs that are missing, where apt may do so."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        session.env["DEBIAN_FRONTEND"] = "noninteractive"
        session.run("apt-get", "update", "-qq", external=True)
        session.run(
            *("apt-get", "install", "-y", "-qq", "--no-install-recommends"),
            *sorted({programs[name] for name in missing}),
            external=True,
        )


@nox.session
def demo(session: nox.Session) -> None:
    """Train a small net with two processes, on GPUs or in rehearsal."""
    install(session, "demo")
    session.run("python", "examples/demo.py", *session.posargs)


def run_tests(session: nox.Session, *run: str) -> None:
    """Run all tests but those that have sessions of their own, or those asked for."""
    # Before a test's time counts. Without a compiler its tests are skipped, and say so.
    build = ("python", "-m", "helpers.accelerator")
    session.run(*build, env={"PYTHONPATH": "tests"}, success_codes=[0, 1])
    if session.posargs:
        session.run(*run, *AT_ONCE, *session.posargs)
        return
    others = ("--ignore=tests/launchers", "--ignore=tests/clients")
    session.run(*run, *AT_ONCE, "-m", "not alone", "tests", "src", *others)
    session.run(*run, "-m", "alone", "tests/runtime")
    # A page's blocks follow each other.
    session.run(*run, "-p", "no:randomly", "docs", "README.md")


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests, with torch on the CPU."""
    install(session, "tests", "demo")
    run_tests(session, "pytest")


@nox.session
def coverage(session: nox.Session) -> None:
    """Run all tests; measure what they reach, in all processes they start."""
    install(session, "tests", "demo", "coverage")
    session.run("coverage", "erase")
    run_tests(session, "coverage", "run", "-p", "-m", "pytest")
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session(python=["3.11", "3.12", "3.13"], allow_parallel=True)
def mapping(session: nox.Session) -> None:
    """Run the tests of the pure part, without torch, on every Python there is."""
    install(session, "mapping", torch=False)
    # SIGTERM's answer imports no torch, and differs from Python to Python.
    where = ("tests/mapping", "tests/runtime/test_sigterm.py")
    session.run("pytest", *AT_ONCE, *where, *session.posargs)


@nox.session
def launchers(session: nox.Session) -> None:
    """Run jobs under the real launchers, which apt installs where it may."""
    install_programs(session, PROGRAMS)
    install(session, "tests")
    options = session.posargs or ["tests/launchers"]
    session.run("pytest", *AT_ONCE, "--dist=loadfile", *options)


@nox.session
def clients(session: nox.Session) -> None:
    """Run other people's libraries under `gpumap run` and the real launchers."""
    install_programs(session, PROGRAMS)
    install(session, "clients")
    # A job computes on two or four CPUs at once: more jobs than three only wait.
    where = session.posargs or ["tests/clients"]
    session.run("pytest", "-n", "3", "--dist=worksteal", "--durations=10", *where)


@nox.session(venv_params=["--system-site-packages"])
def gpu(session: nox.Session) -> None:
    """Run what needs an NVIDIA GPU, with the CUDA build of torch that is installed."""
    session.install(*nox.project.dependency_groups(PROJECT, "tests"))
    session.install("-e", ".[nvml]")
    session.run("pytest", "-rs", "tests/gpu", *session.posargs)
    session.run("gpumap", "show")


@nox.session(allow_parallel=True)
def package(session: nox.Session) -> None:
    """Build what is published; check it, install it alone, and run the demo with it."""
    session.install("build", "cffconvert", "mypy", "pyright", "twine")
    session.run("cffconvert", "--validate")
    folder = Path(session.create_tmp()).resolve()
    dist, empty = folder / "dist", folder / "empty"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist))
    session.run("twine", "check", "--strict", *map(str, dist.iterdir()))
    session.run("python", "-m", "venv", "--clear", str(empty))
    python = str(empty / "bin/python")
    wanted = nox.project.dependency_groups(PROJECT, "demo")
    wheels = map(str, dist.glob("*.whl"))
    install = ("-m", "pip", "install", "-q", "-c", "constraints.txt")
    session.run(python, *install, *wheels, *wanted, external=True)
    session.run(python, "examples/demo.py", external=True)
    # Where checkers find no configuration of ours in the folders above, and no source.
    with tempfile.TemporaryDirectory() as elsewhere:
        shutil.copy("tests/package/user.py", elsewhere)
        session.chdir(elsewhere)
        session.run(python, "user.py", external=True)
        session.run("mypy", "--strict", "--python-executable", python, "user.py")
        session.run("pyright", "--pythonpath", python, "user.py")


@nox.session(allow_parallel=True)
def lint(session: nox.Session) -> None:
    """Check format, lint rules, the folders' import rules and spelling."""
    install(session, "lint", torch=False)
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports", "--no-cache")
    session.run("codespell")


@nox.session(allow_parallel=True)
def types(session: nox.Session) -> None:
    """Check types with mypy and with pyright, both strict."""
    install(session, "types", "tests", "demo", "docs")
    session.install("nox")
    session.run("mypy")
    session.run("pyright")
    # What needs mypy itself.
    session.run("pytest", "tests/runtime/test_arguments.py")


@nox.session(allow_parallel=True)
def docs(session: nox.Session) -> None:
    """Build the pages with warnings as errors, open each and follow every link."""
    if not any(map(shutil.which, ("chromium", "google-chrome"))):
        install_programs(session, BROWSER)
    install(session, "docs")
    build = ("sphinx-build", "--nitpicky", "--fail-on-warning", "--keep-going", "-q")
    session.run(*build, "docs", "build/docs")
    where = session.posargs or ["tests/docs/test_site.py"]
    session.run("pytest", *where, env={"GPUMAP_SITE": "build/docs"})


@nox.session
def bench(session: nox.Session) -> None:
    """Print the benchmarks' tables; one alone, with options, after --."""
    wanted = (".[bench]", "numpy", "ninja", "pytest", "setuptools")
    session.install("-c", "constraints.txt", "-e", *wanted)
    scripts = (
        "allreduce",
        "scale",
        "overhead",
        "exits",
        "launch",
        "run",
        "soak",
        "start",
        "balance",
    )
    for command in [session.posargs] if session.posargs else [[s] for s in scripts]:
        session.run("python", f"benchmarks/{command[0]}.py", *command[1:])


@nox.session
def mutants(session: nox.Session) -> None:
    """Change mapping/ in small ways and list the changes that no test notices."""
    install(session, "mapping", "mutants", torch=False)
    session.run("mutmut", "run")
    session.run("mutmut", "results")

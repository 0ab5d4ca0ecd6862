"""What started this process: one table of launchers, and one function over it."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpumap.errors import LaunchError
from gpumap.mapping.launch import Launch
from gpumap.mapping.visibility import mask_length

__all__ = ["LAUNCHERS", "detect_launch"]

log = logging.getLogger("gpumap")


@dataclass
class _Environment:
    """Variables, and which of them were used; "" counts as not set."""

    variables: Mapping[str, str]
    used: dict[str, str] = field(default_factory=dict[str, str])

    def text(self, name: str) -> str | None:
        value = self.variables.get(name, "").strip()
        if not value:
            return None
        self.used[name] = value
        return value

    def number(self, name: str) -> int | None:
        value = self.text(name)
        if value is None or (name == "LOCAL_RANK" and value == "-1"):
            return None
        if not (value.isascii() and value.isdecimal()):
            raise LaunchError(
                f"{name} is {value!r}, where a whole number from 0 belongs.",
                f"{name}={value!r} in the environment.",
                f"Correct {name}, or unset it.",
                (name,),
            )
        return int(value)


@dataclass(frozen=True)
class _Row:
    """One launcher.

    Attributes:
        launcher: Its name in Launch.launcher.
        source: Where its variables are documented.
        marks: The variables that are all set where it started this process.
        numbers: From which variables the numbers of Launch come; the first that is set.
        texts: The same for master_addr and job_id.
        settle: What follows from these for certain.
    """

    launcher: str
    source: str
    marks: tuple[str, ...]
    numbers: Mapping[str, tuple[str, ...]]
    texts: Mapping[str, str]
    settle: Callable[[dict[str, object]], None] = lambda _: None


def _alone(fields: dict[str, object]) -> None:
    """Fill in what a world of one process leaves no choice about."""
    if fields["world_size"] == 1:
        certain = {"local_rank": 0, "local_world_size": 1, "node_rank": 0}
        for name, value in {**certain, "num_nodes": 1}.items():
            if fields.get(name) is None:
                fields[name] = value


def _virtual_local_rank(fields: dict[str, object]) -> None:
    """Undo --virtual-local-rank: LOCAL_RANK is 0 in every process, one device each."""
    if fields["devices_bound"] and fields["local_rank"] == 0:
        on_one_node = fields["local_world_size"] == fields["world_size"]
        fields["local_rank"] = fields["rank"] if on_one_node else None


_RANK = {"rank": ("RANK",), "world_size": ("WORLD_SIZE",)}
_LOCAL = {"local_rank": ("LOCAL_RANK",), "local_world_size": ("LOCAL_WORLD_SIZE",)}
_PORT = {"master_port": ("MASTER_PORT",)}

LAUNCHERS = (
    _Row(
        "torchrun",
        "torch.distributed.run, section Environment Variables",
        ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
        {
            **_RANK,
            **_LOCAL,
            **_PORT,
            "node_rank": ("GROUP_RANK",),
            "num_nodes": ("GROUP_WORLD_SIZE",),
        },
        {"master_addr": "MASTER_ADDR", "job_id": "TORCHELASTIC_RUN_ID"},
        _virtual_local_rank,
    ),
    _Row(
        "torch variables",
        "torch.distributed.init_process_group, section Environment variable "
        "initialization; LOCAL_* and NODE_RANK by torchrun's and Azure ML's use",
        ("RANK", "WORLD_SIZE"),
        {**_RANK, **_LOCAL, **_PORT, "node_rank": ("NODE_RANK", "GROUP_RANK")},
        {"master_addr": "MASTER_ADDR"},
        _alone,
    ),
)


def detect_launch(environ: Mapping[str, str] | None = None) -> Launch:
    """Return what started this process, from its environment alone.

    The first row of LAUNCHERS whose variables are set tells everything; where none is,
    this is a single process. GPUMAP_JOB_ID, when set, is the job's name.

    Raises:
        LaunchError: Variables contradict each other, or half of a family is missing;
            all that are missing are named at once.

    >>> detect_launch({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}).local_rank
    1
    >>> detect_launch({}).launcher
    'single process'
    """
    env = _Environment(os.environ if environ is None else environ)
    for row in LAUNCHERS:
        if all(env.text(mark) is not None for mark in row.marks):
            launch = _read(row, env)
            log.debug("launch: %s, from %s", row.launcher, env.used)
            return launch
    _refuse_half_a_family(env)
    return Launch(
        launcher="single process",
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        num_nodes=1,
        job_id=env.text("GPUMAP_JOB_ID"),
    )


def _read(row: _Row, env: _Environment) -> Launch:
    fields: dict[str, object] = {}
    for name, variables in row.numbers.items():
        values = (env.number(variable) for variable in variables)
        fields[name] = next((v for v in values if v is not None), None)
    fields |= {name: env.text(variable) for name, variable in row.texts.items()}
    fields["job_id"] = env.text("GPUMAP_JOB_ID") or fields.get("job_id")
    fields["devices_bound"] = _devices_bound(fields, env)
    row.settle(fields)
    try:
        return Launch.model_validate({"launcher": row.launcher, **fields})
    except LaunchError as error:
        seen = ", ".join(f"{name}={value!r}" for name, value in env.used.items())
        raise LaunchError(
            error.happened,
            f"{row.launcher} says: {seen}.",
            f"{error.hint} Correct what sets them, or start with torchrun.",
            tuple(env.used),
        ) from None


def _devices_bound(fields: Mapping[str, object], env: _Environment) -> bool:
    """Tell whether the mask leaves one device to each of several local ranks."""
    local_rank, size = fields.get("local_rank"), fields.get("local_world_size")
    several = (isinstance(size, int) and size > 1) or (
        isinstance(local_rank, int) and local_rank > 0
    )
    return several and mask_length(env.text("CUDA_VISIBLE_DEVICES")) == 1


def _refuse_half_a_family(env: _Environment) -> None:
    family = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    present = [
        name
        for name in family
        if env.text(name) is not None and env.variables[name].strip() != "-1"
    ]
    if not present or (present == ["WORLD_SIZE"] and env.number("WORLD_SIZE") == 1):
        return
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = tuple(name for name in needed if env.text(name) is None)
    raise LaunchError(
        f"{' and '.join(present)} {'is' if len(present) == 1 else 'are'} set, and "
        f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not.",
        ", ".join(f"{name}={env.variables[name]!r}" for name in present) + ".",
        f"Set {', '.join(missing)} too; or, for a single process, unset "
        f"{', '.join(present)}. torchrun sets them all.",
        missing,
    )

"""How fast all-reduce runs on the devices that each strategy chooses.

`python benchmarks/allreduce.py` starts its own ranks; `torchrun --nproc-per-node 4
benchmarks/allreduce.py`, srun and mpirun start them too. The options -b, -e, -f, -n, -w
and -d and the columns are those of nccl-tests. The same loop without gpumap is measured
in turn with it. README.md beside this says how to read it.

With --machine nothing is measured: it prints a prediction for a machine by its links.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import torch
from parts.allreduce_table import in_words
from parts.contest import compare
from parts.figures import Outcome
from parts.options import Options, Type
from parts.prediction import predicted
from parts.progress import progress

import gpumap
from gpumap.detect.rehearsal import REHEARSAL
from gpumap.errors import GpumapError, SessionError
from gpumap.mapping.device_refs import refs_of
from gpumap.mapping.policy import GPUS

_STRATEGIES = "local_rank,modulo,scored,linked"
_CPU_RANKS = 2
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 where a sum was wrong, 2 where none was formed."""
    asked = _parser().parse_args(arguments)
    try:
        options = _options(asked)
        if asked.machine:
            print(predicted(asked.machine, asked.nproc, options))
            return 0
        draw = _drawing() if asked.plot else None
        outcome = _outcome(asked, options)
        if gpumap.detect_launch().rank != 0:
            return 0  # rank 0 speaks for all: a launcher ends it at another's error
        print(in_words(outcome), flush=True)
        if asked.json:
            asked.json.write_text(outcome.model_dump_json(indent=2) + "\n")
        if draw is not None:
            draw(outcome, asked.plot)
    except (GpumapError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if outcome.wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Time all-reduce on the devices that each strategy chooses."
    )
    add = parser.add_argument
    add("-b", "--minbytes", type=_bytes, default="4K")
    add("-e", "--maxbytes", type=_bytes, help="256M by default, 1G on accelerators")
    add("-f", "--stepfactor", type=int, default=2)
    add("-n", "--iters", type=int, default=20, help="of each round, 20 by default")
    add("-w", "--warmup_iters", type=int, default=5)
    add("-d", "--datatype", choices=get_args(Type), default="float")
    add("--rounds", type=int, default=5)
    add("--nproc", type=int, metavar="N", help="ranks to start; one for each device")
    add("--strategies", default=_STRATEGIES, metavar="NAMES")
    add("--gpus", metavar="REFS", help="the pool, 2,3 for instance")
    add("--scores", choices=("memory", "multiprocessors"), default="memory")
    add("--backend")
    add("--machine", metavar="NAME", help="predict; a machine's name, or a JSON file")
    add("--json", type=Path, metavar="FILE")
    add("--plot", type=Path, metavar="FILE.png")
    return parser


def _drawing() -> Callable[[Outcome, Path], None]:
    """Return what draws, before anything is measured in vain."""
    try:
        from parts.picture import draw  # noqa: PLC0415 - the extra may be missing
    except ImportError:
        raise SessionError(
            "--plot needs matplotlib, and it is not installed.",
            "",
            "pip install gpumap-torch[bench]",
        ) from None
    return draw


def _options(asked: argparse.Namespace) -> Options:
    gpus = asked.gpus or os.environ.get(GPUS)
    return Options(
        minbytes=asked.minbytes,
        maxbytes=asked.maxbytes,
        factor=asked.stepfactor,
        iterations=asked.iters,
        warm_ups=asked.warmup_iters,
        rounds=asked.rounds,
        type=asked.datatype,
        strategies=tuple(asked.strategies.split(",")),
        gpus=tuple(refs_of(gpus)) if gpus else None,
        scores=asked.scores,
        backend=asked.backend,
    )


def _outcome(asked: argparse.Namespace, options: Options) -> Outcome:
    """Measure as a launcher's rank, or start ranks of our own."""
    launch = gpumap.detect_launch()
    if launch.launcher == "single process":
        nprocs = _ranks(asked.nproc, options)
        return gpumap.spawn(compare, options, progress, nprocs=nprocs)[0]
    return compare(options, progress)


def _ranks(asked: int | None, options: Options) -> int | None:
    """Return how many ranks to start: as many as devices, or two where none is."""
    if asked or options.gpus:
        return asked or len(options.gpus or ())
    here = torch.accelerator.is_available() and not os.environ.get(REHEARSAL)
    return None if here else _CPU_RANKS


def _bytes(text: str) -> int:
    """Return a size as nccl-tests takes it: 4K is 4096 bytes."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        return int(number) * _UNITS[unit]
    except (KeyError, ValueError):
        message = f"{text!r} is not a size like 4096, 4K or 256M"
        raise argparse.ArgumentTypeError(message) from None


if __name__ == "__main__":
    sys.exit(main())

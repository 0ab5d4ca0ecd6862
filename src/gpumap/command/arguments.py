"""The options of each command."""

import argparse
from collections.abc import Callable, Mapping
from typing import get_args

from gpumap.command.helps import HELPS, SHELLS
from gpumap.command.parsing import File, Machine, Parser, Refused, Script
from gpumap.command.values import brief_strategy, count, refs, scores, seconds
from gpumap.mapping.policy import Bind, StrategyName

__all__ = ["parsers"]

Add = Callable[..., argparse.Action]

_STRATEGIES: tuple[str, ...] = get_args(StrategyName)
_NPROC = ("-n", "-np", "--nproc", "--nprocs", "--nproc-per-node", "--nproc_per_node")


def parsers() -> tuple[Parser, Mapping[str, Parser]]:
    """Return the parser of all of gpumap, and that of each command by its name."""
    whole = Parser("gpumap", add_help=False)
    commands = whole.add_subparsers(parser_class=Parser)
    each = {
        name: commands.add_parser(
            name,
            prog=f"gpumap {name}",
            usage=f"gpumap {name} {texts.usage}",
            help=texts.summary,
            description=texts.first,
            epilog=texts.last,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
            allow_abbrev=False,
        )
        for name, texts in HELPS.items()
    }
    for name, fill in _FILL.items():
        fill(each[name])
        each[name].add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    return whole, each


def _show(parser: Parser) -> None:
    add = parser.add_argument_group("options").add_argument
    _strategy(add)
    _devices(add)
    add("--nproc", type=count, metavar="N", help="as if N processes were started here")
    add("--nodes", type=count, metavar="N", help="as if started on N such nodes")
    add(
        "--backend",
        default="nccl",
        metavar="NAME",
        help="gloo, where ranks may share a device",
    )
    _bind(add, "show the CPUs of each rank, too: numa or exclusive")
    add("--oversubscribe", action="store_true", help="let ranks share a device")
    what = "a machine's name, or a JSON file"
    add("--machine", action=Machine, metavar="NAME", help=what)
    add("--json", action="store_true", help="print all of it as JSON")
    what = "write the node as JSON, for a rehearsal"
    add("--save", action=File, metavar="FILE", help=what)
    what = "draw devices, links and ranks: FILE.png or .svg"
    add("--plot", action=File, metavar="FILE", help=what)


def _run(parser: Parser) -> None:
    group = parser.add_argument_group("options")
    add = group.add_argument
    script = add(
        "script",
        nargs=argparse.PARSER,
        action=Script,
        metavar="train.py",
        help="the script; from here on all words are its own",
    )
    script.required = False  # main() asks for it in its own words
    one_of = group.add_mutually_exclusive_group()
    what = "run a module, as python -m does"
    one_of.add_argument("-m", dest="module", action="store_true", help=what)
    what = "run a program, without Python before it"
    one_of.add_argument("--no-python", action="store_true", help=what)
    _strategy(add)
    _devices(add)
    _bind(add, "stay on the CPUs beside the device: numa or exclusive")
    what = "lock the device as long as the script runs"
    add("--claim", action="store_true", default=None, help=what)
    _meeting(add)
    add(
        *_NPROC,
        action=Refused,
        nargs="?",
        default=argparse.SUPPRESS,
        const="run starts no processes: write torchrun --nproc-per-node N -m "
        "gpumap run train.py, or start them from Python with gpumap.spawn(…, nprocs=N)",
        help=argparse.SUPPRESS,
    )
    parser.set_defaults(arguments=[])


def _env(parser: Parser) -> None:
    group = parser.add_argument_group("options")
    _strategy(group.add_argument, brief_strategy)
    _devices(group.add_argument)
    _meeting(group.add_argument)
    one_of = group.add_mutually_exclusive_group()
    one_of.add_argument("--json", action="store_true", help="print one JSON object")
    what = "print a table, for people"
    one_of.add_argument("--table", action="store_true", help=what)
    parser.set_defaults(bind=None, claim=None)


def _completion(parser: Parser) -> None:
    group = parser.add_argument_group("options")
    group.add_argument("shell", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


_FILL = {"show": _show, "run": _run, "env": _env, "completion": _completion}


def _strategy(add: Add, kind: Callable[[str], str] = str) -> None:
    names = [name for name in _STRATEGIES if kind is str or name != "idle"]
    what = ", ".join(names)
    add("--strategy", type=kind, choices=names, metavar="NAME", help=what)


def _devices(add: Add) -> None:
    add("--gpus", type=refs, metavar="REFS", help="2,3 or GPU-5c3a,0000:3b:00.0")
    what = "memory, multiprocessors, or 0=100,1=90"
    add("--scores", type=scores, metavar="SCORES", help=what)


def _bind(add: Add, what: str) -> None:
    add("--bind", choices=get_args(Bind), metavar="HOW", help=what)


def _meeting(add: Add) -> None:
    """Add what a command takes in which all ranks meet."""
    what = "seconds in which all ranks must have met (300)"
    add("--start-timeout", type=seconds, default=300.0, metavar="S", help=what)
    add("--oversubscribe", action="store_true", help="let ranks share a device")
    what = (
        "show each rank its own device alone, as cuda:0. The price: NCCL may not find "
        "NVLink, nor CUDA IPC reach a device, that a process does not see"
    )
    add("--own", action="store_true", help=what)
    what = "start without comparing notes with the other ranks"
    add("--no-roll-call", dest="roll_call", action="store_false", help=what)

"""`python -m gpumap`: show the launch, the node and the placement; change nothing."""

import argparse
import os
import sys
from collections.abc import Sequence

from gpumap.detect.hardware import detect_node
from gpumap.detect.launchers import detect_launch
from gpumap.detect.rehearsal import REHEARSAL, rehearsed_node
from gpumap.errors import GpumapError
from gpumap.mapping.choice import Choice
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import neighbours, place, refuse_conflicts
from gpumap.mapping.plan import as_table
from gpumap.mapping.refs import DeviceRef
from gpumap.mapping.strategies import STRATEGIES

# Scores are more than a command line can say.
_STRATEGIES = [name for name in STRATEGIES if name != "scored"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what gpumap sees here; return 1 where no session could start."""
    parser = argparse.ArgumentParser(
        "python -m gpumap", description="Show which GPU this process would train on."
    )
    parser.add_argument("--strategy", choices=_STRATEGIES)
    parser.add_argument(
        "--gpus", type=_refs, help="for instance 2,3 or GPU-5c3a,GPU-77"
    )
    parser.add_argument(
        "--plan", action="store_true", help="show all ranks of this node"
    )
    asked = parser.parse_args(arguments)
    try:
        launch = detect_launch()
        print(_launch(launch))
        wanted = os.environ.get(REHEARSAL)
        node = rehearsed_node(wanted, launch, os.environ) if wanted else detect_node()
        print(_node(node, wanted))
        shown = neighbours(launch) if asked.plan else [launch]
        placements = [place(me, node, asked.strategy, gpus=asked.gpus) for me in shown]
        choice = Choice.of(asked.strategy, asked.gpus, None, oversubscribe=False)
        refuse_conflicts(placements[0], node, choice, can_share=False)
    except GpumapError as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    print(as_table(placements, lambda _: node.hostname), flush=True)
    return 0


def _refs(text: str) -> list[DeviceRef]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        message = f"{text!r} has an empty entry; write --gpus 2,3"
        raise argparse.ArgumentTypeError(message)
    return [int(item) if item.isdecimal() else item for item in items]


def _launch(launch: Launch) -> str:
    def of(place: int | None, count: int | None) -> str:
        return f"{'?' if place is None else place} of {'?' if count is None else count}"

    store = f"{launch.master_addr or '?'}:{launch.master_port or '?'}"
    return (
        f"launch: {launch.launcher}, rank {of(launch.rank, launch.world_size)}, "
        f"local rank {of(launch.local_rank, launch.local_world_size)}, "
        f"node {of(launch.node_rank, launch.num_nodes)}, store {store}"
        + (", each task has its own devices" if launch.devices_bound else "")
    )


def _node(node: Node, rehearsal: str | None) -> str:
    pretended = f" (rehearsal of {rehearsal})" if rehearsal else ""
    return f"node: {node.hostname}{pretended}. {node.visible}"


if __name__ == "__main__":
    sys.exit(main())

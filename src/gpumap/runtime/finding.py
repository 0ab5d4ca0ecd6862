"""Only the device: this process's placement, for a script without a session."""

import logging
import multiprocessing
import sys
from contextlib import ExitStack
from dataclasses import replace

from gpumap.detect.launchers import detect_launch
from gpumap.detect.without_torch import node_without_torch
from gpumap.errors import PlacementError
from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Placement
from gpumap.mapping.policy import Gpus, Policy, Scores, Strategy
from gpumap.runtime.deciding import decision_for
from gpumap.runtime.meeting import NoMeeting
from gpumap.runtime.placed import Decided, place_rank, usual_backend
from gpumap.runtime.session_options import SessionOptions

__all__ = ["find_placement"]

log = logging.getLogger(__name__)


def find_placement(
    strategy: Strategy | None = None,
    *,
    gpus: Gpus | None = None,
    scores: Scores | None = None,
    device: str = "auto",
    backend: str | None = None,
    oversubscribe: bool = False,
    launch: Launch | None = None,
) -> Placement:
    """Return this process's placement, for a script that wants only its device.

    Launch and node are found as a session finds them, under GPUMAP_REHEARSAL and
    GPUMAP_GPUS too, and what one rank can see to be wrong is refused. The result's
    device.torch is the torch.device. Nothing is said to other ranks: what only all of
    them can see, a session finds, or `gpumap run`. Nothing is claimed, and torch's
    current device stays as it is.

    What one process of a node decides for all is refused where there are several: the
    strategies "idle" and "closest", and functions. torch is asked for the devices if it
    is imported already, or if NVML does not know how torch would count them.

    Args:
        strategy: As in a session, and so are gpus, scores, device and oversubscribe.
        gpus: The devices that this job may use, in order.
        scores: For the strategy "scored".
        device: "auto", "cpu", or a torch device type that must be there.
        backend: That of the script's process group, which may let ranks share a device;
            None for the device's own, which is NCCL for CUDA.
        oversubscribe: Whether two ranks may share a device.
        launch: This process's place, if no launcher's variables say it.

    Raises:
        LaunchError: The launcher's variables are missing or contradict each other.
        DeviceError: A device is asked for that is not there.
        PlacementError: There is no device for this rank, two local ranks share one, or
            the processes of the node must decide together.
        SessionError: An argument has the wrong type, or a process group contradicts the
            launcher.

    >>> find_placement(device="cpu").device.torch
    device(type='cpu')
    """
    options = SessionOptions(
        strategy=strategy,
        gpus=gpus,
        scores=scores,
        device=device,
        backend=backend,
        oversubscribe=oversubscribe,
        claim=False,
        launch=launch,
    )
    options.check_types()
    launch = _launch(options)
    options = replace(options, node=_certain_node(options, launch))
    placed = place_rank(
        options,
        launch,
        lambda policy, node, launch: _alone(options, policy, node, launch),
        usual_backend,
    )
    if placed.rehearsal and launch.rank == 0:
        log.warning(
            "rehearsal of %s: no GPU is used, device.torch is the CPU", placed.rehearsal
        )
    return placed.placement


def _launch(options: SessionOptions) -> Launch:
    if "torch.distributed" in sys.modules:  # without it there is no process group
        import torch.distributed as dist  # noqa: PLC0415 - it is loaded

        if dist.is_available() and dist.is_initialized():
            from gpumap.runtime.local_setup import launch_of_group  # noqa: PLC0415

            return launch_of_group(options)
    launch = options.launch or detect_launch(options.environ)
    if options.launch is None and multiprocessing.parent_process() is not None:
        # Only such a process pays for importing torch.
        from gpumap.runtime.local_setup import refuse_without_a_rank  # noqa: PLC0415

        refuse_without_a_rank(launch, options.environ)
    return launch


def _certain_node(options: SessionOptions, launch: Launch) -> Node | None:
    """Return the node, if everything that is asked of it is known without torch."""
    strategy, scores = options.strategy, options.scores
    reads = callable(strategy) or callable(scores) or scores == "multiprocessors"
    if options.device != "auto" or reads or "torch" in sys.modules:
        return None
    return node_without_torch(launch, options.environ)


def _alone(
    options: SessionOptions, policy: Policy, node: Node, launch: Launch
) -> Decided:
    meeting = NoMeeting(lambda rank: _unmet(rank, policy.name))
    with ExitStack() as nothing:
        return decision_for(options, meeting, nothing)(policy, node, launch)


def _unmet(rank: int, strategy: str) -> PlacementError:
    """Return the error of a rank that would have to decide with others."""
    return PlacementError(
        f'rank {rank} alone cannot know which device strategy "{strategy}" gives it.',
        "One process of the node decides that for all, and find_placement() talks to "
        "no other.",
        "Open a gpumap.session(…), or start the script with `gpumap run`, where they "
        "do; or name the devices with gpus=[…].",
        (rank,),
    )

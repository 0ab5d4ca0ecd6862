"""ddp_session: a session around one model, wrapped in DistributedDataParallel."""

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Unpack

from gpumap.mapping.devices import Node
from gpumap.mapping.launch import Launch
from gpumap.mapping.policy import Bind, Gpus, Scores, Strategy
from gpumap.runtime import wrapping
from gpumap.runtime.arguments import refuse_unknown_options
from gpumap.runtime.block import Block
from gpumap.runtime.ddp_options import DDPOptions
from gpumap.runtime.life import life_of
from gpumap.runtime.session_options import SessionOptions

if TYPE_CHECKING:
    from gpumap.mapping.balance import Balance

__all__ = ["ddp_session"]

_SESSION_OPTIONS = tuple(f.name for f in fields(SessionOptions) if f.name != "environ")


def ddp_session(
    model: nn.Module,
    *,
    strategy: Strategy | None = None,
    gpus: Gpus | None = None,
    scores: Scores | None = None,
    device: str = "auto",
    backend: str | None = None,
    timeout: float | timedelta | None = None,
    start_timeout: float | timedelta = 300.0,
    end_timeout: float | timedelta = 86_400.0,
    oversubscribe: bool = False,
    claim: bool | None = None,
    bind: Bind | None = None,
    launch: Launch | None = None,
    node: Node | None = None,
    balance: "Balance | None" = None,
    **ddp: Unpack[DDPOptions],
) -> Block[DistributedDataParallel]:
    """Open a session around a model and yield it as DistributedDataParallel.

    The model is moved to this rank's device and wrapped, also in a world of one. After
    the block the process group is gone and `m.module` is the trained model.

    Args:
        model: The module to train, not wrapped yet.
        strategy: "local_rank" (the default), "explicit" (the default with gpus),
            "modulo", "scored" (the default with scores), "linked", "idle" (devices that
            nothing runs on, most free memory first), "closest" (the device beside the
            CPUs that the launcher bound this process to), or a function
            (launch, node) -> device.
        gpus: The devices this job may use, in order: indices as torch counts them after
            masking, UUIDs or PCI bus IDs; or a mapping from host name or node_rank to
            such a list. By default, all visible devices.
        scores: For "scored", the highest first: {device: number}, "memory",
            "multiprocessors", or a function of Device.
        device: "auto" for whatever accelerator there is, a torch device type that must
            be there, or "cpu".
        backend: The process group's backend; None means the device's default.
        timeout: Seconds that a collective may take; None means torch's default. torch
            measures them by the system's clock: if that is set back, collectives wait
            for that much longer.
        start_timeout: Seconds that the ranks have to come together. The environment
            variable GPUMAP_START_TIMEOUT, if set, overrides it.
        end_timeout: Seconds that a rank may stay in the block after the first rank has
            reached its end; by default a day, since rank 0 may evaluate or save there
            for hours. The wait ends sooner if a rank or its process fails.
        oversubscribe: Whether two ranks may share a device (gloo only).
        claim: Whether other jobs of gpumap's are kept from this session's devices; by
            default only with "idle". GPUMAP_CLAIMS names the folder of claims, which
            all users share; /tmp by default.
        bind: The CPUs that this process runs on, and all that it starts: "numa" for
            those of its device's NUMA node, which the ranks there share, "exclusive"
            for physical cores of its own among them. By default they stay as they are.
        launch: This process's launch, instead of detecting it.
        node: This host and its devices, instead of detecting them.
        balance: A batch that the ranks split by the speeds of their devices. Then
            current().batch_size is this rank's share, and the gradient that of the mean
            over the whole batch.
        ddp: Passed on to DistributedDataParallel.

    Raises:
        LaunchError: The launcher's variables are incomplete or contradictory; or this
            is a child of multiprocessing with an address to meet at and no rank.
        DeviceError: A device is asked for that is not there.
        PlacementError: Two ranks would share a device, or one has none.
        RollCallError: The ranks compared their claims and cannot start together.
        SessionError: The model cannot be wrapped, a session is open already, or another
            rank failed after this one had ended.
        TypeError: An option is one that neither gpumap nor DistributedDataParallel has.
    """
    refuse_unknown_options("ddp_session()", ddp, _SESSION_OPTIONS)
    options = SessionOptions(
        strategy=strategy,
        gpus=gpus,
        scores=scores,
        device=device,
        backend=backend,
        timeout=timeout,
        start_timeout=start_timeout,
        end_timeout=end_timeout,
        oversubscribe=oversubscribe,
        claim=claim,
        bind=bind,
        launch=launch,
        node=node,
        balance=balance,
    )
    return Block(
        lambda: life_of(
            options,
            lambda _, inside: inside.wrap_first(model, ddp),
            check=lambda setup: wrapping.likeness_checked(
                model, ddp, setup.device, balance
            ),
            meanwhile=wrapping.import_what_ddp_needs,
        )
    )

"""How this rank describes itself to the others, once it has its device."""

import os
from pathlib import Path

from gpumap.detect.rehearsal import names_a_file
from gpumap.mapping.devices import Device
from gpumap.mapping.identity import Identity, identity_of
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.procfs import boot_id, file_space, pid_space
from gpumap.runtime.placed import Placed
from gpumap.runtime.session_options import SessionOptions

__all__ = ["member_of"]


def member_of(placed: Placed, options: SessionOptions) -> Member:
    """Return this rank, with what others need to know of its device."""
    return Member(
        rank=placed.launch.rank,
        hostname=placed.node.hostname,
        pid=os.getpid(),
        device=str(placed.placement.device),
        identity=None if placed.pool.policy.oversubscribe else _identity(placed),
        sight=_sight(placed, options),
        scores=_scores(placed),
        rehearsal=_machine(placed),
        hint=_hint(placed),
        pid_space=pid_space(),
        speed=placed.speed,
        most=placed.most,
    )


def _sight(placed: Placed, options: SessionOptions) -> str:
    """Return why this rank trains on the CPU, if it does."""
    if placed.placement.device.kind != "cpu":
        return ""
    if options.device == "cpu":
        return 'device="cpu" was asked for.'
    return placed.node.visible


def _machine(placed: Placed) -> str:
    """Return the machine that is pretended, if one is; a file by its absolute path."""
    wanted = placed.rehearsal or ""
    return str(Path(wanted).resolve()) if names_a_file(wanted) else wanted


def _scores(placed: Placed) -> dict[str, float]:
    """Return each device's score, if there are any, by a name that no mask changes."""
    devices = placed.node.devices
    return {
        devices[n].uuid or devices[n].pci_bus_id or str(devices[n]): score
        for n, score in placed.pool.scores.items()
    }


def _hint(placed: Placed) -> str:
    """Return what to change if this rank's device turns out to be taken."""
    launch, count = placed.launch, len(placed.node.devices)
    if placed.placement.device.mig and not placed.can_share:
        return (
            "NCCL refuses two ranks on one GPU, MIG slices of it included: give each "
            'rank a slice of a GPU of its own, or choose backend="gloo".'
        )
    if launch.devices_bound:
        return (
            f"Each process sees {count} of its node's devices: start as many on a node "
            f"({launch.command(count)}), widen the mask, or give each process a mask "
            "of its own."
        )
    name = placed.pool.policy.name
    if placed.decided.seen:
        return (
            f'Strategy "{name}" gave both the same device: let it give each local rank '
            "of a node another."
        )
    return (
        f'Strategy "{name}" placed each by what its own process sees: '
        "give every process of a node the same *_VISIBLE_DEVICES and distinct local "
        "ranks, or each its own device."
        + " To share one on purpose, write oversubscribe=True."
        * placed.can_share
    )


def _identity(placed: Placed) -> Identity | None:
    """Return the identity of this rank's device, if it can be told from others."""
    launch, device = placed.launch, _without_shared_names(placed)
    host, view = boot_id(), file_space()
    if placed.rehearsal:
        # One description may stand for several pretended nodes.
        node = launch.node_rank
        host = view = f"of node {0 if node is None else node}"
        if node is None and launch.local_world_size == 1:
            host = view = f"of rank {launch.rank}'s node"
        elif node is None and launch.several_nodes:
            host = view = None
    elif launch.devices_bound and device.physical_index is None:
        view = None
    return identity_of(device, host=host, view=view, can_share=placed.can_share)


def _without_shared_names(placed: Placed) -> Device:
    """Return this rank's device, without a UUID and bus ID that another device shares.

    Partitions of an AMD GPU may repeat its UUID, and are functions of one PCI device,
    whose number torch does not report. MIG slices have distinct UUIDs.
    """
    device = placed.placement.device
    names = (device.uuid, device.pci_bus_id)
    alike = [d for d in placed.node.devices if (d.uuid, d.pci_bus_id) == names]
    if device.mig is not None or alike == [device]:
        return device
    return device.model_copy(update={"uuid": None, "pci_bus_id": None})

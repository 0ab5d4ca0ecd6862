"""A Launch under construction: what a launcher's variables say so far."""

import re
from dataclasses import dataclass, fields

from gpumap.detect.environment import Environment
from gpumap.detect.ports import port_of_name
from gpumap.errors import LaunchError
from gpumap.mapping.launch import Launch
from gpumap.mapping.visibility import ALL_MASKS, mask_length

__all__ = ["Draft"]


@dataclass
class Draft:
    """The fields of a Launch, by the same names, and the variables they come from."""

    env: Environment
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    num_nodes: int | None = None
    node_ranks: tuple[int, ...] | None = None
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    devices_bound: bool = False

    def has_own_devices(self) -> bool:
        """Tell whether this process's mask leaves it devices that no other rank has.

        That is so for one device with several local ranks, as --gpus-per-task=1 and
        wrapper scripts set it. In a Slurm step it is also so for fewer devices than the
        step has on this node, if they are also fewer than its tasks there. A mask with
        a device for each task may be shared by all tasks; if it is not, counting in it
        by local rank still gives different devices.
        """
        several = (self.local_world_size or 0) > 1 or (self.local_rank or 0) > 0
        masks = (mask_length(self.env.text(name)) for name in ALL_MASKS)
        visible = next((count for count in masks if count is not None), None)
        if not several or not visible:
            return False
        if visible == 1:
            return True
        on_node = self.env.text("SLURM_GPUS_ON_NODE") or ""
        enough = visible >= (self.local_world_size or visible + 1)
        return (
            self.env.in_slurm_step()
            and not enough
            and re.fullmatch(r"[0-9]{1,9}", on_node, re.ASCII) is not None
            and visible < int(on_node)
        )

    def fill(self, **values: object) -> None:
        """Set those of these fields that are still None."""
        for name, value in values.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def finish(self, launcher: str, start_command: str | None) -> Launch:
        """Return the launch, with the fields that follow from those that are known.

        Raises:
            LaunchError: The numbers contradict each other.
        """
        if self.job_id:
            self.fill(master_port=port_of_name(self.job_id))
        self.devices_bound = self.devices_bound or self.has_own_devices()
        if self.world_size == 1:
            self.fill(local_world_size=1)
        if self.local_world_size == 1:
            self.fill(local_rank=0)
        if self.local_world_size == self.world_size:
            self.fill(node_rank=0, num_nodes=1)
        told = {x.name: getattr(self, x.name) for x in fields(self) if x.name != "env"}
        told |= {"launcher": launcher, "start_command": start_command}
        try:
            return Launch.model_validate(told)
        except LaunchError as error:
            raise LaunchError(
                error.happened,
                f"{launcher} says: {self.env.seen()}.",
                f"{error.hint} Correct what sets them, or start with torchrun.",
                tuple(self.env.used),
            ) from None

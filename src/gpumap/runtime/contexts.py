"""Contexts of this process on other devices than its own, which waste memory there."""

import logging

import torch

__all__ = ["Contexts"]

log = logging.getLogger(__name__)


class Contexts:
    """Warns, once for each device, of contexts on other devices than this rank's.

    On CUDA, torch can tell whether a context exists without opening one. For devices
    where torch cannot, there is no warning.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        """Warn of contexts that this process opened before its session."""
        self._rank = rank
        self._device = device
        self._known = self._elsewhere()
        if self._known:
            log.warning(
                "rank %d, on %s, has a context on %s as well, from before its session: "
                "some hundred MB of each device's memory. Make tensors inside the "
                "session only, on session.device, or before it on the CPU.",
                rank,
                device,
                self._named(self._known),
            )

    def look_again(self) -> None:
        """Warn of contexts that were opened in the session."""
        new = [n for n in self._elsewhere() if n not in self._known]
        if new:
            log.warning(
                "rank %d, on %s, has opened a context on %s as well, in its session: "
                "some hundred MB of each device's memory. A checkpoint does so that "
                "was saved there: torch.load(…, map_location=session.device); and so "
                "does .cuda(0), or device='%s:0'.",
                self._rank,
                self._device,
                self._named(new),
                self._device.type,
            )

    def _elsewhere(self) -> list[int]:
        has_context = getattr(torch._C, f"_{self._device.type}_hasPrimaryContext", None)  # noqa: SLF001 - torch has no public way
        if has_context is None:
            return []
        count = torch.accelerator.device_count()
        return [n for n in range(count) if n != self._device.index and has_context(n)]

    def _named(self, indices: list[int]) -> str:
        return ", ".join(f"{self._device.type}:{index}" for index in indices)

"""What torch does not see of a node, and NVML does or would."""

from gpumap.detect.nvml import nvml_node
from gpumap.mapping.devices import Node

__all__ = ["unseen"]


def unseen(node: Node) -> str | None:
    """Return a warning about devices that torch does not see, or unknown links."""
    if len(node.devices) > 1 and node.devices[0].kind == "cuda" and not node.links:
        return (
            "the links between the devices are not known: the extra tells them, "
            "pip install gpumap-torch[nvml]."
        )
    there = None if node.devices else nvml_node(node.hostname)
    if there is None or not there.devices:
        return None
    import torch  # noqa: PLC0415 - detect_node has imported it already

    why = "it is built without CUDA"
    if torch.version.cuda is not None:
        why = "a mask hides them, or the driver is older than torch's CUDA"
    return (
        f"torch {torch.__version__} sees no accelerator, and NVML finds "
        f"{', '.join(str(d.name) for d in there.devices)}: {why}."
    )

"""The options that a user may pass on to DistributedDataParallel."""

from typing import Any

from typing_extensions import TypedDict

__all__ = ["DDPOptions"]


class DDPOptions(TypedDict, total=False):
    """DistributedDataParallel's own arguments, without those that gpumap decides.

    Source: torch.nn.parallel.DistributedDataParallel, torch 2.13. An older torch
    refuses the options that it does not have.
    """

    broadcast_buffers: bool
    init_sync: bool
    bucket_cap_mb: float | None
    find_unused_parameters: bool
    gradient_as_bucket_view: bool
    static_graph: bool
    delay_all_reduce_named_params: list[tuple[str, Any]] | None
    param_to_hook_all_reduce: Any
    mixed_precision: Any
    skip_all_reduce_unused_params: bool
    bucket_cap_mb_list: list[int] | None
    batched_grad_copy: bool
    forward_sync_buffers: bool | None

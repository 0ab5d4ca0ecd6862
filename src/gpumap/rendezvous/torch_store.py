"""A store of torch's own that the ranks of this host reach."""

import socket

import torch.distributed as dist

__all__ = ["store_on_loopback"]


def store_on_loopback() -> tuple[dist.TCPStore, int]:
    """Host a store on loopback, on a port that the kernel chooses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(socket.SOMAXCONN)
        port = int(listener.getsockname()[1])
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    return store, port

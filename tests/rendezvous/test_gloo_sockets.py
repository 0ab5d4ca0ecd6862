"""gloo's own sockets, as the kernel lists them."""

import socket

import torch.distributed as dist

from gpumap.rendezvous.gloo_sockets import GlooConnections


def test_sockets_of_others_are_not_taken_for_gloos() -> None:
    """Shutting down gloo's connections leaves the user's and the store's open."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    connections = GlooConnections(everything=True)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as own,
        server.accept()[0] as far,
    ):
        connections.shut_down()
        own.sendall(b"still open")
        assert far.recv(100) == b"still open"
    store.set("still", "open")
    assert store.get("still") == b"open"


def test_a_group_of_one_needs_no_connection() -> None:
    """A group of one counts as intact without a connection; a group of two does not."""
    connections = GlooConnections(everything=True)
    assert connections.intact([])
    assert not connections.intact([1])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert connections.intact([0])
        assert not connections.intact([1])
    finally:
        dist.destroy_process_group()

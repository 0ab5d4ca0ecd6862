"""gpumap's client of torch's TCPStore, against torch's servers and gpumap's."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from gpumap.rendezvous.store_client import Client, StoreLostError
from gpumap.rendezvous.store_server import StoreServer
from gpumap.rendezvous.torch_store import store_on_loopback


@pytest.fixture(params=["libuv", "threads", "gpumap"])
def store(request: pytest.FixtureRequest) -> Iterator[dist.TCPStore]:
    """Return torch's client of a store that one of three servers hosts."""
    if request.param != "gpumap":
        libuv = request.param == "libuv"
        yield dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=libuv
        )
        return
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = StoreServer(listener)
    yield dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    server.close()


@pytest.fixture
def client(store: dist.TCPStore) -> Iterator[Client]:
    """Return gpumap's client of the store."""
    client = Client("127.0.0.1", store.port, 5)
    yield client
    client.close()


def test_both_clients_read_what_either_wrote(
    store: dist.TCPStore, client: Client
) -> None:
    """Clients of gpumap and torch read each other's keys, counters and claims."""
    client.set("a", b"one")
    assert store.get("a") == b"one"
    store.set("b", "two")
    assert client.get("b") == b"two"
    assert [client.check(key) for key in ("b", "c")] == [True, False]
    assert client.compare_set("d", b"", b"mine") == b"mine"
    assert store.compare_set("d", "", "theirs") == b"mine"
    assert client.compare_set("d", b"", b"mine again") == b"mine"
    assert [client.add("n", 2), store.add("n", 3), client.add("n", 0)] == [2, 5, 5]
    client.set("large", b"x" * 300_000)
    assert client.get("large") == b"x" * 300_000


def test_a_wait_ends_with_the_key_or_with_its_time(
    store: dist.TCPStore, client: Client
) -> None:
    """A wait ends with its key or its time limit, and the connection stays usable."""
    assert not client.wait("later", 0.2)
    threading.Timer(0.2, lambda: store.set("later", "now")).start()
    assert client.wait("later", 10)
    assert client.wait("later", 0)
    assert client.get("later") == b"now"


def write_and_read(store: dist.TCPStore, key: str) -> None:
    """Write a key, and return once the server has it; torch's set() does not wait."""
    store.set(key, "here")
    store.get(key)


def test_a_key_that_comes_while_its_wait_is_given_up_is_not_lost(
    store: dist.TCPStore, client: Client
) -> None:
    """If a key comes as its wait times out, later requests get their own answers."""
    for number in range(200):
        key = f"key/{number}"
        setter = threading.Timer(0.001, write_and_read, (store, key))
        setter.start()
        client.wait(key, 0.001)
        setter.join()
        assert client.check(key)
        assert client.add("count", 1) == number + 1


def test_a_wait_ends_when_another_descriptor_can_be_read(client: Client) -> None:
    """A wait for a key also ends when another file descriptor becomes readable."""
    reader, writer = os.pipe()
    try:
        threading.Timer(0.2, lambda: os.write(writer, b"x")).start()
        began = time.monotonic()
        assert not client.wait("never", 30, [reader])
        assert time.monotonic() - began < 10
    finally:
        os.close(reader)
        os.close(writer)


def test_a_signal_interrupts_a_wait_and_the_next_request_is_answered(
    store: dist.TCPStore, client: Client
) -> None:
    """After a signal has interrupted a wait, the next request gets its own answer."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises((InterruptedError, StoreLostError)):
            client.wait("never", 30)
    finally:
        signal.signal(signal.SIGALRM, before)
    store.set("after", "it")
    assert client.get("after") == b"it"


def test_a_server_that_goes_is_told_at_once() -> None:
    """When the server goes, the current wait and every later request fail."""
    stores = [store_on_loopback()]
    port = stores[0][1]
    client = Client("127.0.0.1", port, 5)
    threading.Timer(0.2, stores.clear).start()
    with pytest.raises(StoreLostError, match=f"127.0.0.1:{port}: "):
        client.wait("never", 30)
    with pytest.raises((StoreLostError, OSError)):
        client.check("a")
    client.close()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_who_is_no_store_is_told_from_who_is_not_there(said: bytes) -> None:
    """A server that is no store is a StoreLostError; no server, ConnectionRefused."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(said)
                time.sleep(1)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(StoreLostError):
            Client("127.0.0.1", port, 0.5)
    with pytest.raises(ConnectionRefusedError):
        Client("127.0.0.1", port, 0.5)


def test_a_forked_child_has_no_connection(client: Client) -> None:
    """In a forked child requests fail, and the parent's connection stays open."""
    client.set("parents", b"own")
    pid = os.fork()
    if pid == 0:
        try:
            client.get("parents")
        except StoreLostError:
            os._exit(3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert client.get("parents") == b"own"


def test_many_files_may_be_open(client: Client) -> None:
    """A client works with a descriptor above 1023, where select() would fail."""
    import resource  # noqa: PLC0415 - Linux only, as this limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    client.close()
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        client.set("high", b"descriptor")
        # The store closes its end of a connection later, which leaves one free below.
        while client.fileno() <= 1023:
            client.close()
            files.append(os.open(os.devnull, os.O_RDONLY))
            client.set("high", b"descriptor")
        assert client.wait("high", 1)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

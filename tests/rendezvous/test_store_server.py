"""gpumap's server of TCPStore's language, against torch's server and client."""

import itertools
import os
import resource
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumap.rendezvous.store_client import Client, StoreLostError
from gpumap.rendezvous.store_server import StoreServer
from gpumap.rendezvous.torch_store import store_on_loopback
from helpers.programs import start_python

HELLO = struct.pack("=BIBI", 0, 0x3C85F7CE, 13, 7)
ANSWER = struct.pack("=I", 7)


class Server:
    """A server of gpumap's on loopback."""

    def __init__(self) -> None:
        """Listen on a port that the kernel chooses."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(listener.getsockname()[1])
        self.store = StoreServer(listener)

    def client(self) -> Client:
        """Return gpumap's client of it."""
        return Client("127.0.0.1", self.port, 10)

    def torchs(self) -> dist.TCPStore:
        """Return torch's client of it."""
        return dist.TCPStore(
            "127.0.0.1",
            self.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=10),
        )

    def stranger(self, says: bytes = b"") -> socket.socket:
        """Return a connection on which this was said."""
        connection = socket.create_connection(("127.0.0.1", self.port), 10)
        connection.sendall(says)
        return connection


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server that is closed in the end."""
    server = Server()
    yield server
    server.store.close()


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[int, int]]:
    """Return the ports of torch's server and of gpumap's."""
    theirs, port = store_on_loopback()
    ours = Server()
    yield port, ours.port
    ours.store.close()
    del theirs


def is_closed(connection: socket.socket) -> bool:
    """Tell whether the other end closes a connection within ten seconds."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def text(value: bytes) -> bytes:
    """Return a text as the protocol has it."""
    return struct.pack("=Q", len(value)) + value


KEY = st.sampled_from(["a", "b", "c"])
VALUE = st.sampled_from([b"", b"1", b"-20", b"x", b"\0\xff", b"long" * 5000])
REQUEST = st.one_of(
    st.tuples(st.just("set"), KEY, VALUE),
    st.tuples(st.just("compare_set"), KEY, VALUE, VALUE),
    st.tuples(st.just("get"), KEY),
    st.tuples(st.just("add"), KEY, st.integers(-5, 2**40)),
    st.tuples(st.just("check"), KEY),
    st.tuples(st.just("wait"), KEY, st.just(0.0)),
)
EXAMPLE = itertools.count()


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(requests=st.lists(st.tuples(st.integers(0, 1), REQUEST), max_size=12))
def test_it_answers_as_torchs_server_does(
    both: tuple[int, int], requests: list[tuple[int, tuple[object, ...]]]
) -> None:
    """Two clients get from it what two clients get from torch's server.

    A counter is decimal digits; to add to other text ends the connection of who asks.
    """
    prefix = next(EXAMPLE)
    answers: list[list[object]] = []
    for port in both:
        clients = [Client("127.0.0.1", port, 10) for _ in range(2)]
        answers.append([])
        for which, (name, key, *values) in requests:
            # A key that is not there has no value until it is written.
            try:
                said = getattr(clients[which], str(name))(f"{prefix}/{key}", *values)
            except StoreLostError:
                said = "lost"
            answers[-1].append(said)
        for client in clients:
            client.close()
    assert answers[0] == answers[1]


def test_torchs_clients_read_write_count_and_claim(server: Server) -> None:
    """Two of torch's clients read each other's keys, counters and claims."""
    one, other = server.torchs(), server.torchs()
    one.set("a", "one")
    assert other.get("a") == b"one"
    assert [one.add("n", 2), other.add("n", 3), one.add("n", -6)] == [2, 5, -1]
    assert one.compare_set("d", "", "mine") == b"mine"
    assert other.compare_set("d", "", "theirs") == b"mine"
    assert other.compare_set("d", "mine", "theirs") == b"theirs"
    assert other.compare_set("absent", "x", "y") == b"x"
    assert one.check(["a", "d"])
    assert not one.check(["a", "absent"])


def test_torchs_wait_ends_with_its_last_key_or_its_time(server: Server) -> None:
    """A wait for two keys ends with the second; one that is too long ends with time."""
    one, other = server.torchs(), server.torchs()
    with pytest.raises(dist.DistStoreError, match="timeout"):
        one.wait(["x", "y"], timedelta(seconds=0.1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.wait, ["x", "y"], timedelta(seconds=10))
        other.set("x", "1")
        assert other.check(["x"])
        assert not waiting.done()
        other.set("y", "2")
        waiting.result(10)
    assert one.get("y") == b"2"


def test_many_clients_count_at_once(server: Server) -> None:
    """Eight clients that add to one counter 200 times each get 1600 numbers."""

    def count(_: int) -> list[int]:
        with closing(server.client()) as client:
            return [client.add("n", 1) for _ in range(200)]

    with ThreadPoolExecutor(8) as pool:
        numbers = list(itertools.chain.from_iterable(pool.map(count, range(8))))
    assert sorted(numbers) == list(range(1, 1601))


def test_all_that_wait_for_a_key_are_told(server: Server) -> None:
    """A key ends the waits of all its clients, but of none that wait for another."""
    clients = [server.client() for _ in range(10)]
    with ThreadPoolExecutor(10) as pool:
        waits = [
            pool.submit(client.wait, "verdict" if n else "else", 10 if n else 0.5)
            for n, client in enumerate(clients)
        ]
        with closing(server.client()) as writer:
            writer.set("verdict", b"go")
        assert [wait.result(20) for wait in waits] == [False] + [True] * 9
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n",
        struct.pack("=BI", 0, 1),  # another magic number
        struct.pack("=BQ", 1, 1) + b"k" + text(b"a write without a greeting"),
        HELLO + bytes([7]),  # a request that it does not serve
        HELLO + bytes([255]),
        HELLO + struct.pack("=BQ", 1, 2**40),  # a key of a terabyte
        HELLO + bytes([1]) + text(b"/k") + struct.pack("=Q", 2**40),
        HELLO + struct.pack("=BQ", 5, 2**62),  # a question for very many keys
        HELLO + b"\1" + text(b"/k") + text(b"x") + b"\4" + text(b"/k") + b"1" * 8,
        HELLO + (bytes([4]) + text(b"/n") + struct.pack("=q", 2**62)) * 2,
    ],
    ids=lambda said: repr(said[9:20]),
)
def test_who_speaks_otherwise_is_dropped(server: Server, said: bytes) -> None:
    """A stranger's connection is closed, and a client notices nothing."""
    with closing(server.client()) as client:
        client.set("before", b"1")
        with server.stranger(said) as stranger:
            assert is_closed(stranger)
        assert client.get("before") == b"1"


@pytest.mark.parametrize(
    "said", [b"", b"\0", HELLO[:4], HELLO, HELLO + b"\1", HELLO + b"\1" + text(b"/k")]
)
def test_who_falls_silent_holds_nobody_up(server: Server, said: bytes) -> None:
    """Others are answered while a stranger has said nothing, or half of a request."""
    with server.stranger(said) as stranger, closing(server.client()) as client:
        client.set("k", b"1")
        assert client.get("k") == b"1"
        assert client.wait("k", 0)
        assert stranger.fileno() >= 0


def test_a_request_may_come_a_byte_at_a_time(server: Server) -> None:
    """Requests are read however the network has divided them."""
    said = HELLO + bytes([1]) + text(b"/k") + text(b"value") + bytes([3]) + text(b"/k")
    with server.stranger() as stranger:
        stranger.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in said:
            stranger.sendall(bytes([byte]))
        expected, answer = ANSWER + text(b"value"), b""
        while len(answer) < len(expected):
            answer += stranger.recv(1000)
        assert answer == expected


def test_who_never_reads_holds_nobody_up(server: Server) -> None:
    """A stranger that asks for megabytes and reads none is not answered further."""
    with closing(server.client()) as client:
        client.set("large", b"x" * 2**20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with server.stranger(HELLO) as stranger:
            stranger.settimeout(1)
            question = (bytes([3]) + text(b"/large")) * 10_000
            with suppress(TimeoutError):
                stranger.sendall(question * 20)
            assert client.add("n", 1) == 1
            # 200,000 answers would be 200 GB; KiB are counted.
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19
        assert client.add("n", 1) == 2


def test_answers_wait_for_a_slow_reader(server: Server) -> None:
    """Many large answers all arrive at a client that reads late, in order."""
    with closing(server.client()) as client, server.stranger(HELLO) as slow:
        for n in range(4):
            client.set(f"large{n}", bytes([n]) * 2**20)
        slow.sendall(b"".join(bytes([3]) + text(b"/large%d" % n) for n in range(4)))
        assert client.check("large3")
        expected = ANSWER + b"".join(text(bytes([n]) * 2**20) for n in range(4))
        received = bytearray()
        while len(received) < len(expected):
            received += slow.recv(2**16)
        assert received == expected


def test_a_client_that_goes_while_it_waits_is_forgotten(server: Server) -> None:
    """A key that a lost client waited for can be written, and others get it."""
    wait = bytes([6]) + struct.pack("=Q", 1) + text(b"/k")
    for _ in range(20):
        server.stranger(HELLO + wait).close()
    with closing(server.client()) as client:
        client.set("k", b"1")
        assert client.get("k") == b"1"


def test_behind_a_closed_door_the_clients_stay(server: Server) -> None:
    """Once the door is closed nobody comes in; who is there goes on and then leaves."""
    client = server.client()
    silent = server.stranger()
    server.store.close_door()
    with pytest.raises(ConnectionRefusedError):
        server.stranger()
    client.set("k", b"1")
    assert client.get("k") == b"1"
    assert not server.store.wait_until_left(0.1)
    client.close()
    # The silent one is no client.
    assert server.store.wait_until_left(10)
    server.store.close_door()
    assert silent.fileno() >= 0
    server.store.close()
    assert is_closed(silent)
    silent.close()


def test_its_port_is_free_at_once() -> None:
    """The port can be bound without SO_REUSEADDR whoever closed connections first."""
    for _ in range(20):
        server = Server()
        early, late, silent = server.client(), server.client(), server.stranger()
        early.set("k", b"1")
        early.close()
        server.store.close()
        with socket.socket() as script:
            script.bind(("127.0.0.1", server.port))
        late.close()
        silent.close()


def test_a_closed_server_can_be_closed_again() -> None:
    """Closing the door, waiting and closing are without effect after close()."""
    server = Server()
    server.store.close()
    server.store.close_door()
    assert server.store.wait_until_left(0)
    server.store.close()


def test_a_forked_child_has_nothing_of_it(server: Server) -> None:
    """A child keeps neither the port nor a connection; the parent's server goes on."""
    client = server.client()
    hold, release = os.pipe()
    closed, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(release)
            server.store.close_door()
            server.store.close()
            os.write(told, b"x")
            os.read(hold, 1)
            os._exit(3)
        finally:
            os._exit(4)
    os.close(told)
    try:
        assert os.read(closed, 1) == b"x"
        client.set("k", b"1")
        assert client.get("k") == b"1"
        other = server.client()
        server.store.close_door()
        with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
            probe.connect(("127.0.0.1", server.port))
        client.close()
        other.close()
        assert server.store.wait_until_left(10)
        server.store.close()
        with socket.socket() as script:
            script.bind(("127.0.0.1", server.port))
    finally:
        for end in (hold, release, closed):
            os.close(end)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


CROWDED = """
import resource, socket, sys
from gpumap.rendezvous.store_server import StoreServer
listener = socket.create_server(("127.0.0.1", 0))
server = StoreServer(listener)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
server.close()
print("closed", flush=True)
"""


def test_silent_strangers_cannot_use_up_the_descriptors() -> None:
    """Where no further file can be opened, who has said nothing makes room."""
    program = start_python("-c", CROWDED, stdin=subprocess.PIPE)
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        port = int(program.stdout.readline())
        silent = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(100)]
        clients = [Client("127.0.0.1", port, 20) for _ in range(20)]
        assert [client.add("n", 1) for client in clients] == list(range(1, 21))
        # Clients are never dropped: those for whom there is no room wait outside.
        more: list[socket.socket] = []
        for _ in range(40):
            more.append(socket.create_connection(("127.0.0.1", port), 10))
            more[-1].sendall(HELLO)
        assert [client.add("n", 1) for client in clients] == list(range(21, 41))
        for one in more[:30]:
            one.close()
        for one in more[30:]:
            assert one.recv(4) == ANSWER
        everyone: list[socket.socket | Client] = [*silent, *more, *clients]
        for each in everyone:
            each.close()
        out, _ = program.communicate("", timeout=60)
        assert out == "closed\n"
    finally:
        if program.poll() is None:
            program.kill()
            program.communicate(timeout=60)


def test_a_stranger_does_not_end_a_wait(server: Server) -> None:
    """Clients that wait are told although others come, fail and go meanwhile."""
    client = server.client()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, "k", 30)
        for said in (b"rubbish", HELLO, b""):
            server.stranger(said).close()
        threading.Timer(0.1, lambda: server.torchs().set("k", "1")).start()
        assert waiting.result(30)
    client.close()

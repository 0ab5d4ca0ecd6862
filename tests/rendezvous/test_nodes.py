"""The numbers of the nodes, where the launcher does not tell them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from gpumap.errors import RollCallError
from gpumap.mapping.launch import Launch
from gpumap.rendezvous.members import Member
from gpumap.rendezvous.nodes import numbered
from gpumap.rendezvous.peers import Peers
from gpumap.rendezvous.session_store import SessionStore
from gpumap.rendezvous.torch_keys import TorchKeys

Place = tuple[str, int | None]


def outcomes(
    places: Sequence[Place], came: int | None = None, seconds: float = 20.0
) -> list[tuple[int, int] | str]:
    """Return what each rank finds, given its host and local rank, or its error.

    came: how many ranks take part, the first ones; all if None.
    """
    store, world_size = dist.HashStore(), len(places)

    def find(rank: int) -> tuple[int, int] | str:
        host, local_rank = places[rank]
        me = Member(rank=rank, hostname=host, pid=1, device="")
        peers = Peers(SessionStore(TorchKeys(store), ""), me, world_size, host=0)
        launch = Launch(
            launcher="test", rank=rank, world_size=world_size, local_rank=local_rank
        )
        try:
            return numbered(peers, launch, host, seconds)
        except RollCallError as error:
            return str(error)

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(find, range(world_size if came is None else came)))


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([("a", 0), ("a", 1), ("b", 0), ("b", 1)], [0, 0, 1, 1]),
        # Dealt out cyclically.
        ([("a", 0), ("b", 0), ("a", 1), ("b", 1)], [0, 1, 0, 1]),
        # Uneven, and names that do not ascend.
        ([("z", 0), ("z", 1), ("z", 2), ("a", 0), ("m", 0)], [0, 0, 0, 1, 2]),
        # b's local rank 0 is rank 1, a's is rank 2.
        ([("a", 1), ("b", 0), ("a", 0), ("b", 1)], [1, 0, 1, 0]),
        ([("a", 0), ("a", 1)], [0, 0]),
        ([(f"n{rank}", 0) for rank in range(12)], list(range(12))),
    ],
)
def test_nodes_are_in_the_order_of_their_local_rank_0(
    places: Sequence[Place], expected: Sequence[int]
) -> None:
    """Every rank finds its own node's number, and how many nodes there are."""
    nodes = len({host for host, _ in places})
    assert outcomes(places) == [(number, nodes) for number in expected]


def test_a_host_without_a_local_rank_0_is_named() -> None:
    """Its ranks say so; the nodes that have one are numbered."""
    first, second = outcomes([("a", 0), ("b", 1)])
    assert first == (0, 1)
    assert second == (
        "no rank of b is its local rank 0.\n"
        "rank 1 (pid 1 on b) is local rank 1 there.\n"
        "Give each process of a node its own LOCAL_RANK, from 0."
    )


def test_without_any_local_rank_no_node_has_a_number() -> None:
    """If the launcher tells no local ranks, every rank says so."""
    for host, said in zip(
        "aab", outcomes([("a", None)] * 2 + [("b", None)]), strict=True
    ):
        assert str(said).startswith(f"no rank of {host} is its local rank 0.\n")
        assert "is local rank unknown there" in str(said)


def test_a_rank_that_goes_first_leaves_no_rank_waiting() -> None:
    """After their seconds all others say that the nodes were not numbered."""
    for said in outcomes([("a", 0), ("a", 1), ("b", 0)], came=2, seconds=0.5):
        assert str(said).startswith("the nodes were not numbered within 0.5 s.\n")

"""Launches: which facts fit together, and where the ranks meet."""

import pytest

from gpumap.errors import LaunchError
from gpumap.mapping.launch import Launch, store_address


def test_a_launch_goes_to_json_and_back() -> None:
    """A launch printed as JSON is read back unchanged."""
    launch = Launch(launcher="torchrun", rank=1, world_size=2, master_port=29500)
    assert Launch.model_validate_json(launch.model_dump_json()) == launch


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank 2 is out of range for world_size 2."),
        (
            {"rank": 0, "world_size": 4, "local_rank": 2, "local_world_size": 2},
            "local_rank 2 is out of range for local_world_size 2.",
        ),
        (
            {"rank": 0, "world_size": 4, "node_rank": 2, "num_nodes": 2},
            "node_rank 2 is out of range for num_nodes 2.",
        ),
        (
            {"rank": 0, "world_size": 2, "local_world_size": 4},
            "local_world_size 4 is more than world_size 2.",
        ),
        (
            {"rank": 0, "world_size": 2, "num_nodes": 3},
            "num_nodes 3 is more than world_size 2.",
        ),
        (
            {"rank": 0, "world_size": 4, "num_nodes": 1, "local_world_size": 2},
            "2 processes on this one of 1 nodes do not make 4.",
        ),
        (
            {"rank": 0, "world_size": 4, "num_nodes": 3, "local_world_size": 4},
            "4 processes on this one of 3 nodes do not make 4.",
        ),
        (
            {"rank": 0, "world_size": 4, "node_ranks": (0, 0)},
            "these are not the ranks of a node with rank 0 on it.",
        ),
        (
            {"rank": 0, "world_size": 4, "node_ranks": (0, 9)},
            "these are not the ranks of a node with rank 0 on it.",
        ),
        (
            {"rank": 0, "world_size": 4, "node_ranks": (1, 2)},
            "these are not the ranks of a node with rank 0 on it.",
        ),
        (
            {"rank": 0, "world_size": 2, "master_port": 65536},
            "master_port 65536 is no TCP port.",
        ),
        (
            {"rank": 0, "world_size": 2, "master_port": 0},
            "master_port 0 is no TCP port.",
        ),
        (
            {"rank": 0, "world_size": 2, "master_addr": "127.0.0.1:29500"},
            "master_addr '127.0.0.1:29500' is not a host name or an address.",
        ),
        (
            {"rank": 0, "world_size": 2, "master_addr": "train-0..svc"},
            "master_addr 'train-0..svc' is no name that a name server can be asked.",
        ),
        (
            {"rank": 0, "world_size": 2, "master_addr": "fe80::1"},
            "master_addr fe80::1 counts on one link, and does not say on which.",
        ),
        (
            {"rank": 0, "world_size": 2, "local_rank": 1, "node_ranks": (0, 1)},
            "these are not the ranks of a node with rank 0 on it.",
        ),
        (
            {"rank": 0, "world_size": 2, "master_addr": "[::1]"},
            "master_addr '[::1]' is not a host name or an address.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_combinations_are_errors(
    fields: dict[str, object], message: str
) -> None:
    """A field that is impossible, alone or with others, is an error that names it."""
    with pytest.raises(LaunchError) as caught:
        Launch.model_validate({"launcher": "test", **fields})
    assert caught.value.happened == message


@pytest.mark.parametrize(
    ("fields", "seen", "hint"),
    [
        (
            {"rank": 4},
            "rank=4, world_size=4.",
            "Places count from 0: rank is at most world_size - 1.",
        ),
        (
            {"num_nodes": 5},
            "num_nodes=5, world_size=4.",
            "world_size counts the processes of all nodes together.",
        ),
        (
            {"num_nodes": 3, "local_world_size": 3},
            "local_world_size=3, num_nodes=3, world_size=4.",
            "Every node runs at least one process; all of them make world_size.",
        ),
        (
            {"node_ranks": (0, 4)},
            "node_ranks=(0, 4), world_size=4, local_world_size=2.",
            "List the ranks of this node once, in the order of their local ranks.",
        ),
        (
            {"master_port": -1},
            "master_port=-1.",
            "Choose one from 1 to 65535, for instance 29500.",
        ),
        (
            {"master_addr": "n1 "},
            "master_addr='n1 '.",
            "Write the host alone (n1, 10.0.0.1, ::1); the port has its own variable, "
            "MASTER_PORT.",
        ),
        (
            {"master_addr": "n1..lab"},
            "master_addr='n1..lab'.",
            "A name's parts have 1 to 63 characters each; a variable that was not set "
            "leaves an empty one.",
        ),
        (
            {"master_addr": "FE80::1"},
            "master_addr='FE80::1', a link-local address.",
            "Write it with the interface, FE80::1%eth0 for instance, or choose an "
            "address that is good beyond the link.",
        ),
    ],
)
def test_what_is_impossible_is_shown_with_what_to_do(
    fields: dict[str, object], seen: str, hint: str
) -> None:
    """The error for an impossible field gives the launcher, the values and a hint."""
    with pytest.raises(LaunchError) as caught:
        Launch.model_validate({"launcher": "mine", "rank": 0, "world_size": 4} | fields)
    assert caught.value.args[1:] == (f"mine: {seen}", hint, ())


@pytest.mark.parametrize(
    "fields",
    [
        {"num_nodes": 3, "local_world_size": 2},
        {"node_ranks": (0, 3)},
        {"master_port": 1},
        {"master_port": 65535},
        {"master_addr": "X1"},
    ],
)
def test_what_is_just_possible_is_taken(fields: dict[str, object]) -> None:
    """Values at the limits of what is possible are accepted."""
    known = {"launcher": "mine", "rank": 0, "world_size": 4}
    launch = Launch.model_validate(known | fields)
    assert {name: getattr(launch, name) for name in fields} == fields


@pytest.mark.parametrize("value", [-1, 1.0, "1", True, None])
def test_a_rank_is_a_whole_number_from_0(value: object) -> None:
    """A rank that is not an int from 0 is an error; nothing is converted."""
    with pytest.raises(LaunchError, match="not a valid Launch"):
        Launch.model_validate({"launcher": "test", "rank": value, "world_size": 2})


def test_an_ipv6_address_is_an_address() -> None:
    """An IPv6 address is accepted; only the brackets of a URL are refused."""
    assert Launch(launcher="x", rank=0, world_size=2, master_addr="::1").master_addr


def test_one_node_is_known_from_either_fact() -> None:
    """There is one node if num_nodes is 1, or if all processes are on this node."""
    assert Launch(launcher="x", rank=0, world_size=2, local_world_size=2).one_node
    assert Launch(launcher="x", rank=0, world_size=2, num_nodes=1).one_node
    assert not Launch(launcher="x", rank=0, world_size=2).one_node


def test_what_the_ranks_of_a_node_say_is_filled_in() -> None:
    """The local rank and local world size are filled in from node_ranks."""
    me = Launch(launcher="mine", rank=5, world_size=9, node_ranks=(3, 5, 7))
    assert (me.local_rank, me.local_world_size) == (1, 3)
    scoped = Launch(launcher="mine", rank=0, world_size=2, master_addr="fe80::1%eth0")
    assert scoped.master_addr == "fe80::1%eth0"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"local_world_size": 2}, ("127.0.0.1", 29500)),
        ({"num_nodes": 1, "master_addr": "n1"}, ("127.0.0.1", 29500)),
        ({"num_nodes": 1, "master_addr": "::1"}, ("::1", 29500)),
        ({"master_addr": "localhost"}, ("127.0.0.1", 29500)),
        ({"num_nodes": 2, "master_addr": "n1"}, ("n1", 29500)),
        ({"master_addr": "10.0.0.1"}, ("10.0.0.1", 29500)),
    ],
)
def test_ranks_of_one_node_meet_on_loopback(
    fields: dict[str, object], where: tuple[str, int]
) -> None:
    """Ranks of one node meet on loopback, those of several nodes at master_addr."""
    known = {"launcher": "mine", "rank": 1, "world_size": 2, "master_port": 29500}
    assert store_address(Launch.model_validate(known | fields)) == where


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"num_nodes": 2}, ("MASTER_ADDR", "MASTER_PORT")),
        ({"num_nodes": 2, "master_port": 29500}, ("MASTER_ADDR",)),
        ({"num_nodes": 1}, ("MASTER_PORT",)),
    ],
)
def test_what_is_missing_to_meet_is_named_at_once(
    fields: dict[str, object], missing: tuple[str, ...]
) -> None:
    """All variables that are missing to meet the other ranks are in one error."""
    known = {"launcher": "mine", "rank": 1, "world_size": 2}
    with pytest.raises(LaunchError) as caught:
        store_address(Launch.model_validate(known | fields))
    assert caught.value.happened == (
        f"rank 1 of 2 does not know where to meet the others: {' and '.join(missing)} "
        "not set."
    )
    assert caught.value.seen == (
        f"mine: master_addr=None, master_port={fields.get('master_port')}."
    )
    assert caught.value.hint == (
        f"Set {' and '.join(missing)} to the same value on every rank: rank 0's host, "
        "and a port free there, for instance 29500. torchrun sets them."
    )
    assert caught.value.variables == missing


def test_a_command_may_hold_braces_of_its_own() -> None:
    """A start command keeps other braces, ${A}; num_nodes counts as 1 if unknown."""
    me = Launch(
        launcher="mine",
        rank=0,
        world_size=6,
        num_nodes=3,
        start_command="x ${A} {n} {total}",
    )
    assert me.command(2) == "x ${A} 2 6"
    assert me.model_copy(update={"num_nodes": None}).command(2) == "x ${A} 2 2"

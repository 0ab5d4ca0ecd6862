"""Advice on a choice of devices that works, and could be better."""

import pytest

from gpumap.detect.rehearsal import machine
from gpumap.mapping.devices import Device, Link, Node
from gpumap.mapping.diagnostics import advice, idle_devices, worth_using
from gpumap.mapping.launch import Launch
from helpers.nodes import node


def advised(name: str | Node, *indices: int) -> list[str]:
    """Return the advice on these devices of a machine."""
    n1 = machine(name) if isinstance(name, str) else name
    return advice([n1.devices[index] for index in indices], n1.devices, n1)


@pytest.mark.parametrize(
    ("name", "indices", "worse", "better"),
    [
        # NVLink runs 0-3 and 1-2; 0-1 and 2-3 share a CPU, the rest cross.
        ("rtx8000x4", (0, 1), "cuda:0, cuda:1 reach each other through NODE", "[0, 3]"),
        ("rtx8000x4", (2, 0), "cuda:2, cuda:0 reach each other through SYS", "[0, 3]"),
        ("t4x4", (0, 3), "cuda:0, cuda:3 reach each other through SYS", "[1, 2]"),
        # Both pairs are NVLinked, 0-1 by one link and 0-3 by two.
        ("dgx1-v100", (0, 1), "cuda:0, cuda:1 reach each other through NV1", "[0, 3]"),
        ("dgx1-v100", (0, 1, 5), "through SYS at best", "[0, 2, 3]"),
    ],
)
def test_a_badly_linked_choice_is_told_the_better_one(
    name: str, indices: tuple[int, ...], worse: str, better: str
) -> None:
    """If another choice has a faster slowest link in its best ring, it is advised."""
    [sentence] = advised(name, *indices)
    assert worse in sentence
    assert f"write gpus={better}," in sentence


def test_a_pair_whose_path_is_not_known_is_told_of_one_that_is() -> None:
    """A pair with an unknown link is advised to use one with a known link."""
    n1 = node(3).model_copy(update={"links": (Link(a=0, b=1, nvlinks=4),)})
    [sentence] = advised(n1, 1, 2)
    assert "cuda:1, cuda:2 reach each other through an unknown path" in sentence


@pytest.mark.parametrize(
    ("name", "indices"),
    [
        ("rtx8000x4", (3, 0)),
        ("rtx8000x4", (0, 1, 2, 3)),
        ("dgx-a100", (6, 1)),
        ("rtx4090x8-sys", (0, 7)),
        ("rtx3090x4", (2,)),
        ("rtx3090x4", (2, 2)),
    ],
)
def test_a_choice_that_no_other_beats_is_left_alone(
    name: str, indices: tuple[int, ...]
) -> None:
    """There is no advice if all pairs are alike, or the choice is the best."""
    assert advised(name, *indices) == []


def test_without_links_there_is_nothing_to_say() -> None:
    """There is no advice on links that are unknown, as without NVML."""
    assert advised(node(4), 0, 3) == []


def test_the_slower_card_of_a_mixed_set_is_named() -> None:
    """In a mixed set the slower card is named, with a choice that leaves it out."""
    [sentence] = advised("rtx3090-gtx1080", 1, 0)
    assert sentence == (
        "NVIDIA GeForce GTX 1080 and NVIDIA GeForce RTX 3090 train together: every "
        "step waits for the slowest, and the smallest memory bounds the batch. The "
        "NVIDIA GeForce GTX 1080 is the slower: leave it out with gpus=[0], or give "
        "its ranks less to do."
    )


def test_which_of_two_is_slower_is_not_guessed() -> None:
    """Neither card is called slower if the older has more multiprocessors."""
    kinds = (("RTX 3060", (8, 6), 28), ("Tesla T4", (7, 5), 40))
    cards = tuple(
        Device(
            kind="cuda",
            index=index,
            name=name,
            compute_capability=capability,
            multiprocessors=count,
        )
        for index, (name, capability, count) in enumerate(kinds)
    )
    [sentence] = advised(Node(hostname="n1", devices=cards), 0, 1)
    assert sentence.endswith("gpumap.measure() tells which is slow.")


def test_linked_without_links_says_that_it_is_blind() -> None:
    """The strategy "linked" warns if no link is known, unless it takes all devices."""
    n1 = node(3)
    assert advice(n1.devices[:2], n1.devices, n1, "linked") == [
        'strategy "linked" knows no link of n1, and took the first devices: install '
        "the extra, pip install gpumap-torch[nvml], or describe the node."
    ]
    assert advice(n1.devices, n1.devices, n1, "linked") == []


def mixed(*names: str) -> Node:
    """Return a workstation with the cards of these names."""
    kinds = {
        "A100": ((8, 0), 108, 40_000),
        "display": ((8, 6), 20, 4_000),
        "RTX 3090": ((8, 6), 82, 24_000),
        "RTX 3080": ((8, 6), 68, 10_000),
    }
    return Node(
        hostname="n1",
        devices=tuple(
            Device(
                kind="cuda",
                index=index,
                name=name,
                compute_capability=kinds[name][0],
                multiprocessors=kinds[name][1],
                total_memory=kinds[name][2],
            )
            for index, name in enumerate(names)
        ),
    )


def test_a_display_card_is_the_smaller_though_it_is_newer() -> None:
    """A display card is the slower one, although newer than the A100s beside it."""
    station = mixed("A100", "display", "A100", "A100")
    [sentence] = advised(station, 0, 1, 2)
    assert sentence.endswith(
        "The display is the slower: leave it out with gpus=[0, 2, 3]."
    )
    assert advised(station, 0, 2, 3) == []


def test_a_little_slower_card_is_not_left_out() -> None:
    """Cards a little slower are used: 4 x 68 multiprocessors do more than 2 x 82."""
    station = mixed("RTX 3090", "RTX 3080", "RTX 3090", "RTX 3080")
    [sentence] = advised(station, 0, 1, 2, 3)
    assert sentence.endswith("The RTX 3080 is the slower: give its ranks less to do.")
    assert worth_using(station.devices) == list(station.devices)
    me = Launch(launcher="torchrun", rank=0, world_size=2, local_world_size=2)
    assert (idle_devices(me, station.devices, station) or "").startswith("2 of 4 dev")


def test_who_is_told_to_leave_a_card_out_is_not_told_to_use_all() -> None:
    """Devices that are not worth using do not count as idle."""
    station = mixed("A100", "display", "A100", "A100")
    three = Launch(launcher="torchrun", rank=0, world_size=3, local_world_size=3)
    assert idle_devices(three, station.devices, station) is None
    two = Launch(launcher="torchrun", rank=0, world_size=2, local_world_size=2)
    assert idle_devices(two, station.devices, station) == (
        "2 of 3 devices worth using on n1 will be used. "
        "To use all: torchrun --nproc-per-node 3"
    )


def test_what_is_recommended_is_in_the_pool() -> None:
    """Only devices of the pool are advised."""
    n1 = machine("rtx8000x4")
    pool = [n1.devices[0], n1.devices[1], n1.devices[2]]
    [sentence] = advice([n1.devices[0], n1.devices[1]], pool, n1)
    assert "write gpus=[1, 2]," in sentence
    assert advice(pool[1:], pool[1:], n1) == []
    station = mixed("A100", "display", "A100", "A100")
    [sentence] = advice(station.devices[:2], station.devices[:3], station)
    assert sentence.endswith("leave it out with gpus=[0, 2].")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"world_size": 1}, "1 of 3 devices on n1"),
        (
            {"world_size": 4, "local_world_size": 2},
            "2 of 3 devices on n1",
        ),
        ({"world_size": 4, "local_world_size": 3}, None),
        ({"world_size": 4}, None),
        ({"world_size": 4, "local_world_size": 2, "devices_bound": True}, None),
    ],
)
def test_devices_are_idle_where_the_number_of_processes_is_known(
    fields: dict[str, object], said: str | None
) -> None:
    """Idle devices are counted if the local world size is known and none is bound."""
    me = Launch.model_validate({"launcher": "mine", "rank": 0, **fields})
    found = idle_devices(me, node(3).devices, node(3))
    assert (found is None) == (said is None)
    assert (found or "").startswith(said or "")


def pair(first: dict[str, object], second: dict[str, object]) -> Node:
    """Return a node of two cards that differ in name and these fields."""
    alike = {"kind": "cuda", "compute_capability": (8, 0), "multiprocessors": 80}
    alike |= {"total_memory": 80}
    cards = (
        Device.model_validate({**alike, "index": n, "name": name, **fields})
        for n, (name, fields) in enumerate((("one", first), ("other", second)))
    )
    return Node(hostname="n1", devices=tuple(cards))


@pytest.mark.parametrize(
    ("first", "second", "slower"),
    [
        ({"multiprocessors": 79}, {}, "one"),
        ({}, {"multiprocessors": 79}, "other"),
        ({}, {}, None),
        ({"multiprocessors": None}, {}, None),
        ({"compute_capability": None, "multiprocessors": 41}, {}, None),
        ({"compute_capability": (8, 6), "multiprocessors": 79}, {}, None),
        # Newer, and less than half of both.
        (
            {"compute_capability": (8, 6), "multiprocessors": 39, "total_memory": 39},
            {},
            "one",
        ),
        (
            {"compute_capability": (8, 6), "multiprocessors": 40, "total_memory": 39},
            {},
            None,
        ),
        (
            {"compute_capability": (8, 6), "multiprocessors": 39, "total_memory": 40},
            {},
            None,
        ),
        (
            {"compute_capability": (8, 6), "multiprocessors": 39, "total_memory": None},
            {},
            None,
        ),
    ],
)
def test_slower_is_older_with_fewer_multiprocessors_or_less_than_half(
    first: dict[str, object], second: dict[str, object], slower: str | None
) -> None:
    """A card is slower if it has fewer multiprocessors and is not newer.

    A newer card is slower if it has less than half of the multiprocessors and of the
    memory. If a number is unknown, no card is called slower.
    """
    n1 = pair(first, second)
    [sentence] = advice(n1.devices, n1.devices, n1)
    if slower is None:
        assert sentence.endswith("gpumap.measure() tells which is slow.")
    else:
        assert f"The {slower} is the slower:" in sentence


def test_a_kind_is_left_out_where_the_others_do_as_much_without_it() -> None:
    """A kind of card is left out if the others do as much without it.

    In DDP, n ranks do n times what the slowest does: 2 x 81 against 3 x 54 and 55.
    """
    three = [81, 81, 54]
    for last, kept in ((54, 2), (55, 3)):
        three[2] = last
        cards = tuple(
            Device(
                kind="cuda",
                index=n,
                name=f"card {count}",
                compute_capability=(8, 0),
                multiprocessors=count,
            )
            for n, count in enumerate(three)
        )
        assert len(worth_using(cards)) == kept


def test_a_card_that_is_not_known_is_not_counted_on() -> None:
    """Beside a card of an unknown kind, no card is left out."""
    fast, slow = mixed("RTX 3090", "display").devices
    unknown = Device(kind="cuda", index=2)
    assert worth_using([fast, slow]) == [fast]
    assert worth_using([fast, slow, unknown]) == [fast, slow, unknown]
    assert worth_using([]) == []
    n1 = Node(hostname="n1", devices=(fast, slow, unknown))
    assert advice([fast, unknown], [fast, unknown], n1) == []


def test_slices_of_different_sizes_are_not_called_different_cards() -> None:
    """MIG slices of different sizes, which the user cut, are not different cards."""
    slices = tuple(
        Device(kind="cuda", index=n, name=f"A100 MIG {size}", mig=f"GPU-{n}")
        for n, size in enumerate(("1g.5gb", "3g.20gb"))
    )
    assert advice(slices, slices, Node(hostname="n1", devices=slices)) == []


@pytest.mark.parametrize(("count", "told"), [(16, 1), (17, 0)])
def test_links_of_up_to_sixteen_devices_are_judged(count: int, told: int) -> None:
    """Links are judged among up to 16 devices, where rings are compared exactly."""
    links = (Link(a=0, b=1, pcie="SYS"), Link(a=2, b=3, nvlinks=2))
    n1 = node(count).model_copy(update={"links": links})
    sentences = advised(n1, 0, 1)
    assert len(sentences) == told
    assert all("write gpus=[2, 3]," in sentence for sentence in sentences)


def test_what_is_recommended_is_not_slower_still() -> None:
    """The advice to leave a card out does not put a slower one in its place."""
    station = mixed("RTX 3090", "RTX 3080", "display", "RTX 3090")
    [sentence] = advised(station, 0, 1)
    assert sentence.endswith("leave it out with gpus=[0, 3].")
    alone = mixed("RTX 3090", "RTX 3080", "display")
    [sentence] = advised(alone, 0, 1)
    assert "[0, 2]" not in sentence

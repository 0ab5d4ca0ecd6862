"""The batch sampler that gives each rank its share."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, TensorDataset

import gpumap
from gpumap.errors import SessionError
from gpumap.mapping.batches import split_batch
from gpumap.runtime import sampler
from gpumap.runtime.sampler import BalancedSampler
from helpers.programs import run_python


@dataclass(frozen=True)
class OneRank:
    """A rank of a balanced session; the shares of the epochs to come are given."""

    rank: int
    epochs: list[tuple[int, ...]]
    rebalanced: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    @property
    def shares(self) -> tuple[int, ...]:
        """The shares of the present epoch."""
        return self.epochs[0]

    def split(self, total: int) -> tuple[int, ...]:
        """Split a smaller batch in the proportion of the shares."""
        return split_batch(total, self.shares)

    def rebalance(self) -> None:
        """Go on to the next epoch's shares, if there are others."""
        if self.rebalanced and len(self.epochs) > 1:
            self.epochs.pop(0)
        self.rebalanced.append(self.shares)


def samplers(
    length: int, shares: tuple[int, ...], **options: Any
) -> list[BalancedSampler]:
    """Return the sampler of each rank."""
    return [
        BalancedSampler(range(length), OneRank(rank, [shares]), **options)
        for rank in range(len(shares))
    ]


def global_batches(ranks: Sequence[Iterator[list[int]]]) -> list[list[int]]:
    """Return what the ranks trained on in each step; all must make as many steps."""
    return [flat(step) for step in zip(*ranks, strict=True)]


def flat(batches: Iterable[list[int]]) -> list[int]:
    """Return the indices of all batches in one list."""
    return list(chain.from_iterable(batches))


def permutation(length: int, seed: int) -> list[int]:
    """Return the order in which one process with this seed sees the data."""
    generator = torch.Generator().manual_seed(seed)
    return [int(index) for index in torch.randperm(length, generator=generator)]


shares_of_a_world = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def test_each_rank_gets_its_run_of_each_batch() -> None:
    """A batch of 8 by 3:1 gives rank 0 its first six samples, rank 1 the others."""
    both = samplers(16, (6, 2), shuffle=False)
    assert [list(rank) for rank in both] == [
        [[0, 1, 2, 3, 4, 5], [8, 9, 10, 11, 12, 13]],
        [[6, 7], [14, 15]],
    ]


def test_a_smaller_last_batch_is_split_as_well() -> None:
    """Of 8, 8 and 4 samples by 5:2:1, the last are split into 2, 1 and 1.

    If one sample is left, the batch before gives two: 8, 6 and 3 samples.
    """
    three = samplers(20, (5, 2, 1), shuffle=False)
    assert [list(rank)[-1] for rank in three] == [[16, 17], [18], [19]]
    short = samplers(17, (5, 2, 1), shuffle=False)
    assert [list(rank)[1:] for rank in short] == [
        [[8, 9, 10, 11], [14]],
        [[12], [15]],
        [[13], [16]],
    ]


@given(
    shares_of_a_world,
    st.integers(1, 60),
    st.integers(0, 9),
    st.sampled_from([{}, {"shuffle": False}]),
)
def test_every_index_comes_once_in_an_epoch_over_all_ranks(
    shares: tuple[int, ...], length: int, seed: int, options: dict[str, bool]
) -> None:
    """All ranks make as many steps, each with a sample or more, over all of the data.

    But for a last batch that borrows, the batches are those of one process.
    """
    batch = sum(shares)
    assume(-(-length // batch) * len(shares) <= length)
    ranks = samplers(length, shares, seed=seed, **options)
    yielded = [list(rank) for rank in ranks]
    assert all(indices for rank in yielded for indices in rank)
    assert [len(rank) for rank in ranks] == [-(-length // batch)] * len(shares)
    steps = global_batches([iter(rank) for rank in yielded])
    whole = list(range(length)) if options else permutation(length, seed)
    assert flat(steps) == whole
    if length % batch == 0 or length % batch >= len(shares):
        cut = [whole[n : n + batch] for n in range(0, length, batch)]
        assert steps == cut
    for rank, share in zip(yielded, shares, strict=True):
        whole_steps = [
            i for i, step in zip(rank, steps, strict=True) if len(step) == batch
        ]
        assert all(len(indices) == share for indices in whole_steps)


@given(shares_of_a_world, st.integers(1, 60))
def test_a_smaller_last_batch_can_be_dropped(
    shares: tuple[int, ...], length: int
) -> None:
    """drop_last=True leaves the whole batches of one process."""
    batch = sum(shares)
    assume(length >= batch)
    ranks = samplers(length, shares, drop_last=True)
    whole = permutation(length, 0)
    assert global_batches([iter(rank) for rank in ranks]) == [
        whole[n : n + batch] for n in range(0, length - batch + 1, batch)
    ]


def test_the_order_is_that_of_torchs_distributed_sampler() -> None:
    """Seed and epoch shuffle as in torch, so that runs can be compared."""
    for epoch in (0, 1, 7):
        data = TensorDataset(torch.arange(40))
        torchs: DistributedSampler[Any] = DistributedSampler(data, 1, 0, seed=5)
        torchs.set_epoch(epoch)
        ranks = samplers(40, (3, 1), seed=5)
        for rank in ranks:
            rank.set_epoch(epoch)
        assert flat(global_batches([iter(rank) for rank in ranks])) == list(torchs)


def test_each_iteration_is_the_next_epoch_unless_another_is_set() -> None:
    """Without set_epoch the data are shuffled anew, after a break as well."""
    [alone] = samplers(12, (4,), seed=3)
    orders = {epoch: permutation(12, 3 + epoch) for epoch in range(8)}

    def order() -> list[int]:
        return flat(alone)

    assert order() == orders[0]
    assert next(iter(alone)) == orders[1][:4]
    assert order() == orders[2]
    for epoch in (2, 2, 7, 3):
        alone.set_epoch(epoch)
        assert order() == orders[epoch]
    assert order() == orders[4]


def test_shares_change_between_epochs_only() -> None:
    """Each epoch rebalances once, before it reads the shares, and then keeps them.

    A sampler of other data may rebalance the session meanwhile; the smaller last batch
    is still split by the shares of the epoch's start.
    """
    session = OneRank(0, [(6, 2), (2, 6), (4, 4)])
    balanced = BalancedSampler(range(20), session)
    epoch = iter(balanced)
    assert session.rebalanced == []
    sizes = [len(next(epoch))]
    assert session.rebalanced == [(6, 2)]
    session.rebalance()
    sizes += [len(indices) for indices in epoch]
    assert sizes == [6, 6, 3]
    assert [len(indices) for indices in balanced] == [4, 4, 2]
    assert session.rebalanced == [(6, 2), (2, 6), (4, 4)]


def test_the_order_does_not_depend_on_the_default_device() -> None:
    """The indices are shuffled on the CPU under any default device of torch."""
    [alone] = samplers(12, (4,))
    with torch.device("meta"):
        indices = flat(alone)
    assert indices == permutation(12, 0)


LOADERS = """
import json, sys
from types import SimpleNamespace
from torch.utils.data import DataLoader
from gpumap.mapping.batches import split_batch
from gpumap.runtime.sampler import BalancedSampler

calls = []
session = SimpleNamespace(
    rank=int(sys.argv[1]), shares=(3, 1), rebalance=lambda: calls.append(1),
    split=lambda total: split_batch(total, (3, 1)),
)
workers = {"num_workers": 2, "prefetch_factor": 2, "multiprocessing_context": "fork"}
for options in ({}, workers, {**workers, "persistent_workers": True}):
    sampler = BalancedSampler(range(30), session, seed=5)
    loader = DataLoader(range(30), batch_sampler=sampler, collate_fn=list, **options)
    calls.clear()
    epochs = [list(loader) for _ in range(3)]
    state, taken = None, []
    for steps, batch in enumerate(loader, 1):
        taken.append(batch)
        if steps == 2:
            state = sampler.state_dict(steps)
            break
    resumed = BalancedSampler(range(30), session, seed=5)
    resumed.load_state_dict(state)
    loader = DataLoader(range(30), batch_sampler=resumed, collate_fn=list, **options)
    epochs += [taken + list(loader), list(loader)]
    print(json.dumps([len(loader), len(calls), *epochs]))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loader_yields_the_same_with_workers_that_end_or_persist(rank: int) -> None:
    """Three epochs, one that is stopped after 2 steps and resumed, and the next one.

    The session is rebalanced once for each of the six iterations.
    """
    # Workers are forked in a program of their own; two are more than some machines'
    # CPUs, of which torch warns.
    done = run_python("-W", "ignore", "-c", LOADERS, str(rank))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 3
    start, end = ((0, 3), (3, 4))[rank]
    cuts = list(pairwise([*range(0, 30, 4), 30]))
    for steps, rebalanced, *epochs in lines:
        assert (steps, rebalanced) == (8, 6)
        for epoch, batches in enumerate(epochs):
            order = permutation(30, 5 + epoch)
            whole = [order[a:b] for a, b in cuts]
            assert batches[:-1] == [step[start:end] for step in whole[:-1]]
            # The last two samples are one for each rank.
            assert batches[-1] == [whole[-1][rank]]


@given(
    st.integers(1, 3),
    st.integers(3, 9),
    st.integers(9, 60),
    st.integers(0, 9),
    st.data(),
)
def test_a_resumed_epoch_has_exactly_the_rest(
    world: int, batch: int, length: int, epoch: int, data: st.DataObject
) -> None:
    """Steps before and after resuming are the epoch, though the shares have changed."""
    assume(-(-length // batch) * world <= length)
    speeds = st.lists(st.integers(1, 9), min_size=world, max_size=world)
    first, then = (split_batch(batch, data.draw(speeds)) for _ in range(2))
    before = samplers(length, first, seed=1)
    steps = data.draw(st.integers(0, len(before[0])))
    ahead = data.draw(st.integers(steps, len(before[0])))
    trained: list[list[list[int]]] = []
    for rank in before:
        rank.set_epoch(epoch)
        batches = iter(rank)
        trained.append([next(batches) for _ in range(ahead)][:steps])
    states = [json.loads(json.dumps(rank.state_dict(steps))) for rank in before]
    after = samplers(length, then, seed=1)
    for rank, state in zip(after, states, strict=True):
        rank.load_state_dict(state)
        rank.set_epoch(state["epoch"])
    seen = flat(global_batches([iter(batches) for batches in trained]))
    if steps == len(before[0]):
        assert seen == permutation(length, 1 + epoch)
        seen, epoch = [], epoch + 1
    rest = global_batches([iter(rank) for rank in after])
    assert seen + flat(rest) == permutation(length, 1 + epoch)
    assert flat(global_batches([iter(rank) for rank in after])) == permutation(
        length, 2 + epoch
    )


def test_a_state_says_where_the_next_iteration_goes_on() -> None:
    """Before an epoch, in it by what was yielded, and at its end: the next epoch."""
    [alone] = samplers(10, (4,))

    def place() -> tuple[int, int]:
        state = alone.state_dict()
        return state["epoch"], state["step"]

    assert place() == (0, 0)
    epoch = iter(alone)
    assert place() == (0, 0)
    next(epoch)
    assert place() == (0, 1)
    next(epoch)
    assert (place(), alone.state_dict(1)["step"]) == ((0, 2), 1)
    list(epoch)
    assert place() == (1, 0)
    next(iter(alone))
    assert place() == (1, 1)
    alone.set_epoch(5)
    assert place() == (5, 0)
    stored = {**alone.state_dict(), "step": 1, "samples": 4}
    alone.load_state_dict(stored)
    assert place() == (5, 1)
    alone.set_epoch(5)
    epoch = iter(alone)
    next(epoch)
    assert (place(), alone.state_dict(0)["step"]) == ((5, 2), 1)
    alone.load_state_dict(stored)
    next(epoch)
    assert place() == (5, 1)
    alone.set_epoch(6)
    assert place() == (6, 0)


def test_steps_that_were_not_yielded_cannot_be_stored() -> None:
    """The error says how many there are, and from where they count."""
    [alone] = samplers(20, (4,))
    next(iter(alone))
    hint = (
        "Count the steps of this iteration: for steps, batch in enumerate(loader, 1)."
    )
    with pytest.raises(SessionError) as caught:
        alone.state_dict(2)
    assert caught.value.args == (
        "steps=2 were not all yielded.",
        "This iteration over the sampler has yielded 1 step.",
        hint,
        (),
    )
    with pytest.raises(SessionError, match="steps=-1 were not all"):
        alone.state_dict(-1)
    alone.load_state_dict(alone.state_dict())
    batches = iter(alone)
    next(batches)
    next(batches)
    with pytest.raises(SessionError) as caught:
        alone.state_dict(3)
    assert caught.value.seen == (
        "This iteration over the sampler has yielded 2 steps, from step 1 on."
    )


@pytest.mark.parametrize(
    ("other", "seen"),
    [
        ({"seed": 2}, "It has seed 1; here is seed 2."),
        ({"shuffle": False}, "It has shuffle 1; here is shuffle 0."),
        ({"length": 29}, "It has length 30; here is length 29."),
        (
            {"shares": (2, 3)},
            "It has samples 12, batch 4; here is samples 15, batch 5.",
        ),
    ],
)
def test_a_state_of_other_batches_is_refused(other: dict[str, Any], seen: str) -> None:
    """Another seed, data set or batch is refused; the sampler stays as it was."""
    options: dict[str, Any] = {"length": 30, "shares": (3, 1), "seed": 1}
    [first, _] = samplers(**options)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    [second, _] = samplers(**{**options, **other})
    with pytest.raises(SessionError) as caught:
        second.load_state_dict(first.state_dict())
    assert caught.value.args == (
        "the state is of other batches than this sampler's.",
        seen,
        "Go on with the same data, batch, seed and options, or start a new epoch: "
        "sampler.set_epoch(1).",
        (),
    )
    assert second.state_dict()["step"] == 0


def test_an_epoch_that_is_cut_otherwise_cannot_go_on() -> None:
    """Where the last batches differ between 3 ranks and 1, only the others resume."""
    three, one = samplers(17, (5, 2, 1)), samplers(17, (8,))
    batches = iter(three[0])
    next(batches)
    one[0].load_state_dict(three[0].state_dict())
    next(batches)
    with pytest.raises(SessionError, match="It has samples 14; here is samples 16"):
        one[0].load_state_dict(three[0].state_dict())


def test_what_is_not_a_state_is_refused() -> None:
    """The error names the entries that were found."""
    [alone] = samplers(20, (4,))
    with pytest.raises(SessionError) as caught:
        alone.load_state_dict({"epoch": 1, "weights": 2})
    assert caught.value.args == (
        "this is not the state of a BalancedSampler.",
        "It has 'epoch', 'weights'.",
        "Pass what state_dict() has returned.",
        (),
    )
    with pytest.raises(SessionError, match="It has no entries"):
        alone.load_state_dict({})


def test_data_that_are_too_few_are_refused_at_once() -> None:
    """A sampler that could not give each rank a sample is not made."""
    with pytest.raises(SessionError, match="2 samples cannot be shared by 3 ranks"):
        samplers(2, (2, 2, 2))
    with pytest.raises(SessionError, match="drop_last=True leaves none of 5 samples"):
        samplers(5, (2, 2, 2), drop_last=True)


def test_a_sampler_needs_a_session_with_a_balance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a session, or in one without a balance, the error says what to write."""
    for name in ("RANK", "WORLD_SIZE", "GPUMAP_REHEARSAL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SessionError, match="no session is open"):
        BalancedSampler(range(8))
    with gpumap.session(), pytest.raises(SessionError, match="without balance="):
        BalancedSampler(range(8))


def test_a_sampler_takes_the_shares_of_the_open_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a session as an argument, the one that is open gives rank and shares."""
    opened = OneRank(1, [(6, 2)])
    monkeypatch.setattr(sampler, "current", lambda: opened)
    assert next(iter(BalancedSampler(range(16), shuffle=False))) == [6, 7]

"""A step on unequal batches is that of one process on the whole batch."""

import copy
import gc
import io
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import (
    _hook_then_optimizer,
    _OptimizerHookState,
)

import gpumap
from gpumap.runtime.pace import Pace
from gpumap.runtime.weights import Weights, refuse_options
from helpers.accelerator import accelerator
from helpers.jobs import run

# The first test may have to build the pretended accelerator.
pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).parents[1] / "helpers/weighed.py"

SHARES = ["3,1", "5,2,1", "1,1"]
EXACT = [
    "usual",
    "single",
    "accumulated",
    "views",
    "accumulated_views",
    "buckets",
    "tuple",
    "dataclass",
    "in_place",
    "chained",
    "tokens",
    "other_batch",
    "own_hook",
    "hidden_beside_a_tensor",
    "kept_by_the_model",
    "features_by_a_hook",
    "penalty",
    "penalty_own_hook",
    "accumulated_own_hook",
    "without_no_sync",
    "without_no_sync_views",
]
# The pretended accelerator has no autocast, pinned memory, or sparse tensors.
EXACT_ON_CPU = [*EXACT, "checkpointed", "unused", "static", "sparse"]


@pytest.fixture(autouse=True)
def leak_guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear the launcher's variables; assert that no group is left."""
    for name in ("RANK", "WORLD_SIZE", "GPUMAP_REHEARSAL"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert not dist.is_initialized()


def trained(cases: Sequence[str], shares: str, *, on_cpu: bool) -> str:
    """Return what the ranks of one job print of some cases."""
    every = {} if on_cpu else accelerator()
    ranks = shares.count(",") + 1
    ended = run(f"{shares} {' '.join(cases)}", ranks, script=SCRIPT, every=every)
    out = "\n".join(rank.out for rank in ended)
    assert [rank.code for rank in ended] == [0] * ranks, out
    return out


def apart(case: str, out: str) -> float:
    """Return how far the furthest rank is from one process; all must have trained."""
    found = re.findall(rf"^{case}: apart=(\S+) moved=(\S+)$", out, re.MULTILINE)
    assert len(found) == out.count("reduced ")
    assert all(float(moved) > 0.1 for _, moved in found)
    return max(float(how_far) for how_far, _ in found)


@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("shares", SHARES)
def test_steps_are_those_of_one_process(shares: str, *, on_cpu: bool) -> None:
    """After 12 batches, parameters are within 1e-6 of one process on whole batches."""
    cases = EXACT_ON_CPU if on_cpu else EXACT
    out = trained(cases, shares, on_cpu=on_cpu)
    found = {case: apart(case, out) for case in cases}
    assert {case: far for case, far in found.items() if not far < 1e-6} == {}


@pytest.mark.parametrize("shares", ["3,1", "5,2,1"])
def test_without_weights_unequal_batches_are_another_training(shares: str) -> None:
    """DistributedDataParallel by itself gives other parameters."""
    out = trained(["unweighed"], shares, on_cpu=True)
    assert apart("unweighed", out) > 0.01


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_hook_of_the_users_reduces_each_bucket(*, on_cpu: bool) -> None:
    """A communication hook is called for each bucket; fp16's errors are fp16's."""
    out = trained(["own_hook", "half_hook"], "3,1", on_cpu=on_cpu)
    assert out.count("reduced [0, 1]") == 2
    assert 1e-6 < apart("half_hook", out) < 0.02


class Net(nn.Module):
    """A linear layer, whose output is put into something."""

    def __init__(self, put: Callable[[torch.Tensor], Any] = lambda out: out) -> None:
        """Make the layer."""
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.put = put

    def forward(self, *given: Any, **named: Any) -> Any:
        """Return the layer's output for the tensor that is given last."""
        return self.put(self.layer([*given, *named.values()][-1]))


def backward(tensor: Any) -> None:
    """Back-propagate the mean of a tensor."""
    tensor.mean().backward()


STEPPING: Any = cast("Any", _OptimizerHookState)(SimpleNamespace(step_param=None))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mixed_precision", object()),
        ("skip_all_reduce_unused_params", True),
        ("delay_all_reduce_named_params", [("weight", None)]),
    ],
)
def test_options_that_cannot_be_exact_are_refused(option: str, value: object) -> None:
    """Options of DDP that reduce without the hook are refused; unset, they are not."""
    refuse_options({option: None, "static_graph": True})
    with pytest.raises(gpumap.SessionError) as caught:
        refuse_options({option: value})
    assert caught.value.happened == f"{option} cannot be used with unequal batches."
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("join", lambda m: m.join()),
        (
            "_register_builtin_comm_hook",
            lambda m: m._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),  # noqa: SLF001 - what a user may call
        ),
        (
            "_register_fused_optim",
            lambda m: m._register_fused_optim(torch.optim.SGD, 0.1),  # noqa: SLF001 - what a user may call
        ),
        (
            "_register_fused_optim",
            lambda m: m.register_comm_hook(
                None,
                _hook_then_optimizer(allreduce_hook, STEPPING),
            ),
        ),
    ],
    ids=["join", "built-in hook", "fused optimizer", "hook with an optimizer"],
)
def test_methods_that_cannot_be_exact_are_refused(
    name: str, call: Callable[[Any], None]
) -> None:
    """Methods of DDP with which the gradient would not be exact say so."""
    with gpumap.ddp_session(Net()) as m:
        weights = Weights(m, 4)
        with pytest.raises(gpumap.SessionError) as caught:
            call(m)
        assert caught.value.happened == f"{name} cannot be used with unequal batches."
        weights.remove()
        assert name not in vars(m)


def test_a_second_hook_is_refused() -> None:
    """DDP's register_comm_hook takes one hook, also with weights."""
    with gpumap.ddp_session(Net()) as m:
        Weights(m, 4)
        hook: Any = lambda state, bucket: allreduce_hook(state, bucket)  # noqa: E731, PLW0108 - another than the default
        m.register_comm_hook(None, hook)
        with pytest.raises(gpumap.SessionError, match="a second communication hook"):
            m.register_comm_hook(None, hook)


def test_a_gradient_of_a_gradient_is_refused() -> None:
    """create_graph=True is an error in words, since it would not be weighed."""
    with gpumap.ddp_session(Net()) as m:
        Weights(m, 4)
        with pytest.raises(gpumap.SessionError, match="differentiated again"):
            torch.autograd.grad(
                m(torch.ones(1, 3)).sum(), m.module.layer.weight, create_graph=True
            )


class Hidden:
    """An object in which no tensors are looked for."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Keep a tensor."""
        self.tensor = tensor


def test_gradients_that_cannot_be_weighed_are_an_error() -> None:
    """A backward from tensors that are not found among the outputs is an error."""
    with gpumap.ddp_session(Net(Hidden)) as m:
        Weights(m, 4)
        with pytest.raises(gpumap.SessionError, match="no call of the wrapped model"):
            backward(m(torch.ones(1, 3)).tensor)


class Halves(nn.Module):
    """Two layers, one of which a call uses."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        """Return one layer's output."""
        out: torch.Tensor = self.layers[which](x)
        return out


def test_a_call_that_counts_after_others_were_reduced_is_an_error() -> None:
    """Of calls that share no parameters, the last could come too late to count."""
    with gpumap.ddp_session(Halves(), bucket_cap_mb=1e-5) as m:
        Weights(m, 4)
        x = torch.ones(1, 3)
        backward(m(x, 0) + m(x, 1))  # DDP makes small buckets after its first step
        with pytest.raises(gpumap.SessionError, match="counts too late"):
            backward(m(x, 0) + m(x, 1))


@pytest.mark.parametrize(
    ("call", "count", "said"),
    [
        (lambda m: m(), None, "with an unknown number of samples"),
        (lambda m: m(torch.ones(0, 3)), None, "with 0 samples"),
        (lambda m: m(torch.ones(1, 3)), lambda *_: 2.0, "with 2.0 samples"),
        (lambda m: m(torch.ones(1, 3)), lambda *_: True, "with True samples"),
    ],
    ids=["no tensor", "no samples", "a float", "a bool"],
)
def test_a_number_of_samples_that_cannot_be_is_an_error(
    call: Callable[[Any], Any], count: Any, said: str
) -> None:
    """The samples of a call are a whole number, 1 or more."""
    given = Net()
    given.forward = lambda *x: given.layer(*x or [torch.ones(1, 3)])  # type: ignore[method-assign]
    with gpumap.ddp_session(given) as m:
        Weights(m, 4, count=count)
        with pytest.raises(gpumap.SessionError, match=said):
            call(m)
        with torch.no_grad():
            call(m)


def test_a_count_may_be_a_tensor_of_one_whole_number() -> None:
    """What can be used as an index is a number of samples, also numpy's integers."""
    told: list[int] = []
    with gpumap.ddp_session(Net()) as m:
        Weights(m, 4, count=lambda *_: torch.tensor(7), computed=told.append)
        backward(m(torch.ones(2, 3)))
    assert told == [7]


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: m(x),
        lambda m, x: m(torch.tensor(7), [x]),
        lambda m, x: m({"a": None, "b": x}),
        lambda m, x: m(flag=True, x=x),
    ],
    ids=["alone", "after a scalar", "in a mapping", "by name"],
)
def test_samples_are_the_first_dimension_of_the_first_tensor(
    call: Callable[[Any, torch.Tensor], Any],
) -> None:
    """What has a first dimension first, wherever it is, gives the number of samples."""
    told: list[int] = []
    given = Net()
    layer = given.layer
    given.forward = lambda *_, **__: layer(torch.ones(1, 3))  # type: ignore[method-assign]
    with gpumap.ddp_session(given) as m:
        Weights(m, 4, computed=told.append)
        backward(call(m, torch.ones(3, 3)))
        backward(m(torch.ones(2, 3)))
    assert told == [3, 2]


@pytest.mark.parametrize("calls_before", [0, 1])
def test_an_inputs_own_gradient_is_not_weighed(calls_before: int) -> None:
    """The gradient of an input is the plain model's, also after a call of 7 samples."""
    net = Net()
    plain = torch.ones(2, 3, requires_grad=True)
    backward(net(plain))
    weighed = torch.ones(2, 3, requires_grad=True)
    with gpumap.ddp_session(net) as m:
        Weights(m, 16)
        with m.no_sync():
            for _ in range(calls_before):
                backward(m(torch.ones(7, 3)))
        backward(m([weighed][0]))
    assert plain.grad is not None
    torch.testing.assert_close(weighed.grad, plain.grad)


class Mapped(dict[str, Any]):
    """A mapping of a type of its own."""


class Output(dict[str, Any]):
    """A mapping that forbids update(), as transformers' ModelOutput does."""

    def update(self, *_: Any, **__: Any) -> None:
        """Refuse."""
        raise NotImplementedError


@pytest.mark.parametrize(
    ("put", "take"),
    [
        (lambda t: [t, 1], lambda out: out[0]),
        (lambda t: (None, t), lambda out: out[1]),
        (lambda t: Mapped(a={"b": t}), lambda out: out["a"]["b"]),
        (lambda t: Output(a=t), lambda out: out["a"]),
        (lambda t: MappingProxyType({"a": t}), lambda out: out["a"]),
        (lambda t: t.max(dim=1), lambda out: out.values),
    ],
    ids=["list", "tuple", "mapping", "without update", "read-only", "torch's own"],
)
def test_outputs_keep_their_types(
    put: Callable[[torch.Tensor], Any], take: Callable[[Any], torch.Tensor]
) -> None:
    """An output has the type that the model gives it, and is found and weighed."""
    net = Net(put)
    x = torch.rand(2, 3)
    expected = net(x)
    with gpumap.ddp_session(net) as m:
        Weights(m, 16)
        out = m(x)
        assert type(out) is type(expected)
        assert torch.equal(take(out), take(expected))
        backward(take(out))
    assert net.layer.weight.grad is not None


class Fixed(Mapping[str, Any]):
    """A mapping of one item that cannot be modified."""

    def __init__(self, item: Any) -> None:
        """Keep the item."""
        self.item = item

    def __getitem__(self, _: str) -> Any:
        """Return the item."""
        return self.item

    def __iter__(self) -> Iterator[str]:
        """Yield the name of the item."""
        return iter(["item"])

    def __len__(self) -> int:
        """Return 1."""
        return 1


def test_a_mapping_that_cannot_be_modified_stays_as_it_is() -> None:
    """Beside a tensor it is the model's own; alone it is an error, as in any object."""
    kept: list[Any] = []

    def put(out: torch.Tensor) -> Any:
        kept.append(Fixed(out))
        return kept[-1] if len(kept) > 1 else (out, kept[-1])

    with gpumap.ddp_session(Net(put)) as m:
        Weights(m, 16)
        scores, fixed = m(torch.ones(2, 3))
        assert fixed is kept[0]
        backward(scores + fixed["item"])
        with pytest.raises(gpumap.SessionError, match="no call of the wrapped model"):
            backward(m(torch.ones(2, 3))["item"])


def test_samples_are_found_in_a_mapping_that_cannot_be_modified() -> None:
    """Arguments are only looked at, so that any mapping will do."""
    told: list[int] = []
    given = Net()
    layer: Any = given.layer
    forward: Any = lambda batch: layer(batch["item"])  # noqa: E731 - a method
    given.forward = forward  # type: ignore[method-assign]
    with gpumap.ddp_session(given) as m:
        Weights(m, 4, computed=told.append)
        backward(m(Fixed(torch.ones(3, 3))))
    assert told == [3]


def thrown_away(m: Any, x: torch.Tensor) -> None:
    """Accumulate a gradient, and throw it away."""
    with m.no_sync():
        backward(m(x))
    m.zero_grad()


def taken_out(m: Any, x: torch.Tensor) -> None:
    """Have a gradient returned that is not accumulated."""
    with m.no_sync():
        torch.autograd.grad(m(x).mean(), list(m.parameters()))


@pytest.mark.parametrize("before", [thrown_away, taken_out])
def test_calls_whose_gradients_were_thrown_away_do_not_count(
    before: Callable[[Any, torch.Tensor], None],
) -> None:
    """A call that comes when no parameter has a gradient is the first to count."""
    net, x = Net(), torch.rand(2, 3)
    backward(net(x))
    plain = copy.deepcopy(net.layer.weight.grad)
    net.zero_grad()
    with gpumap.ddp_session(net) as m:
        Weights(m, 16)
        before(m, torch.rand(6, 3))
        backward(m(x))
    torch.testing.assert_close(net.layer.weight.grad, plain)


def test_a_call_of_several_outputs_counts_once() -> None:
    """Of 2 and 6 samples each of the 8 has the same weight, by however many outputs."""
    net = Net(lambda out: (out, out.square()))
    layer, few, many = net.layer, torch.rand(2, 3), torch.rand(6, 3)
    backward(layer(few) + layer(few).square())
    first = copy.deepcopy(layer.weight.grad)
    net.zero_grad()
    backward(layer(many))
    expected = (2 * first + 6 * layer.weight.grad) / 8  # type: ignore[operator]
    net.zero_grad()
    with gpumap.ddp_session(net) as m:
        Weights(m, 5)
        with m.no_sync():
            scores, squares = m(few)
            backward((scores + squares) / 2)
        backward(m(many)[0] / 2)
    torch.testing.assert_close(layer.weight.grad, expected)


def test_what_is_not_trained_is_passed_on_untouched() -> None:
    """Without gradients an output is the model's own, and nothing is counted."""
    kept: list[Any] = []

    def put(out: torch.Tensor) -> Mapping[str, torch.Tensor]:
        kept.append({"out": out})
        return kept[-1]  # type: ignore[no-any-return]

    with gpumap.ddp_session(Net(put)) as m:
        Weights(m, 4)
        with torch.no_grad():
            assert m(torch.ones(0, 3)) is kept[0]


def test_after_remove_gradients_are_ddps_own() -> None:
    """After remove() gradients are reduced and not multiplied, and no hook is left."""
    net = Net()
    x = torch.rand(2, 3)
    backward(net(x))
    plain = copy.deepcopy(net.layer.weight.grad)
    net.zero_grad()
    told: list[int] = []
    with gpumap.ddp_session(net) as m:
        before = dict(vars(m))
        weights = Weights(m, 16, computed=told.append)
        weights.remove()
        assert vars(m).keys() == before.keys()
        backward(m(x))
    assert torch.equal(net.layer.weight.grad, plain)  # type: ignore[arg-type]
    assert told == []


def test_a_copy_of_the_model_has_nothing_of_it() -> None:
    """The trained model itself has no hooks, and can be copied and saved."""
    with gpumap.ddp_session(Net()) as m:
        Weights(m, 4)
        backward(m(torch.ones(2, 3)))
        assert not m.module._forward_hooks  # noqa: SLF001 - where torch keeps them
        assert not m.module._forward_pre_hooks  # noqa: SLF001 - as above


def saved(m: nn.Module) -> Any:
    """Return what torch.load makes of what torch.save has made of a model."""
    file = io.BytesIO()
    torch.save(m, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved])
def test_a_copy_of_the_wrapped_model_has_nothing_of_it(
    copied: Callable[[Any], Any],
) -> None:
    """It can be copied and saved as without weights, and is weighed as before."""
    told: list[int] = []
    with gpumap.ddp_session(nn.Linear(3, 2)) as m:
        before = vars(m).keys() - {"reducer", "logger"}
        pace = Pace(m)
        m.register_forward_hook(flattened)
        Weights(m, 4, computed=told.append)
        backward(m(torch.ones(2, 3)))
        other = copied(m)
        assert before <= vars(other).keys() <= vars(m).keys() | {"broadcast_buffers"}
        assert "register_comm_hook" not in vars(other)
        assert not other._forward_pre_hooks  # noqa: SLF001 - where torch keeps them
        assert list(other._forward_hooks.values()) == [flattened]  # noqa: SLF001 - as above
        with torch.no_grad():
            assert torch.equal(other(torch.ones(2, 3)), m(torch.ones(2, 3)))
        assert told == [2]
        backward(m(torch.ones(3, 3)))
        assert told == [2, 3]
        pace.remove()


def flattened(_: nn.Module, __: Any, out: torch.Tensor) -> torch.Tensor:
    """Return an output in one dimension; a hook of the user's."""
    return out.flatten()


def test_weights_keep_no_model_alive() -> None:
    """After a session, whoever keeps the weights does not keep the wrapped model."""
    with gpumap.ddp_session(Net()) as m:
        weights = Weights(m, 4)
        backward(m(torch.ones(2, 3)))
        wrapped = weakref.ref(m)
    del m
    gc.collect()
    assert wrapped() is None
    weights.remove()

"""Training on unequal batches, beside one process: `python weighed.py SHARES CASE…`.

SHARES are the ranks' parts of a batch, as 3,1. For each case a rank prints how far its
parameters are from those of one process that has trained on the whole batches.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.utils.checkpoint import checkpoint

import gpumap
from gpumap.runtime.samples import Count
from gpumap.runtime.weights import Weights

RANK = int(os.environ.get("RANK", "0"))
# Tools that look for examples import this without arguments.
ARGUMENTS = sys.argv[1:] if __name__ == "__main__" else ["1,1"]
SHARES = [int(share) for share in ARGUMENTS[0].split(",")]
BATCH = 4 * sum(SHARES)
# The last batch is smaller, and not in the ranks' proportions.
LENGTHS = [BATCH, BATCH, BATCH, sum(SHARES) + 2, BATCH, sum(SHARES) + 1]


def say(*words: object) -> None:
    """Print a line at once, so that lines of several ranks do not mix."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


@dataclass
class Scores:
    """An output with its tensors inside."""

    scores: torch.Tensor
    loss: torch.Tensor


class Both(NamedTuple):
    """An output of two tensors, one made of the other."""

    scores: torch.Tensor
    loss: torch.Tensor


class Model(nn.Module):
    """A small model, with a layer that no loss uses."""

    def __init__(self) -> None:
        """Make the layers, alike in all ranks."""
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.unused = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        scores: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return scores


class Checkpointed(Model):
    """The same, computed twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        scores: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return scores


class Losing(Model):
    """The same, with a loss, in what it is told to put both into."""

    def __init__(self, put: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        """Make the model."""
        super().__init__()
        self.put = put

    def forward(self, x: torch.Tensor) -> Any:
        """Return the scores and their loss."""
        scores = super().forward(x)
        return self.put(scores, scores.square().mean())


class Hiding(Model):
    """The same, whose second output holds a tensor that cannot be found in it."""

    def forward(self, x: torch.Tensor) -> Any:
        """Return the scores, and a distribution around them."""
        scores = super().forward(x)
        return scores, torch.distributions.Normal(scores, 1.0)


class Keeping(Model):
    """The same, which keeps a loss of its own beside its output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        scores = super().forward(x)
        self.kept = scores.square().mean()
        return scores


class Table(Model):
    """A model with sparse gradients."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.rows = nn.Embedding(5, 4, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        found: torch.Tensor = self.rows((x[:, 0] * 5).long() % 5)
        return super().forward(found)


def usual(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a mean over samples, in which they do not count alike."""
    loss: torch.Tensor = (m(x) - 3 * x).pow(4).sum(1).mean()
    return loss


def of_both(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a loss of two outputs, one of which was made of the other."""
    out: Any = m(x)
    both = out if isinstance(out, tuple) else out["both"]
    scores, loss = both if isinstance(both, tuple) else (both.scores, both.loss)
    total: torch.Tensor = loss + (scores - 3 * x).pow(4).mean()
    return total


def tokens(x: torch.Tensor) -> torch.Tensor:
    """Return how many tokens each sample has, from 1 to 3."""
    return (x[:, 0] * 3).long() + 1


def of_tokens(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a mean over tokens, of which the samples have different numbers."""
    weight = tokens(x)
    loss: torch.Tensor = (m(x) - 3 * x).pow(4).sum(1).mul(weight).sum() / weight.sum()
    return loss


def count_tokens(args: tuple[Any, ...], _: Mapping[str, object]) -> int:
    """Return the number of tokens of a call."""
    return int(tokens(args[0]).sum())


def in_place(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a loss for which the output is modified."""
    loss: torch.Tensor = (m(x).relu_() - 3 * x).pow(4).mean()
    return loss


def chained(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a loss of the model's output for its own output."""
    return usual(m, m(x))


def inside(m: nn.Module) -> Any:
    """Return the model itself, wrapped or not."""
    return getattr(m, "module", m)


def hidden(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a loss of an output and of a tensor that another output hides."""
    scores, spread = m(x)
    loss: torch.Tensor = (scores - 3 * x).pow(4).mean() - spread.log_prob(9 * x).mean()
    return loss


def kept(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a loss of the output and of what the model has kept."""
    loss: torch.Tensor = usual(m, x) + inside(m).kept
    return loss


def of_features(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a loss of the output and of features that a hook takes out."""
    features: list[torch.Tensor] = []
    hook = inside(m).first.register_forward_hook(lambda *of: features.append(of[2]))
    loss = usual(m, x)
    hook.remove()
    return loss + features[0].square().mean()


def penalized(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a loss with a penalty on the parameters that it trains."""
    trained = [p for p in m.parameters() if p.requires_grad]
    penalty = torch.stack([p.square().sum() for p in trained]).sum()
    return usual(m, x) + 0.1 * penalty


@dataclass(frozen=True)
class Case:
    """How one of the trainings is done."""

    make: Callable[[], nn.Module] = Model
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = usual
    calls: int = 1
    reduces_each: bool = False
    batch: int = BATCH
    count: Count | None = None
    weigh: bool = True
    hook: Callable[..., Any] | None = None
    dtype: torch.dtype = torch.float64
    momentum: float = 0.9
    unused: bool = True
    ddp: tuple[tuple[str, Any], ...] = ()


reduced: list[int] = []


def own_hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average as DDP does, but by a reduction of its own, and note the bucket."""
    reduced.append(bucket.index())
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(
        lambda done: done.value()[0] / len(SHARES)
    )
    return future


USUAL = Case()
CASES = {
    "usual": USUAL,
    "single": replace(USUAL, dtype=torch.float32),
    "unweighed": replace(USUAL, weigh=False),
    "accumulated": replace(USUAL, calls=3),
    "views": replace(USUAL, ddp=(("gradient_as_bucket_view", True),)),
    "accumulated_views": replace(
        USUAL, calls=2, ddp=(("gradient_as_bucket_view", True),)
    ),
    "buckets": replace(USUAL, ddp=(("bucket_cap_mb", 1e-4),)),
    "unused": replace(USUAL, unused=False, ddp=(("find_unused_parameters", True),)),
    "static": replace(USUAL, unused=False, ddp=(("static_graph", True),)),
    "hidden_beside_a_tensor": replace(USUAL, make=Hiding, loss=hidden),
    "kept_by_the_model": replace(USUAL, make=Keeping, loss=kept),
    "features_by_a_hook": replace(USUAL, loss=of_features),
    "penalty": replace(USUAL, loss=penalized),
    "penalty_own_hook": replace(USUAL, loss=penalized, hook=own_hook),
    "accumulated_own_hook": replace(USUAL, calls=3, hook=own_hook),
    "without_no_sync": replace(USUAL, calls=2, reduces_each=True),
    "without_no_sync_views": replace(
        USUAL, calls=2, reduces_each=True, ddp=(("gradient_as_bucket_view", True),)
    ),
    "checkpointed": replace(USUAL, make=Checkpointed),
    "tuple": replace(USUAL, make=lambda: Losing(Both), loss=of_both),
    "dataclass": replace(
        USUAL, make=lambda: Losing(lambda *of: {"both": Scores(*of)}), loss=of_both
    ),
    "in_place": replace(USUAL, loss=in_place),
    "chained": replace(USUAL, loss=chained),
    "other_batch": replace(USUAL, batch=7 * BATCH),
    "tokens": replace(USUAL, loss=of_tokens, count=count_tokens),
    "own_hook": replace(USUAL, hook=own_hook, ddp=(("bucket_cap_mb", 1e-4),)),
    "half_hook": replace(USUAL, hook=fp16_compress_hook),
    "sparse": replace(USUAL, make=Table, momentum=0.0),
}


def steps(calls: int) -> list[list[torch.Tensor]]:
    """Return the batches of each step of two epochs."""
    torch.manual_seed(1)
    batches = [torch.rand(length, 4, dtype=torch.float64) for length in LENGTHS] * 2
    return [batches[first : first + calls] for first in range(0, len(batches), calls)]


def part(batch: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a batch, in proportion to its share."""
    bounds = [len(batch) * sum(SHARES[:n]) // sum(SHARES) for n in (RANK, RANK + 1)]
    return batch[bounds[0] : bounds[1]]


def alone(case: Case) -> nn.Module:
    """Train in one process, on all batches of a step at once or one after another."""
    model = made(case)
    optimizer = torch.optim.SGD(model.parameters(), 0.005, momentum=case.momentum)
    for batches in steps(case.calls):
        optimizer.zero_grad()
        wholes = batches if case.reduces_each else [torch.cat(batches)]
        for whole in wholes:
            loss: Any = case.loss(model, whole.to(case.dtype))
            (loss / len(wholes)).backward()
        optimizer.step()
    return model


def together(case: Case) -> nn.Module:
    """Train in all ranks, each on its part."""
    with gpumap.ddp_session(made(case), start_timeout=30, **dict(case.ddp)) as m:
        device = gpumap.current().device
        weights = Weights(m, case.batch, count=case.count) if case.weigh else None
        if case.hook is not None:
            m.register_comm_hook(None, case.hook)
        optimizer = torch.optim.SGD(m.parameters(), 0.005, momentum=case.momentum)
        for batches in steps(case.calls):
            optimizer.zero_grad()
            for number, batch in enumerate(batches, 1):
                reduces = case.reduces_each or number == len(batches)
                with contextlib.nullcontext() if reduces else m.no_sync():
                    x = part(batch).to(device, case.dtype)
                    loss: Any = case.loss(m, x)
                    (loss / len(batches)).backward()
                with m.no_sync():  # DDP would wait for the backward
                    m(x)  # which does not come, so that this does not count
            optimizer.step()
        if weights is not None:
            weights.remove()
        model: nn.Module = m.module.cpu()
    return model


def made(case: Case) -> nn.Module:
    """Return the model as it is before the training."""
    model = case.make().to(case.dtype)
    model.get_submodule("unused").requires_grad_(requires_grad=not case.unused)
    return model


def furthest(one: nn.Module, other: nn.Module) -> float:
    """Return the largest difference of two models' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def compare(name: str) -> None:
    """Print how far the ranks' model is from the one process's, and from the begin."""
    case = CASES[name]
    model = together(case)
    say(
        f"{name}: apart={furthest(model, alone(case)):.1e}",
        f"moved={furthest(model, made(case)):.1e}",
    )


if __name__ == "__main__":
    for name in ARGUMENTS[1:]:
        compare(name)
    say("reduced", sorted(set(reduced)))

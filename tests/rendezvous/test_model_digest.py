"""What must be alike in the models of all ranks."""

import torch
from torch import nn

from gpumap.rendezvous.likeness import likeness_of
from gpumap.rendezvous.model_digest import Likeness, difference, model_of


def differing(one: nn.Module, other: nn.Module) -> tuple[str, str] | None:
    """Return the first difference of two ranks' models; None where they are alike."""
    first, second = likeness_of(one, {}), likeness_of(other, {})
    if first.digest == second.digest:
        return None
    return difference(model_of(first.rows), second.rows)


def test_models_alike_may_have_other_names_and_values() -> None:
    """Parameter names and values may differ, since DDP averages by position."""
    assert differing(nn.Linear(2, 3), nn.Linear(2, 3)) is None
    one = nn.ModuleDict({"a": nn.Linear(2, 3)})
    other = nn.ModuleDict({"b": nn.Linear(2, 3)})
    assert differing(one, other) is None


def test_the_first_difference_is_named_on_both_sides() -> None:
    """The first difference is named for both: shape, dtype, frozen or missing."""
    a = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    b = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 5))
    assert differing(a, b) == (
        "parameter 1.weight (4, 3) float32",
        "parameter 1.weight (5, 3) float32",
    )
    assert differing(nn.Linear(1, 1), nn.Linear(1, 1).double()) == (
        "parameter weight (1, 1) float32",
        "parameter weight (1, 1) float64",
    )
    frozen = nn.Linear(1, 1)
    frozen.weight.requires_grad = False
    assert differing(nn.Linear(1, 1), frozen) == (
        "parameter weight (1, 1) float32",
        "parameter weight (1, 1) float32, frozen",
    )
    norm = nn.BatchNorm1d(2, track_running_stats=False)
    assert differing(norm, nn.BatchNorm1d(2)) == (
        "no further one",
        "buffer running_mean (2,) float32",
    )
    assert differing(nn.Linear(2, 3), nn.LazyLinear(3)) == (
        "parameter weight (3, 2) float32",
        "parameter weight not initialised float32",
    )


def test_buffers_that_ddp_leaves_to_each_rank_may_differ() -> None:
    """Buffers that DDP does not synchronise, or is told to ignore, may differ."""
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    one.register_buffer("cache", torch.zeros(2))
    other.register_buffer("cache", torch.zeros(3))
    own = {"init_sync": False, "broadcast_buffers": False}
    assert likeness_of(one, own).digest == likeness_of(other, own).digest
    assert likeness_of(one, {}).digest != likeness_of(other, {}).digest
    for model in (one, other):
        model._ddp_params_and_buffers_to_ignore = ["cache"]  # type: ignore[assignment] # noqa: SLF001 - DDP's own
    assert likeness_of(one, {}).digest == likeness_of(other, {}).digest


def test_options_are_compared_by_their_words() -> None:
    """DDP options are compared as text, and objects by the names of their types."""
    options = {"static_graph": True, "bucket_cap_mb": None, "mixed_precision": object()}
    assert likeness_of(nn.Linear(1, 1), options).options == {
        "static_graph": "True",
        "bucket_cap_mb": "None",
        "mixed_precision": "object",
    }


def test_a_very_long_table_fits_into_one_value() -> None:
    """A table of 50,000 rows is cut to fit one value; its digest covers all rows."""
    rows = [f"({n * 7919 % 10007},) float32\tparameter p{n}" for n in range(50_000)]
    packed = model_of(rows)
    assert len(packed.model_dump_json()) < 65_536
    early = [rows[0].replace("float32", "float64"), *rows[1:]]
    assert difference(packed, early) == (
        "parameter p0 (0,) float32",
        "parameter p0 (0,) float64",
    )
    late = [*rows[:-1], rows[-1].replace("float32", "float64")]
    assert Likeness(rows).digest != Likeness(late).digest
    assert difference(packed, late)[0].startswith("something else after its first ")


def test_a_session_without_a_model_has_no_digest() -> None:
    """Without a model the digest is empty, so that it differs from every model's."""
    assert Likeness().digest == ""

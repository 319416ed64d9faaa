"""Two ranks under a budget: bit for bit the plain training, the same collectives, and no byte above the budget."""

from __future__ import annotations

from typing import Any

import pytest
from torch import distributed

from .conftest import Both
from .models import Shared

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

DDP, FSDP, TENSORS = Shared(by="ddp"), Shared(by="fsdp"), Shared(by="tp")

WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"shared": DDP},
    "ddp, planned before": {"shared": DDP, "before": True},
    "ddp, gradients in buckets": {"shared": Shared(by="ddp", views=True)},
    "ddp, accumulating": {"shared": DDP, "accumulate": 2},
    "fsdp": {"shared": FSDP},
    "fsdp, planned before": {"shared": FSDP, "before": True},
    "fsdp in bfloat16": {"shared": Shared(by="fsdp", bf16=True)},
    "fsdp, kept gathered": {"shared": Shared(by="fsdp", reshard=False)},
    "fsdp, root let go": {"shared": Shared(by="fsdp", reshard=True)},
    "fsdp of the root alone": {"shared": Shared(by="fsdp", units="root")},
    "fsdp, accumulating": {"shared": FSDP, "accumulate": 3},
    "fsdp with statistics": {"shared": FSDP, "norm": True},
    "fsdp, grouped": {"shared": Shared(by="fsdp", units="grouped")},
    "fsdp, tied": {"shared": Shared(by="fsdp", units="tied")},
    "fsdp, a part frozen": {"shared": Shared(by="fsdp", units="frozen")},
    "tensor parallel": {"shared": TENSORS},
    "tensor parallel, planned before": {"shared": TENSORS, "before": True},
    "tensor parallel, accumulating": {"shared": TENSORS, "accumulate": 2},
    "tensor parallel with statistics": {"shared": TENSORS, "norm": True},
    "sequence parallel": {"shared": Shared(by="sp")},
}

FIRST = {
    ("ddp, planned before", 0.4),
    ("fsdp, planned before", 0.4),
    ("fsdp in bfloat16", 0.6),
    ("fsdp, kept gathered", 0.8),
    ("fsdp of the root alone", 0.6),
    ("fsdp, accumulating", 0.6),
    ("tensor parallel, planned before", 0.4),
    ("sequence parallel", 0.6),
}
"""What `make test` runs; `make sweep` runs all."""

ROWS = [
    pytest.param(way, share, marks=() if (way, share) in FIRST else pytest.mark.sweep, id=f"{way}, {share:.0%}")
    for way in WAYS
    for share in (0.8, 0.6, 0.4)
]


COLLECTIVE = ("tp", "sp", "fsdp over tp")


def refuse_wrong(found: list[dict[str, Any]], shared: Shared) -> None:
    """Refuse other bits, and other collectives; where replays run any, all ranks run more than in the plain step."""
    for each in found:
        assert each["differ"] == []
        assert each["log"] == found[0]["log"] and each["plain_log"] == found[0]["plain_log"]
        assert (each["log"] == each["plain_log"]) is not (shared.by in COLLECTIVE and shared.quiet)


@pytest.mark.parametrize(("way", "share"), ROWS)
def test_two_ranks_keep_to_their_budget_bit_for_bit(both: Both, way: str, share: float) -> None:
    found = both("kept", share=share, **WAYS[way])
    if any("infeasible" in each for each in found):
        assert all("infeasible" in each for each in found)
        return
    refuse_wrong(found, WAYS[way]["shared"])
    for each in found:
        assert each["segments"], "nothing is recomputed, so nothing is shown"
        assert max(each["peaks"]) <= each["budget"]
        assert each["peaks"][-1] <= each["predicted"] <= 1.01 * each["peaks"][-1]
        assert abs(each["plain_predicted"] - each["plain"]) <= 0.01 * each["plain"]
        assert each["grown"][-2:] == [0, 0]
    # Where replays run no collectives each rank makes later plans by itself, by the seconds that it measured. Where
    # gradients add up, the second forward has a plan of its own.
    agreed = "segments" if WAYS[way]["shared"].by in COLLECTIVE else "first"
    assert found[0][agreed] == found[1][agreed]


@pytest.mark.parametrize("share", [0.6, *(pytest.param(share, marks=pytest.mark.sweep) for share in (0.8, 0.4))])
@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.sweep)])
def test_four_ranks_that_share_layers_and_shards_keep_to_their_budget(
    four: Both, share: float, accumulate: int
) -> None:
    """FSDP2 over tensor parallelism: weights are DTensors while they are gathered, too."""
    shared = Shared(by="fsdp over tp")
    found = four("kept", share=share, shared=shared, accumulate=accumulate)
    refuse_wrong(found, shared)
    for each in found:
        assert each["segments"] == found[0]["segments"] != []
        assert max(each["peaks"]) <= each["budget"]
        assert each["peaks"][-1] <= each["predicted"] <= 1.01 * each["peaks"][-1]


SWEPT = (*(Shared(by=by, quiet=False) for by in ("tp", "ddp")), Shared(by="fsdp", units="hybrid", quiet=False))

LOUD = [Shared(by="fsdp", quiet=False), *(pytest.param(each, marks=pytest.mark.sweep) for each in SWEPT)]


@pytest.mark.parametrize("shared", LOUD, ids=["fsdp", "tensor parallel", "ddp", "hybrid"])
def test_with_collectives_of_gloo_itself(both: Both, shared: Shared) -> None:
    """Its threads let go of memory at moments of their own, so that no byte is asked for here."""
    found = both("kept", shared=shared, share=0.6, norm=True)
    refuse_wrong(found, shared)
    assert all(each["segments"] for each in found)

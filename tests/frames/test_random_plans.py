"""Whatever a plan recomputes, the step stays the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.frames.comparing import assert_same
from tests.frames.models import Containers, Tower, Twice, cnn, images, mlp, summed

Run = Callable[[nn.Module], Tensor]
MODELS: dict[str, tuple[Callable[[], nn.Module], Run]] = {
    "mlp": (mlp, summed),
    "cnn": (cnn, images),
    "tower": (Tower, summed),
    "early": (lambda: Tower(early=True), summed),
    "twice": (Twice, summed),
    "containers": (Containers, summed),
}
FAMILIES = {
    "mlp": [[str(i) for i in range(12)]],
    "cnn": [["0", "1", "2", "3", "4"], ["0.0", "0.1"], ["1.0", "1.1"]],
    "tower": [
        [f"blocks.{i}" for i in range(5)],
        *([f"blocks.{i}.{x}" for x in ("norm", "first", "dropout", "second")] for i in range(5)),
    ],
    "early": [[f"blocks.{i}" for i in range(5)], ["head"]],
    "twice": [
        ["block#0", "block#1", "other#0"],
        ["block.0#0", "block.1#0"],
        ["block.0#1", "block.1#1"],
        ["other.0", "block.0#2"],
    ],
    "containers": [[f"stages.{i}" for i in range(7)]],
}


@st.composite
def plans(draw: st.DrawFn, families: list[list[str]]) -> list[list[str]]:
    """Cut some calls of some families into runs."""
    found = []
    for family in families:
        chosen = [call for call in family if draw(st.integers(0, 3))]
        while chosen:
            length = draw(st.integers(1, len(chosen)))
            if draw(st.integers(0, 3)):
                found.append(chosen[:length])
            chosen = chosen[length:]
    return found


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12)
@given(data=st.data())
def test_any_plan(name: str, data: st.DataObject) -> None:
    make, run = MODELS[name]
    plan = data.draw(plans(FAMILIES[name]))
    assert_same(make(), plan, run, replays=None)

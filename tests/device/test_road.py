"""The whole road on a device, from loops as users write them to the command; benchmarks/fake_device has every row."""

from __future__ import annotations

import pytest

from benchmarks.fake_device.rows import ROWS, WORKSPACES, run
from benchmarks.fake_device.tools import TOOLS
from tests.device.situations import SITUATIONS
from tests.device.twin import foretold, outcome, within
from tests.fake_cuda.device import Options, set_options

LEAST, MOST = 0.995, 1.0 + 5e-5
"""Predicted over measured peak."""

SLACK = {"mixtral": 0.02, "resnet": 0.03}
"""How far the ratio may be from 1 for a model. Mixtral's tokens go to other experts in each step. The allocator does
not split a block above 1 MiB where less than 1 MiB would be left, which is much of so small a ResNet."""

QUICK = {
    ("resnet", "conv scratch"): "64 KiB",
    ("vit", "inputs="): "8 MiB",
    ("gpt2", "cap"): "64 KiB",
    ("gpt2", "OOM in steps 2, 5, 6"): "8 MiB",
}
"""Rows that can each fail in a way of its own, and the workspaces with which they run."""

SHORT = {
    ("gpt2", "ragged"): "the plan has headroom for longer batches than come",
    ("gpt2", "save_on_cpu"): "hooks of the user's around forward leave no room for a plan, which is said",
}
"""Rows that fall short, and why."""


def marks(row: tuple[str, str], workspace: str) -> list[pytest.MarkDecorator]:
    """Of a row: all but the quick ones run in the sweep, and those that fall short fail."""
    short = [pytest.mark.xfail(reason=SHORT[row], strict=True)] if row in SHORT else []
    return short if QUICK.get(row) == workspace else [*short, pytest.mark.sweep]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "situation", "workspace"),
    [pytest.param(*row, each, marks=marks(row, each)) for row in ROWS for each in WORKSPACES],
)
def test_a_run_is_the_plain_one_and_keeps_to_a_budget_that_is_foretold(
    model: str, situation: str, workspace: str
) -> None:
    how = SITUATIONS[situation]
    set_options(Options(workspace_bytes=WORKSPACES[workspace], **how.options))
    found = run(model, how)
    assert outcome(found) == [True] * len(found.plain.left)
    assert within(found) == [True] * len(found.planned.peaks)
    predicted = foretold(found)
    assert predicted is not None
    slack = SLACK.get(model, 0.0)
    assert min(LEAST, 1 - slack) <= predicted <= max(MOST, 1 + slack)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "tool", "workspace"),
    [
        pytest.param("mlp", "command", "8 MiB"),
        *(
            pytest.param(model, tool, each, marks=pytest.mark.sweep)
            for tool, (_, names) in TOOLS.items()
            for model in names
            for each in WORKSPACES
        ),
    ],
)
def test_every_tool_finds_what_the_allocator_counts(model: str, tool: str, workspace: str) -> None:
    set_options(Options(workspace_bytes=WORKSPACES[workspace]))
    found = TOOLS[tool][0](model)
    assert [each for each, held in found.holds.items() if not held] == []
    slack = SLACK.get(model, 0.0)
    low, high = min(LEAST, 1 - slack), max(MOST, 1 + slack)
    assert [each for each, ratio in found.foretold.items() if not low <= ratio <= high] == []

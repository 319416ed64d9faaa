"""What no comparison sees is as docs/replays.md says, on the page's own examples."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import autockpt

PAGE = (Path(__file__).parents[2] / "docs" / "replays.md").read_text()
STEPS, LATE = 6, 2

Losses = list[list[Tensor]]


@pytest.fixture
def examples() -> dict[str, Any]:
    section = PAGE.partition("## What no comparison sees")[2]
    block = re.search(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert block is not None
    found: dict[str, Any] = {"__name__": "replays"}
    exec(compile(block[1], "replays.md", "exec"), found)
    return found


def train(
    kind: type[nn.Module],
    prepare: Callable[[Any, int], object],
    *,
    planned: bool,
    check: Literal["sampled", "always"] = "always",
) -> Losses:
    """Train; return the gradients of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), kind(8, 8), nn.Linear(8, 8))
    if planned:
        autockpt.apply(model, plan=autockpt.Plan.of(["1"]), check=check)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for number in range(STEPS):
        prepare(model[1], number)
        optimizer.zero_grad()
        model(torch.linspace(-1, 1, 32).reshape(4, 8)).square().sum().backward()
        found.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
        optimizer.step()
    return found


def equal(plain: Losses, planned: Losses) -> list[bool]:
    """Whether each step's gradients are the plain ones."""
    return [all(map(torch.equal, one, other)) for one, other in zip(plain, planned, strict=True)]


@pytest.mark.parametrize("check", ["sampled", "always"])
def test_a_replay_counts_too(
    examples: dict[str, Any], caplog: pytest.LogCaptureFixture, check: Literal["sampled", "always"]
) -> None:
    kind = examples["Counts"]

    def late(module: Any, number: int) -> None:
        module.counting = number >= LATE

    plain, counted = train(kind, late, planned=False), kind.calls[0]
    kind.calls[0] = 0
    assert equal(plain, train(kind, late, planned=True, check=check)) == [True] * STEPS
    if check == "always":
        assert kind.calls[0] == counted and "1#0 is kept from now on" in caplog.text
    else:
        assert kind.calls[0] == 2 * counted and not caplog.records


def test_a_replay_that_counts_from_the_start_is_seen(
    examples: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    kind = examples["Counts"]

    def always(module: Any, number: int) -> None:
        module.counting = True

    assert equal(train(kind, always, planned=False), train(kind, always, planned=True)) == [True] * STEPS
    assert kind.calls[0] == 2 * STEPS and "1#0 is kept from now on" in caplog.text


def test_data_that_is_written_after_it_was_saved(examples: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    def late(module: Any, number: int) -> None:
        module.writing = number >= LATE

    kind = examples["Writes"]
    found = equal(train(kind, late, planned=False), train(kind, late, planned=True))
    assert found == [number < LATE for number in range(STEPS)] and not caplog.records


def test_what_is_not_put_back_moves_on_in_the_rehearsal(
    examples: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    file, files = tmp_path / "numbers", list[Any]()
    file.write_text("".join(f"{number}.0\n" for number in range(1, 100)))

    def given(module: Any, number: int) -> None:
        if number == 0:
            files.append(file.open())
            module.numbers = map(float, files[-1])

    kind = examples["Reads"]
    found = equal(train(kind, given, planned=False), train(kind, given, planned=True))
    for opened in files:
        opened.close()
    assert found == [number == 0 for number in range(STEPS)] and "1#0 is kept from now on" in caplog.text

"""Which packages a walk over what a forward can reach enters."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from tests.frames.comparing import steps
from tests.frames.models import WIDTH, batch

HELD_BYTES = 2**22

PACKAGE = f"""
import torch
from torch import nn

class Session:
    def __init__(self):
        self.held = [torch.zeros({HELD_BYTES} // 4)]

class Theirs(nn.Linear):
    pass

session, counts = Session(), {{"calls": 0}}

def look(value):
    assert session.held
    counts["calls"] += 1
    return value * counts["calls"]
"""

OWN = """
import besides
from torch import nn

class Looks(nn.Module):
    def __init__(self, width, kind):
        super().__init__()
        self.inner = getattr(besides, kind)(width, width) if kind != "Linear" else nn.Linear(width, width)

    def forward(self, x):
        return besides.look(self.inner(x)).tanh()
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what makes a model whose forward calls a function of a package that lies in a folder of this name."""

    def made(folder: str, kind: str) -> nn.Sequential:
        for name, text in ((folder, PACKAGE), ("script", OWN)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / ("besides.py" if text is PACKAGE else "own.py")).write_text(text)
            monkeypatch.syspath_prepend(tmp_path / name)
        for name in ("besides", "own"):
            monkeypatch.setitem(sys.modules, name, None)  # so that it goes at the end of the test
            del sys.modules[name]
        looks = importlib.import_module("own").Looks
        torch.manual_seed(0)
        return nn.Sequential(*(looks(WIDTH, kind) for _ in range(4)))

    return made


@pytest.mark.parametrize(
    ("folder", "kind", "held_bytes"),
    [("site-packages", "Linear", 0), ("site-packages", "Theirs", HELD_BYTES), ("script", "Linear", HELD_BYTES)],
)
def test_what_an_installed_package_holds_is_the_models_where_a_class_of_it_is_in_the_model(
    build: Any, folder: str, kind: str, held_bytes: int
) -> None:
    """A test runner's `assert` led to all that its session held: 5 MB counted, and budgets were refused."""
    profile = autockpt.profile(build(folder, kind), batch(64, WIDTH))
    assert profile.static.other_bytes == held_bytes


@pytest.mark.parametrize(("folder", "kind"), [("site-packages", "Theirs"), ("script", "Linear")])
def test_what_such_a_package_counts_is_counted_once(build: Any, folder: str, kind: str) -> None:
    found = []
    for budget in (None, "lowest"):
        model = build(folder, kind)
        if budget is not None:
            autockpt.apply(model, budget)
        found.append(steps(model, lambda model: model(batch(256, WIDTH)).square().mean(), count=5))
    plain, planned = found
    assert plain.differences(planned) == []

"""Menus that ran out of time: fewer ways to recompute a part of a block, plans as good as any, and a note."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from autockpt import Profile
from autockpt._choose.candidates import find_candidates, selective
from autockpt.solvers import Menu, make_menu, simulate
from tests.run.frames.comparing import steps

ROWS = 2048


def blocks(n: int, width: int) -> list[nn.Module]:
    def block() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(32), nn.Linear(32, width), nn.GELU(), nn.Linear(width, 32), nn.Tanh())

    return [block() for _ in range(n)]


def model() -> nn.Module:
    """Blocks of two kinds, of which the second comes first in what its menu can save."""
    torch.manual_seed(0)
    return nn.Sequential(*blocks(2, 64), *blocks(4, 128))


@functools.lru_cache
def profile() -> Profile:
    return autockpt.profile(model(), torch.randn(ROWS, 32))


def test_without_time_plans_are_made_of_what_there_is_and_say_so() -> None:
    short, full = find_candidates(profile(), menu_seconds=0.0), find_candidates(profile(), menu_seconds=60.0)
    assert len(short.problem.candidates) < len(full.problem.candidates)
    assert full.notes == ()
    assert [note.split(" not searched ")[0] for note in short.notes] == [
        "the menu of 2#0 and 3 calls like it was",
        "the menu of 0#0 and 1 calls like it was",
    ]
    plain_bytes = simulate(short.problem, ()).peak_bytes
    plan = autockpt.solve(profile(), plain_bytes * 7 // 10, menu_seconds=0.0)
    assert plan.segments and plan.peak_bytes <= plain_bytes * 7 // 10
    assert plan.notes == (*profile().notes, *short.notes)
    assert "the menu of 2#0" in plan.explain()
    batch = torch.randn(ROWS, 32)
    plain, planned = (steps(each, lambda m: m(batch).sum()) for each in (model(), autockpt.apply(model(), plan=plan)))
    assert plain.differences(planned) == []


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(blocks(4, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.inner:
            x = torch.tanh(x) * block(torch.sigmoid(x)) + x
        return x


def test_menus_of_parts_that_time_cuts_short_are_counted_in_one_note() -> None:
    profile = autockpt.profile(Residual(), torch.randn(ROWS, 32))
    short, full = find_candidates(profile, menu_seconds=0.0), find_candidates(profile, menu_seconds=60.0)
    assert full.notes == ()
    *_, counted = short.notes
    assert [note for note in short.notes if note.startswith("other menus")] == [counted]
    assert "to their end in 0 µs for all: 17. More menu_seconds" in counted


def test_each_kind_has_a_part_of_the_time_and_those_that_save_most_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, float]] = []

    def late(flow: Any, host: Any, *, time_limit_seconds: float, most_entries: int) -> Menu:
        asked.append((flow.plain_bytes, time_limit_seconds))
        return dataclasses.replace(make_menu(flow, host, most_entries=most_entries), whole=False, late=True)

    monkeypatch.setattr(selective, "make_menu", late)
    monkeypatch.setattr(selective, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    notes = find_candidates(profile(), menu_seconds=8.0).notes
    (most, _), (least, _) = asked[:2]
    assert most > least
    assert asked == [(most, 2.0), (least, 4.0), (most, 4.0), (least, 8.0)]
    assert [note.split(" to its end in ")[1].split(":")[0] for note in notes] == ["4 s", "8 s"]

"""Menus that ran out of time: fewer ways to recompute a part of a block, plans as good as any, and a note."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from autockpt import Profile
from autockpt._candidates import find_candidates, selective
from autockpt.solvers import Menu, make_menu, simulate
from tests.frames.comparing import steps

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
    assert [note.split(" was not ")[0] for note in short.notes] == [
        "the menu of 2#0 and 3 calls like it",
        "the menu of 0#0 and 1 calls like it",
    ]
    plain_bytes = simulate(short.problem, ()).peak_bytes
    plan = autockpt.solve(profile(), plain_bytes * 7 // 10, menu_seconds=0.0)
    assert plan.segments and plan.peak_bytes <= plain_bytes * 7 // 10
    assert plan.notes == (*profile().notes, *short.notes)
    assert "the menu of 2#0" in plan.explain()
    batch = torch.randn(ROWS, 32)
    plain, planned = (steps(each, lambda m: m(batch).sum()) for each in (model(), autockpt.apply(model(), plan=plan)))
    assert plain.differences(planned) == []


def test_the_kinds_that_save_most_come_first_and_leave_what_they_do_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def at_once(flow: Any, host: Any, *, time_limit_seconds: float, most_entries: int) -> Menu:
        asked.append((flow.plain_bytes, time_limit_seconds))
        return make_menu(flow, host, most_entries=most_entries)

    monkeypatch.setattr(selective, "make_menu", at_once)
    monkeypatch.setattr(selective, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    find_candidates(profile(), menu_seconds=8.0)
    assert asked == sorted(asked, reverse=True)
    assert [seconds for _, seconds in asked] == [4.0, 8.0]

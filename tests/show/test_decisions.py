"""What the page of a plan says about each call: its figures are the judge's, and its reasons hold."""

from __future__ import annotations

import functools

import pytest

from autockpt import Plan, Profile, solve
from tests.doors import REASONS, Activations, DecisionRow, explain_decide, find_planned, plan_page, split_levels
from tests.handmade import chain_profile

PLANS: dict[str, dict[str, object]] = {
    "plain": {"budget": "1GiB"},
    "some": {"budget": "80MiB"},
    "more": {"budget": "60MiB"},
    "lowest": {"budget": "min"},
    "cheap": {"max_overhead": 0.05},
    "whole blocks": {"budget": "min", "solver": "uniform"},
    "pinned": {"budget": "80MiB", "keep": "h.0", "recompute": "h.2.mlp"},
}


@functools.lru_cache
def chain() -> Profile:
    return chain_profile()


@functools.lru_cache
def plan(name: str) -> Plan:
    return solve(chain(), **PLANS[name])  # type: ignore[arg-type]


def decided(found: Activations, first: str) -> set[tuple[str, str, int]]:
    row = next(row for row in found.rows if row.first == first)
    return {(each.decision, each.reason, each.calls) for each in row.decided}


@pytest.mark.parametrize("name", PLANS)
def test_the_figures_are_those_of_the_plan_and_of_the_judge(name: str) -> None:
    found = explain_decide(chain(), plan(name))
    root = found.rows[0]
    assert root.recompute_seconds == pytest.approx(plan(name).recompute_seconds)
    assert (root.held_bytes + root.freed_bytes, root.freed_bytes) == (found.saved_bytes, found.freed_bytes)
    planned = find_planned(chain(), plan(name))
    stands = []
    for chosen in (range(0), range(len(planned.replays))):
        steps = split_levels(planned, chosen).steps
        step = next(step for step in steps if step.tick >= chain().forward_ticks)
        stands.append(step.activation_bytes + step.boundary_bytes + step.output_bytes)
    assert stands[0] - stands[1] == found.freed_bytes - found.replay_bytes


@pytest.mark.parametrize("name", PLANS)
def test_rows_add_up_where_their_children_are_shown(name: str) -> None:
    def children(at: int) -> list[DecisionRow]:
        rows = []
        for row in found.rows[at + 1 :]:
            if row.depth <= found.rows[at].depth:
                break
            rows += [row] if row.depth == found.rows[at].depth + 1 else []
        return rows

    found = explain_decide(chain(), plan(name))  # nothing but leaves saves here, and no row is small
    assert found.small_rows == 0
    shown = [(row, children(i)) for i, row in enumerate(found.rows)]
    assert any(inner for _, inner in shown)
    for row, inner in shown:
        assert sum(each.calls for each in row.decided) == row.calls
        assert {each.reason for each in row.decided} <= {"", *REASONS}
        if inner:
            assert sum(each.freed_bytes for each in inner) == row.freed_bytes
            assert sum(each.held_bytes for each in inner) == row.held_bytes
            assert sum(each.recompute_seconds for each in inner) <= row.recompute_seconds * (1 + 1e-9)


def test_a_generous_budget_keeps_everything() -> None:
    found = explain_decide(chain(), plan("plain"))
    assert decided(found, "h.0#0") == {("kept", "not chosen", 4)}
    assert found.freed_bytes == found.replay_bytes == 0


@pytest.mark.parametrize("blocks", [["h.0", "h.2"], ["h.3"], ["h.1", "h.2", "h.3"]], ids=" ".join)
def test_what_is_kept_beside_segments_was_not_chosen(blocks: list[str]) -> None:
    found = explain_decide(chain(), Plan.of(blocks))
    kept = ("kept", "not chosen", 4 - len(blocks))
    assert decided(found, "h.0#0") == {("recomputed", "chosen", len(blocks)), kept}


def test_pins_and_refusals_are_named() -> None:
    found = explain_decide(chain(), plan("pinned"))
    assert ("kept", "pinned", 1) in decided(found, "h.0#0")
    assert ("recomputed", "pinned", 1) in decided(found, "h.0.mlp#0")
    attention = decided(found, "h.0.attn#0")
    assert ("kept", "pinned", 1) in attention
    assert ("kept", "refused", 1) in attention


def test_a_plan_by_hand_gets_its_figures_from_the_profile() -> None:
    made = Plan(segments=plan("some").segments)
    report, known = plan_page(made, chain()).document, plan("some")
    assert report["predicted_peak_bytes"] == known.peak_bytes
    assert report["predicted_plain_peak_bytes"] == known.plain_peak_bytes
    assert report["predicted_recompute_seconds"] == pytest.approx(known.recompute_seconds)
    assert report["predicted_recompute_overhead"] == pytest.approx(known.recompute_overhead)
    assert plan_page(made).document["predicted_peak_bytes"] == 0


def test_a_profile_of_another_step_is_said() -> None:
    other = chain_profile(5)
    assert "not the one that the plan was made from" in " ".join(plan("some").explain(other).split())
    assert "not the one that the plan was made from" not in " ".join(plan("some").explain(chain()).split())


def test_another_profile_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="makes no such call"):
        explain_decide(chain(), Plan.of(["encoder.0"]))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", PLANS)
def test_the_page_fits_and_says_all_of_it(name: str, width: int) -> None:
    text = plan_page(plan(name), chain()).text(width)
    assert max(map(len, text.splitlines())) <= width
    for row in explain_decide(chain(), plan(name)).rows:
        for each in row.decided:
            assert f"{each.decision}{', ' * bool(each.reason)}{each.reason}" in " ".join(text.split())

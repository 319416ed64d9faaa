"""The texts about plans and profiles."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import msgspec
import pytest

from autockpt import InvalidFile, Plan, Profile, Refusal, Segment, solve
from autockpt.solvers import format_bytes, simulate
from tests.doors import find_candidates, plan_page, profile_page
from tests.handmade import chain_profile

MIB = 2**20


def test_the_text_of_a_selective_segment() -> None:
    segments = [
        Segment(
            calls=(f"h.{i}#0",),
            keep=(f"h.{i}.attn#0/scaled_dot_product_attention#0", f"h.{i}.mlp.up#0"),
            skip=(f"h.{i}.mlp.down#0",),
            freed_bytes=8 * MIB,
            boundary_bytes=MIB,
            kept_bytes=3 * MIB,
            recompute_seconds=0.001,
        )
        for i in range(2)
    ]
    assert Plan(segments=tuple(segments)).explain().split("\n\n")[-1] == (
        "In h.{0-1} 3.00 MiB are kept instead of being computed again; keep\n"
        "[attn/scaled_dot_product_attention#0, mlp.up]; skip [mlp.down]\n"
    )


def test_the_text_of_segments_with_glue() -> None:
    segments = [
        Segment(calls=("#0/cat#1", "up#0"), keep=("#0/cat#1",), kept_bytes=MIB),
        Segment(calls=("encoder#1/add#0",), kept_bytes=MIB),
    ]
    text = Plan(segments=tuple(segments)).explain()
    assert "cat#1 … up " in text
    assert "encoder#1/add#0\n" in text
    assert "In cat#1 … up 1.00 MiB are kept instead of being computed again; keep [cat#1]" in text


def test_the_text_of_a_plan() -> None:
    equal = {"freed_bytes": 17 * MIB, "boundary_bytes": MIB, "recompute_seconds": 0.004}
    run_of_three = tuple(f"decoder.h.{i}#0" for i in range(3))
    plan = Plan(
        model="GPT2LMHeadModel",
        segments=(
            Segment(calls=run_of_three, freed_bytes=50 * MIB, boundary_bytes=3 * MIB, recompute_seconds=0.012),
            *(Segment(calls=(f"decoder.h.{i}#0",), **equal) for i in range(3, 8)),  # type: ignore[arg-type]
            Segment(calls=("decoder.ln#1",), **equal),  # type: ignore[arg-type]
        ),
        solver="ilp",
        status="feasible",
        budget_bytes=400 * MIB,
        peak_bytes=399 * MIB,
        plain_peak_bytes=800 * MIB,
        recompute_seconds=0.05,
        plain_seconds=1.25,
        lower_bound_seconds=0.03,
        choice_bound_seconds=0.045,
        profile_mode="measured",
        refused=tuple(Refusal(call=f"h.{i}.attn#0", reason="reads a tensor from a closure") for i in range(9)),
        notes=("a note",),
    )
    assert plan.explain() == textwrap.dedent(
        """\
        Plan for GPT2LMHeadModel, by ilp, feasible (no other choice saves more than 10.0% of it)

        budget                        400.00 MiB
        predicted peak                399.00 MiB  99.8% of the budget
        predicted plain peak          800.00 MiB
        predicted recompute                50 ms  per step
        predicted recompute overhead        4.0%  of the plain step, 1.25 s as recorded
        least by any method                30 ms  operator by operator, the host's time not counted
        profile                         measured  a step ran

        Recomputed: 7 segments of 9 calls together; figures of each segment, as predicted
        segments  calls                  freed  boundary  seconds
        ---------------------------------------------------------
               1  decoder.h.0 … h.2  50.00 MiB  3.00 MiB    12 ms
               5  decoder.h.{3-7}    17.00 MiB  1.00 MiB     4 ms
               1  decoder.ln#1       17.00 MiB  1.00 MiB     4 ms

        Kept because they cannot be replayed exactly
          9 calls: reads a tensor from a closure
            h.0.attn, h.1.attn, h.2.attn, h.3.attn, h.4.attn, h.5.attn, and 3 more

        Notes
          a note
        """
    )


def test_segments_that_differ_by_layer_share_a_row() -> None:
    runs = [[f"h.{i}.ln", f"h.{i}.mlp"] for i in (1, 3, 4, 5, 9)]
    text = Plan.of([*runs, ["e.0", "e.1"], "conv", "f.3#1", ""]).explain()
    assert [line.split("  ")[-1] for line in text.splitlines()[5:]] == [
        "h.{1, 3-5, 9}.ln … mlp",
        "e.0 … e.1",
        "conv",
        "f.3#1",
        "the whole model",
    ]


def renamed(profile: Profile, optimizer: str) -> Profile:
    return msgspec.structs.replace(profile, optimizer=optimizer)


def test_the_optimizer_stands_in_the_report_and_in_the_peak() -> None:
    plain = chain_profile()
    assert "optimizer" not in plain.explain()
    told = msgspec.structs.replace(plain, optimizer="AdamW, as it is", optimizer_step_bytes=900 * MIB)
    text = told.explain()
    assert "predicted optimizer step  900.00 MiB  beside its state: AdamW, as it is\n" in text
    assert "recorded plain peak" in plain.explain() and "predicted plain peak" in text
    without = chain_profile().optimizer_peak_bytes
    said = " ".join(text.split())
    assert told.optimizer_peak_bytes == without + 900 * MIB
    assert f"predicted peak of it {format_bytes(without + 900 * MIB)} which no plan changes" in said
    assert f"it is {format_bytes(without)}" in said and "fused" not in renamed(told, "Lion").explain()
    assert f"it is {format_bytes(without)}" in " ".join(Plan().explain(told).split())
    assert "peak of it" not in msgspec.structs.replace(told, optimizer_step_bytes=0).explain()
    report, problem = profile_page(told).document, find_candidates(told).problem
    assert report["plain_peak_bytes"] == simulate(problem, ()).peak_bytes == problem.steps[-1].base_bytes
    assert simulate(problem, ()).level_bytes[:-1] == simulate(find_candidates(plain).problem, ()).level_bytes
    with pytest.raises(InvalidFile, match="step needs 943,718,400 bytes, but no optimizer is named"):
        Profile(**{**msgspec.structs.asdict(told), "optimizer": ""})


def test_the_text_fits_sixty_columns() -> None:
    note = "a note that is long enough to need more than the sixty columns there are, and more"
    deep = "encoder.layers.{}.self_attention.output.dense_projection.dropout"
    plan = Plan(
        segments=tuple(Segment(calls=(f"{deep.format(i)}#0",), freed_bytes=MIB * i) for i in range(4)),
        budget_bytes=400 * MIB,
        peak_bytes=399 * MIB,
        status="optimal",
        solver="articulation",
        plain_seconds=1.0,
        profile_mode="measured",
        refused=(Refusal(call=f"{deep.format(7)}#0", reason=note),),
        notes=(note,),
    )
    for text in (plan_page(plan).text(60), profile_page(chain_profile(notes=(note,))).text(60)):
        assert max(len(line) for line in text.splitlines()) <= 60


def test_a_backend_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pulp

    def crashes(solver: object, lp: object) -> None:
        raise RuntimeError("the licence has expired")

    monkeypatch.setattr(pulp.HiGHS, "actualSolve", crashes)
    plan = solve(chain_profile(), "min")
    note = "HiGHS failed (RuntimeError: the licence has expired), so this is the best plan that was found without it"
    assert note in plan.notes
    assert "the licence has expired" in plan.explain()
    plan.save(tmp_path / "plan.json")
    assert note in json.loads((tmp_path / "plan.json").read_text())["notes"]

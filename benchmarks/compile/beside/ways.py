"""The ways to train one model, each made, taken three steps, and kept for rounds in which all of them step in turn.

compiled plain ─▶ torch's ratios ─▶ ours: lowest, budgets, torch's own peaks ─▶ eager plain ─▶ eager plans ─▶ rounds
"""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import autockpt
from autockpt import Infeasible, NotApplicable
from benchmarks.compile.steps import (
    Trained,
    difference,
    equal,
    plan_on,
    processor_seconds,
    static_bytes,
    trained,
)
from benchmarks.frontier.derive import standard_error
from benchmarks.frontier.measure import step_seconds
from tests.zoo import Case, build, loss_of

RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
"""What torch's partitioner is told: shares of the bytes that it would save. At 1 it is the plain step."""

BUDGETS = 8
"""So many byte budgets, at even distances from our lowest peak up to below the plain one."""

CLOSE = 1e-6
"""Inductor fuses in other ways where operators run again: its gradients are right within so much of their norms."""

PLAIN, AGAIN, TORCH, LOWEST, OURS, AT_TORCHS, EAGER_PLAIN, EAGER = (
    *("plain", "plain again", "torch", "ours, lowest", "ours", "ours at torch's peak", "eager plain", "eager plan"),
)
"""The ways. The second is the first once more: it shows the noise."""

Row = dict[str, Any]


def torchs_ratio(ratio: float) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which torch's partitioner keeps to a share of saved bytes. No other private option is set."""
    from torch._functorch import config

    context: contextlib.AbstractContextManager[Any] = config.patch(activation_memory_budget=ratio)
    return context


class Ways:
    """The ways to train one model; what lives on is every model that was made, with its row.

    Args:
        name: of the model in `tests.zoo.SHORT`.
        backend: of ``torch.compile``.
        stored: called whenever a row is new or has changed.
    """

    def __init__(self, name: str, backend: str, stored: Callable[[list[Row]], None]) -> None:
        self.rows: list[Row] = []
        self._name, self._backend, self._stored = name, backend, stored
        self._cases: list[tuple[Row, Case, Row]] = []
        self._plain: Row = {}
        self._expected: list[Tensor] = []

    def run(self, rounds: int) -> None:
        """Make all ways, then let them step in turn.

        Args:
            rounds: how often each steps for its time.
        """
        self.compiled_plain()
        for ratio in RATIOS:
            self.torchs(ratio)
        plain_bytes = self._plain["peak_bytes"]
        lowest_bytes = self.ours(LOWEST, None).get("peak_bytes", plain_bytes)
        budgets = [lowest_bytes + (plain_bytes - lowest_bytes) * i // BUDGETS for i in range(BUDGETS)]
        torchs = {row["peak_bytes"] for row in self.rows if row["way"] == TORCH and row["right"]}
        for budget in dict.fromkeys(budgets):
            self.ours(OURS, budget)
        for peak in sorted(peak for peak in torchs if lowest_bytes <= peak < plain_bytes):
            self.ours(AT_TORCHS, peak)
        self.eager(dict.fromkeys(budgets))
        self.rounds(rounds)

    def compiled_plain(self) -> None:
        """Compile, and nothing else; twice."""
        for way in (PLAIN, AGAIN):
            case, compiled = self._compiled()
            seen = trained(case, compiled)
            self._expected = self._expected or seen.left
            row = self._row(way, None, seen, self._expected)
            self._plain = self._plain or row
            self._keep(row, case, compiled, self._plain)

    def torchs(self, ratio: float) -> None:
        """Compile with torch's own share of saved bytes. What is wrong is not timed."""
        case, compiled = self._compiled()
        with torchs_ratio(ratio):
            seen = trained(case, compiled)
        row = self._row(TORCH, ratio, seen, self._expected)
        if row["right"]:
            self._keep(row, case, compiled, self._plain)

    def ours(self, way: str, budget_bytes: int | None) -> Row:
        """Compile, and hold it to a budget.

        Args:
            way: what the row is called.
            budget_bytes: above what stands before the step; None for our lowest peak.
        """
        case, compiled = self._compiled()
        static = static_bytes(case)
        began = processor_seconds()
        try:
            autockpt.apply(compiled, "min" if budget_bytes is None else static + budget_bytes, inputs=case.kwargs)
        except Infeasible as error:
            return self._infeasible(way, budget_bytes, error.minimum_bytes - static)
        except NotApplicable as error:
            return self._new({"way": way, "asked": budget_bytes, "refused": str(error).partition("\n")[0]})
        planning_seconds, plan = processor_seconds() - began, plan_on(compiled)
        more = {
            "planning_seconds": planning_seconds,
            "predicted_bytes": plan.peak_bytes - static,
            "predicted_seconds": plan.recompute_seconds,
            "predicted_share": plan.share,
            "tried": len(plan.tried_bytes),
        }
        row = self._row(way, budget_bytes, trained(case, compiled), self._expected, more)
        self._keep(row, case, compiled, self._plain)
        return row

    def eager(self, budgets: list[int] | dict[int, None]) -> None:
        """Run as it is written, plain and under plans for budgets.

        Args:
            budgets: in bytes above what stands before the step.
        """
        case = build(self._name, short=True)
        seen = trained(case, case.model)
        plain, expected = self._row(EAGER_PLAIN, None, seen, seen.left), seen.left
        self._keep(plain, case, case.model, plain)
        began = processor_seconds()
        profile = autockpt.profile(build(self._name, short=True).model, case.kwargs, loss=loss_of)
        recording_seconds, static = processor_seconds() - began, profile.static.total_bytes
        for budget in budgets:
            began = processor_seconds()
            try:
                plan = autockpt.solve(profile, static + budget)
            except Infeasible as error:
                self._infeasible(EAGER, budget, error.minimum_bytes - static)
                continue
            more = {
                "planning_seconds": recording_seconds + processor_seconds() - began,
                "predicted_bytes": plan.peak_bytes - static,
                "predicted_seconds": plan.recompute_seconds,
                "predicted_share": plan.recompute_overhead,
            }
            case = build(self._name, short=True)
            autockpt.apply(case.model, plan=plan)
            row = self._row(EAGER, budget, trained(case, case.model), expected, more)
            self._keep(row, case, case.model, plain)

    def rounds(self, rounds: int) -> None:
        """Let all ways step in turn, each round from another one on, and note what each step takes.

        Args:
            rounds: how many; at least 2, or 0 for none.
        """
        if not rounds:
            return
        taken: list[list[float]] = [[] for _ in self._cases]
        for _, case, _ in self._cases:
            case.step()
        gc.collect()
        gc.disable()
        try:
            for turn in range(rounds):
                for i in ((turn + i) % len(self._cases) for i in range(len(self._cases))):
                    taken[i].append(step_seconds(self._cases[i][1]))
        finally:
            gc.enable()
        number = {id(row): i for i, (row, _, _) in enumerate(self._cases)}
        for i, (row, _, plain) in enumerate(self._cases):
            ratios = [own / its for own, its in zip(taken[i], taken[number[id(plain)]], strict=True)]
            row["seconds"], row["ratio"] = statistics.median(taken[i]), statistics.median(ratios)
            first, _, third = statistics.quantiles(ratios, n=4)
            row["ratio_error"] = standard_error((first, third), rounds)
        self._stored(self.rows)

    def _compiled(self) -> tuple[Case, Any]:
        """Build the model and compile it, apart from all that was compiled of the same code."""
        case, compiler = build(self._name, short=True), torch.compile
        make: Any = compiler
        return case, make(case.model, backend=self._backend, isolate_recompiles=True)

    def _row(
        self, way: str, asked: float | None, seen: Trained, expected: list[Tensor], more: Row | None = None
    ) -> Row:
        """Make a row of three steps, and store it."""
        apart = max(map(difference, seen.left, expected)) if len(seen.left) == len(expected) else float("inf")
        bits = equal(seen.left, expected)
        row = {
            "way": way,
            "asked": asked,
            "first_bytes": seen.first_bytes,
            "peak_bytes": seen.last_bytes,
            "bits": bits,
            "relative_difference": apart,
            "right": bits or (self._backend == "inductor" and apart <= CLOSE),
            "compile_seconds": seen.compile_seconds,
            **(more or {}),
        }
        return self._new(row)

    def _infeasible(self, way: str, asked: float | None, lowest_bytes: int) -> Row:
        return self._new({"way": way, "asked": asked, "lowest_bytes": lowest_bytes})

    def _new(self, row: Row) -> Row:
        self.rows.append(row)
        self._stored(self.rows)
        return row

    def _keep(self, row: Row, case: Case, model: Any, plain: Row) -> None:
        """Keep a way for the rounds, beside the plain step that it is held against."""
        self._cases.append((row, Case(model, case.kwargs), plain))

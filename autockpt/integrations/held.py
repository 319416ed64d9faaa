"""What every callback does: it applies a budget as training begins, says how it goes, and takes it off at the end."""

from __future__ import annotations

import inspect
from typing import Any

import autockpt

from .._data.goal import refuse_slip

ALREADY = (
    "the model already has a budget or a plan, and the callback would replace it. Leave out the callback, or call "
    "autockpt.remove(model) before training."
)


class BudgetOfTraining:
    """A budget for the models of one training at a time.

    Args:
        budget: as for `apply`.
        options: the other arguments of `apply`, by name.

    Raises:
        BudgetError: the budget does not parse, or not exactly one of budget, ``max_overhead`` and ``plan`` is given.
        TypeError: `apply` has no such argument.
    """

    def __init__(self, budget: int | str | None, options: dict[str, Any]) -> None:
        # A slip shows where it is made, and not once the data is loaded.
        inspect.signature(autockpt.apply).bind(None, budget, **options)
        if options.get("plan") is None:
            refuse_slip(budget, options.get("max_overhead"))
            autockpt.Goal.of(budget, options.get("max_overhead"), total_bytes=1)
        elif budget is not None or options.get("max_overhead") is not None:
            raise autockpt.BudgetError("give either a budget, or max_overhead, or a plan, and only one of them")
        self._options = {"budget": budget, **options}
        self._models: Any = None

    def begin(self, models: Any, optimizers: list[Any]) -> None:
        """Apply the budget; the state of `optimizers` counts from the first step on.

        Raises:
            NotApplicable: a model has a budget or a plan that this callback did not give it.
            AutockptError: whatever `apply` raises.
        """
        self.end()  # a framework may begin the same training twice, such as with a smaller batch
        if _is_planned(models):
            raise autockpt.NotApplicable(ALREADY)
        options = self._options
        if optimizers and "optimizer" not in options and options.get("plan") is None:
            options = {**options, "optimizer": optimizers}
        autockpt.apply(models, **options)
        self._models = models

    def figures(self) -> dict[str, float]:
        """Return what a logger is to show of the plan that is on the models now; empty before there is one.

        ``autockpt/peak_bytes`` and ``autockpt/overhead`` are predicted. ``autockpt/measured_peak_bytes`` is what the
        device's allocator has counted; on a CPU none does.
        """
        report = None if self._models is None else autockpt.report(self._models)
        if report is None or report.plan is None:
            return {}
        plan = report.plan
        found: dict[str, float | None] = {
            "autockpt/budget_bytes": plan.budget_bytes,
            "autockpt/peak_bytes": plan.peak_bytes,
            "autockpt/measured_peak_bytes": report.measured_peak_bytes,
            "autockpt/overhead": plan.recompute_overhead,
        }
        return {name: float(value) for name, value in found.items() if value is not None}

    def end(self) -> None:
        """Take the plan off. No effect where none was given."""
        models, self._models = self._models, None
        if models is not None:
            autockpt.remove(models)


def _is_planned(models: Any) -> bool:
    """Whether a budget or a plan is on the models, or on one of them."""
    for each in models.values() if isinstance(models, dict) else [models]:
        try:
            autockpt.report(each)
        except autockpt.NotApplicable:
            continue
        return True
    return False

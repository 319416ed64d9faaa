"""`report`: how a model has kept to its budget so far."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import nn

from ..._calls.roots import Models, as_one, roots, title
from ..._data.errors import NotApplicable
from ..._data.plan import CompiledPlan, Plan
from ..._data.text.document import Document
from ..._run.patch.install import installed_plan
from ..._run.patch.patches import governor_of
from ..._torch import private
from . import spoken
from .account import Account, Made
from .words import phrase

if TYPE_CHECKING:
    from ..._compiled.hold import CompiledHold


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Document):
    """What was asked for a model, predicted, and measured so far.

    Attributes:
        model: the model's class.
        asked: the budget, as the user wrote it; empty if a plan was given.
        plan: the plan that is on the model, or in what was compiled of it; None if there is none, or none yet.
        plans: the plans that were made so far, oldest first, each with the reason.
        steps: how many steps ran under a plan.
        measured_peak_bytes: the peak in the statistics of the device's allocator: of the whole process, since it began
            or the statistics were reset. None if the device keeps no statistics, as a CPU.
        step_seconds: seconds from the begin of a planned step to the begin of the next, the median; None before any.
        refused: calls that are kept because a replay of them differed, with the reasons.
        decimal: whether the budget is in decimal units.
    """

    PAGE: ClassVar[str] = "explain.report.report_page"

    model: str
    asked: str
    plan: Plan | None
    plans: tuple[Made, ...] = ()
    steps: int = 0
    measured_peak_bytes: int | None = None
    step_seconds: float | None = None
    refused: tuple[tuple[str, str], ...] = ()
    decimal: bool = False

    @property
    def recomputes(self) -> str:
        """What the plan recomputes, in words."""
        if isinstance(self.plan, CompiledPlan):
            operators = sum(len(each.again) for each in self.plan.graphs)
            return (
                f"{operators} operators inside compiled code, {self.plan.share:.1%} of forward"
                if operators
                else "nothing"
            )
        return "nothing" if self.plan is None else phrase(self.plan)

    def __str__(self) -> str:
        return self.explain()


def report(model: Models) -> Report:
    """Report on a model with a budget: what was asked for, predicted and measured so far, and why each plan was made.

    Args:
        model: the model; if several are planned together, all of them, in a list or a mapping.

    Returns:
        The report: ten lines as text, and a table in a notebook.

    Raises:
        NotApplicable: `model` is no module, or neither a budget nor a plan is applied to it.

    Example:
        >>> import torch, autockpt
        >>> block = lambda: torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
        >>> model = torch.nn.Sequential(*(block() for _ in range(8)))
        >>> model = autockpt.apply(model, "1.5MB", inputs=torch.randn(256, 32))
        >>> print(autockpt.report(model))  # doctest: +ELLIPSIS
        Sequential: budget 1.5MB
        ...
    """
    whole = as_one(model)
    if private.is_compiled(whole):
        from ..._compiled.hold import held_by  # who does not compile loads none of it

        held = held_by(whole)
        if held is not None:
            return _of_compiled(whole, held)
    governor: Any = governor_of(next(iter(roots(whole).values())))
    plan = installed_plan(whole)
    if governor is None and plan is None:
        raise NotApplicable(f"nothing is applied to {title(whole)}: autockpt.apply(model, budget) comes first")
    if governor is None:
        return Report(model=title(whole), asked="", plan=plan)
    account = cast("Account", governor.account)
    return Report(
        model=title(whole),
        asked=spoken.asked(account.goal),
        plan=plan,
        plans=tuple(account.plans),
        steps=account.steps,
        measured_peak_bytes=account.peak_bytes(),
        step_seconds=statistics.median(account.seconds) if account.seconds else None,
        refused=tuple(account.refused.items()),
        decimal=spoken.in_unit(10**9, account.goal).endswith(" GB"),
    )


def _of_compiled(model: nn.Module, held: CompiledHold) -> Report:
    """Report on a model that is held to its budget inside what was compiled."""
    goal, made = held.goal, [Made(plan=plan, reason=reason) for plan, reason in held.made]
    return Report(
        model=title(getattr(model, "_orig_mod", model)),
        asked="" if goal is None else spoken.asked(goal),
        plan=held.plan,
        plans=tuple(made),
        steps=held.steps,
        decimal=goal is not None and spoken.in_unit(10**9, goal).endswith(" GB"),
    )

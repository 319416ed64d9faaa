"""`report`: how a model has kept to its budget so far."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import nn

from ..._calls.roots import Models, roots, title
from ..._data.compiled_plan import CompiledPlan
from ..._data.errors import NotApplicable
from ..._data.plan import Plan
from ..._data.text.document import Document
from ..._run.compare.checks import ReplayChecks
from ..._run.frames.table import Handle
from ..._run.patch.install import installed_on
from ..._run.patch.patches import governor_of
from ..._torch import private
from ..ranks.compiled import held_as_one
from . import spoken
from .account import Account, GivenSteps, Made, StepCount
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
        steps: how many steps ran under a plan; under one that was given, how many training forwards.
        measured_peak_bytes: the peak in the statistics of the device's allocator: of the whole process, since it began
            or the statistics were reset. None if the device keeps no statistics, as a CPU.
        step_seconds: seconds from the begin of a planned step to the begin of the next, the median; None before any.
        refused: calls that are kept because a replay of them differed, with the reasons.
        checked: whether replays are compared with their forwards.
        unplanned: why steps run without a plan; empty where one is there, or comes.
        delayed: why the last step could not be recorded for one; empty where it was, or none began.
        untrained: how many forwards could not train, for `torch.no_grad` or since nothing required a gradient, where
            none has trained so far.
        decimal: whether the budget is in decimal units.
    """

    _repr_pretty_ = Document._repr_pretty_  # IPython would take the repr of the dataclass, which comes first

    PAGE: ClassVar[str] = "explain.report.report_page"

    model: str
    asked: str
    plan: Plan | None
    plans: tuple[Made, ...] = ()
    steps: int = 0
    measured_peak_bytes: int | None = None
    step_seconds: float | None = None
    refused: tuple[tuple[str, str], ...] = ()
    checked: bool = True
    unplanned: str = ""
    delayed: str = ""
    untrained: int = 0
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

    @property
    def timed(self) -> bool:
        """Whether a step of the loop was measured that the plan's seconds go with: they are those of this machine."""
        own = bool(self.asked) and self.plan is not None
        return own and self.plan is not None and (self.step_seconds or 0.0) > self.plan.recompute_seconds

    @property
    def slower(self) -> float | None:
        """How much longer a step takes for what runs again, a ratio, whose seconds are predicted; None if not known.

        It is of the measured step of the loop; before one was measured, and under a plan that was given, of the plain
        forward and backward.
        """
        if self.plan is None or not self.plan.plain_seconds:
            return None
        if self.timed and self.step_seconds is not None:
            return self.plan.recompute_seconds / (self.step_seconds - self.plan.recompute_seconds)
        return self.plan.recompute_overhead


def report(model: Models) -> Report:
    """Report on a model with a budget: what was asked for, predicted and measured so far, and why each plan was made.

    Args:
        model: the model; if several are planned together, all of them, in a list or a mapping.

    Returns:
        The report: ten lines as text, and a table in a notebook.

    Raises:
        NotApplicable: `model` is no module, or neither a budget nor a plan is applied to it; or it is held to a budget
            inside what was compiled. The message says which.

    Example:
        >>> import torch, autockpt
        >>> block = lambda: torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
        >>> model = torch.nn.Sequential(*(block() for _ in range(8)))
        >>> model = autockpt.apply(model, "1.5MB", inputs=torch.randn(256, 32))
        >>> print(autockpt.report(model))  # doctest: +ELLIPSIS
        Sequential: budget 1.5MB
        ...
    """
    whole = held_as_one(model)
    if private.is_compiled(whole):
        from ..._compiled.hold import held_by  # who does not compile loads none of it

        held = held_by(whole)
        if held is not None:
            return _of_compiled(whole, held)
    governor: Any = governor_of(next(iter(roots(whole).values())))
    handle = installed_on(whole)
    plan = None if handle is None else handle.table.plan
    if governor is None and (handle is None or plan is None):
        raise NotApplicable(_nothing_on(whole))
    checked = plan is None or handle is None or handle.table.replayers is not None
    counted: StepCount
    told: dict[str, Any]
    if governor is None and handle is not None:
        counted = handle.began if isinstance(handle.began, GivenSteps) else StepCount()
        told = {"asked": "", "refused": _kept(handle)}
    else:
        account = counted = cast("Account", governor.account)
        told = {
            "asked": spoken.asked(account.goal),
            "plans": tuple(account.plans),
            "refused": tuple(account.refused.items()),
            "unplanned": account.unplanned,
            "delayed": account.delayed,
            "untrained": account.untrained if account.device is None else 0,
            "decimal": spoken.in_unit(10**9, account.goal).endswith(" GB"),
        }
    return Report(
        model=title(whole),
        plan=plan,
        steps=counted.steps,
        measured_peak_bytes=counted.peak_bytes(),
        step_seconds=statistics.median(counted.seconds) if counted.seconds else None,
        checked=checked,
        **told,
    )


def _kept(handle: Handle) -> tuple[tuple[str, str], ...]:
    """Return the calls that are kept under a plan that was given, because a replay of their segment differed."""
    plan, replayers = handle.table.plan, handle.table.replayers
    if plan is None or not isinstance(replayers, ReplayChecks):
        return ()
    return tuple((call, "a replay differed") for i in sorted(replayers.refused) for call in plan.segments[i].calls)


def _nothing_on(model: nn.Module) -> str:
    """Say that nothing is applied to a model; where it is a wrapper or was wrapped, what hides it."""
    for name, part in model.named_modules():
        if name and installed_on(part) is not None:
            inside = f"model.{name}" if name.replace(".", "").isidentifier() else f"model.get_submodule({name!r})"
            return f"{title(model)} has the model with a plan inside: autockpt.report({inside})"
    if any("forward" in vars(root) for root in roots(model).values()):
        return (
            f"nothing is applied to {title(model)}, or its forward was replaced since by one without __wrapped__, "
            "under which a plan is not seen: apply after whatever replaces it"
        )
    return f"nothing is applied to {title(model)}: autockpt.apply(model, budget) comes first"


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

"""`verify`: which runs are made, from which state, and what they prove."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..._choose.pins import refuse_pins
from ..._choose.solve import choose
from ..._data.errors import NotApplicable
from ..._data.goal import Asked, Goal, Patterns, Pins
from ..._data.keys import label
from ..._data.plan import Plan, Segment
from ..._data.profile import Profile
from ..._record import profile
from ..._record.loss import sum_of_outputs
from ..._record.optimizer import Optimizers
from ..._record.sandbox import Sandbox
from ..._record.step import TrainingStep, training_step
from ..._run.apply import goal_for
from ..._run.frames import watching_replays
from ..._run.install import install, installed_plan, set_aside, uninstall
from ...solvers.errors import BudgetError
from .compare import compare
from .figures import figures_of
from .outcome import Observed, observe
from .replays import Fault, comparing_replays
from .report import Difference, Verdict, Verification

PATIENCE = 2
"""More plain runs before the plan is blamed: noise (atomics on a GPU) need not show in the first two."""


def verify(
    model: torch.nn.Module,
    inputs: object,
    *,
    plan: Plan | None = None,
    budget: int | str | None = None,
    max_overhead: float | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Optimizers | None = None,
    solver: str = "auto",
    steps: int = 1,
    keep: Patterns = (),
    recompute: Patterns = (),
) -> Verification:
    """Run the plain step and the planned step from the same state, and compare all that they make, bit for bit.

    The plain step runs twice, so that what it does not repeat itself is not blamed on the plan; where the planned step
    differs, replays are held against what forward dropped. Then peaks and seconds of both are measured. Everything is
    put back. Copies of the state, and one plain run's outputs and gradients, wait on the host.

    Backward runs outside autocast; no optimizer runs, nor do hooks that run after a gradient was accumulated.

    Args:
        model: in the mode (train or eval) in which it will train; its plain step has to fit into memory.
        inputs: one batch: a tuple is passed positionally, a mapping by keyword.
        plan: the plan to check; without it, and without a budget, the one that is applied to the model.
        budget: check the plan that `solve` chooses for this budget; `apply` may choose another.
        max_overhead: check the plan that `solve` chooses for this recompute overhead.
        loss: maps the model's outputs to a scalar; without it, an output's ``.loss``, else the sum over the
            outputs that require gradients, and the plan for a budget is made as by `apply`.
        optimizer: its state in the budget: one of ``torch.optim``, or the name of its class.
        solver: a name in ``autockpt.solvers.SOLVERS``.
        steps: how many steps to run one after the other; buffers and generators go on from step to step.
        keep: patterns of calls that must not run again, not with a plan; see `solve`.
        recompute: patterns of calls that must run again.

    Returns:
        What was found; as text it begins with the verdict.

    Raises:
        AutockptError: as `apply` and `solve` raise it.
        BudgetError: more than one of plan, budget and overhead is given, or none and no plan is applied.
        Exception: whatever the plain step raises, with the model as it was.

    Example:
        >>> import torch, autockpt
        >>> model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
        >>> verification = autockpt.verify(model, torch.randn(8, 32), plan=autockpt.Plan.of(["1", ["2", "3"]]))
        >>> verification.exact, verification.replays
        (True, 2)
    """
    _refuse_several(plan, budget, max_overhead)
    if steps < 1:
        raise NotApplicable(f"steps={steps}: there must be at least one step to compare")
    with set_aside(model) as applied:
        _refuse_plans_inside(model)
        recorded = partial(profile, model, inputs, loss=loss, optimizer=optimizer)
        goal = None if budget is None and max_overhead is None else goal_for(model, budget, max_overhead)
        plan = _plan(plan or applied, goal, recorded, solver, keep, recompute)
        return _verified(model, plan, inputs, loss, steps)


def _plan(
    plan: Plan | None,
    goal: Goal | None,
    recorded: Callable[[], Profile],
    solver: str,
    keep: Patterns,
    recompute: Patterns,
) -> Plan:
    """Return the plan to verify: that for the goal, where there is one."""
    if goal is not None:
        return choose(recorded(), Asked(goal=goal, solver=solver, pins=Pins.of(keep, recompute)))
    refuse_pins(keep, recompute)
    if plan is None:
        raise BudgetError(
            "there is no plan to verify: give a plan or a budget, as in verify(model, batch, budget='8GB'), or "
            "apply one to the model first"
        )
    return plan


def _verified(
    model: torch.nn.Module, plan: Plan, inputs: object, loss: Callable[[Any], torch.Tensor] | None, steps: int
) -> Verification:
    with _on(model, plan):  # refuses a plan that does not fit before anything runs
        pass
    step = training_step(model, inputs, loss or sum_of_outputs)
    with Sandbox(model, inputs=(*step.args, *step.kwargs.values()), loss=loss, parameters=True) as sandbox:
        return _verify(step, plan, sandbox, steps)


@contextmanager
def _on(model: torch.nn.Module, plan: Plan) -> Iterator[None]:
    """Have `plan` on `model`: the one place where verifying installs it."""
    install(model, plan)
    try:
        yield
    finally:
        uninstall(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What came of the planned steps.

    Attributes:
        differences: from the plain steps.
        error: what they raised.
        replayed: the keys of the calls of each frame that was replayed, and of the units met in them.
    """

    differences: list[Difference]
    error: str | None
    replayed: list[tuple[str, ...]]


def _verify(step: TrainingStep, plan: Plan, sandbox: Sandbox, steps: int) -> Verification:
    sandbox.restore()
    plain = [[one.kept() for one in outcome] for outcome in _outcomes(step, sandbox, steps)]
    noise = _run_plain(step, sandbox, plain)
    planned = _run_planned(step, plan, sandbox, plain)
    order = {one.key: index for index, one in enumerate(plain[0])}
    runs = 2
    while runs < 2 + PATIENCE and _to_blame(planned, noise):
        known = {difference.key for difference in noise}
        noise += [each for each in _run_plain(step, sandbox, plain) if each.key not in known]
        noise.sort(key=lambda each: (each.step, order.get(each.key, len(order))))
        runs += 1
    faults = _faults(step, plan, sandbox, steps) if planned.differences or planned.error else []
    wrong = tuple(fault.difference for fault in faults if fault.repeats or not noise)
    return Verification(
        verdict="different" if wrong else _verdict(planned, noise),
        model=type(step.model).__name__,
        device=torch.cuda.get_device_name(step.device) if step.device.type == "cuda" else step.device.type,
        torch_version=str(torch.__version__),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        steps=steps,
        plain_runs=runs,
        segments=len(plan.segments),
        replays=len(planned.replayed),
        not_replayed=_not_replayed(plan, planned),
        not_met=_not_met(step.model, plan, planned),
        compared=dict(Counter(one.kind for outcome in plain for one in outcome)),
        differences=tuple(planned.differences),
        plain_differences=tuple(noise),
        wrong_replays=wrong,
        error=planned.error,
        notes=tuple(sandbox.notes()),
        **figures_of(step, plan, sandbox, partial(_on, step.model, plan) if planned.error is None else None),
    )


def _outcomes(step: TrainingStep, sandbox: Sandbox, steps: int) -> Iterator[list[Observed]]:
    """Run the steps, in a context of their own: what they set in a `ContextVar` goes with it."""
    context = copy_context()
    for _ in range(steps):
        yield context.run(observe, step, sandbox)


def _run_plain(step: TrainingStep, sandbox: Sandbox, plain: Sequence[Sequence[Observed]]) -> list[Difference]:
    """Run the plain steps again; return what differs."""
    sandbox.restore()
    found = []
    for number, (expected, outcome) in enumerate(zip(plain, _outcomes(step, sandbox, len(plain)), strict=True), 1):
        found += compare(number, expected, outcome)
    return found


def _run_planned(step: TrainingStep, plan: Plan, sandbox: Sandbox, plain: Sequence[Sequence[Observed]]) -> Planned:
    """Run the steps as `plan` wants them; return what differs."""
    sandbox.restore()
    found: list[Difference] = []
    error = None
    with _on(step.model, plan), watching_replays() as replayed:
        try:
            outcomes = _outcomes(step, sandbox, len(plain))
            for number, (expected, outcome) in enumerate(zip(plain, outcomes, strict=True), 1):
                found += compare(number, expected, outcome)
        except torch.OutOfMemoryError:
            raise
        except Exception as raised:  # the plain step went through, so whatever this is, the plan brought it
            error = f"{type(raised).__name__}: {' '.join(str(raised).split())}"
    return Planned(differences=found, error=error, replayed=replayed)


def _faults(step: TrainingStep, plan: Plan, sandbox: Sandbox, steps: int) -> list[Fault]:
    """Run the planned steps again, up to the first whose replays do not make what was dropped; return those."""
    sandbox.restore()
    arguments = (*step.args, *step.kwargs.values())
    outcomes = _outcomes(step, sandbox, steps)
    with _on(step.model, plan):
        for number in range(1, steps + 1):
            with comparing_replays(number, partial(Sandbox, step.model, inputs=arguments, loss=step.loss)) as faults:
                try:
                    next(outcomes)
                except Exception:  # as the planned run before, which has told it
                    return faults
            if faults:
                return faults
    return []


def _to_blame(planned: Planned, noise: Sequence[Difference]) -> bool:
    """Whether the planned steps went wrong in a way that is not explained by plain steps that do not repeat."""
    known = {difference.key for difference in noise}
    forward_repeats = not any(kind in ("output", "loss") for kind, _ in known)
    if planned.error is not None and forward_repeats:
        return True  # a forward that does not repeat itself cannot be replayed under any plan
    return any(difference.key not in known for difference in planned.differences)


def _verdict(planned: Planned, noise: Sequence[Difference]) -> Verdict:
    if _to_blame(planned, noise):
        return "different"
    if noise:
        return "not repeatable"
    return "exact" if planned.replayed else "nothing recomputed"


def _not_replayed(plan: Plan, planned: Planned) -> tuple[str, ...]:
    replayed = {key for keys in planned.replayed for key in keys}
    return tuple(_named(segment) for segment in plan.segments if not replayed.intersection(segment.calls))


def _not_met(model: torch.nn.Module, plan: Plan, planned: Planned) -> tuple[str, ...]:
    """Units of segments that were replayed, which forward never came to: a function that it does not call, say."""
    first = {id(module): name for name, module in model.named_modules()}
    canonical = {name: first[id(module)] for name, module in model.named_modules(remove_duplicate=False)}
    replayed = {key for keys in planned.replayed for key in keys}
    found = []
    for segment in plan.segments:
        if replayed.isdisjoint(segment.calls):
            continue
        for unit in (*segment.keep, *segment.skip):
            name, sharp, rest = unit.partition("#")
            if unit not in segment.calls and f"{canonical[name]}{sharp}{rest}" not in replayed:
                found.append(unit)
    return tuple(found)


def _named(segment: Segment) -> str:
    first, last = label(segment.calls[0]), label(segment.calls[-1])
    return first if len(segment.calls) == 1 else f"{first} … {last}"


def _refuse_several(*given: object) -> None:
    if sum(each is not None for each in given) > 1:
        raise BudgetError(
            "give either a budget, or max_overhead, or a plan, and only one of them: verify(model, batch, budget='8GB')"
        )


def _refuse_plans_inside(model: torch.nn.Module) -> None:
    inside = [name for name, module in model.named_modules() if name and installed_plan(module) is not None]
    if inside:
        raise NotApplicable(
            f"a plan is applied to a part of the model, {inside[0]!r}, so that no step of the whole would be plain. "
            "Remove that one first, or verify that part."
        )

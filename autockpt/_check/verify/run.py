"""`verify`: which steps run, from which state, and what that proves."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..._calls.roots import Models, as_one, roots, title
from ..._choose.solve import choose
from ..._data.errors import ProfilingError
from ..._data.goal import Asked, Patterns, Pins
from ..._data.plan import Plan
from ..._data.text.keys import label
from ..._record import profile
from ..._record.aside.sandbox import Sandbox
from ..._record.aside.switches import switched_off
from ..._record.loss import sum_of_outputs
from ..._record.optimizers.memory import Optimizers
from ..._record.step import TrainingStep, training_step
from ..._run.frames.table import Replayers
from ..._run.patch.install import as_applied, govern, install, set_aside, uninstall
from ..._run.patch.patches import governor_of
from ..._run.patch.watching import watching_replays
from ..._torch import private
from ..._torch.devices import device_of
from ..._train.apply import goal_for
from ..._train.deciding.known import LoopState
from ..._train.governor import Governor
from ...solvers.errors import BudgetError
from .asked import refuse_plans_inside, refuse_unclear, runnable
from .figures import figures_of
from .outcome import Observed, compare, observe
from .replays import Comparing, Fault
from .report import Difference, Verdict, Verification

PATIENCE = 2
"""More plain runs before the plan is blamed: noise (atomics on a GPU) need not show in the first two."""


def verify(
    model: Models,
    inputs: object,
    *,
    step: Callable[..., torch.Tensor] | None = None,
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

    For several models under one plan, `step` says what the loop does with them. The plain step runs twice: if it does
    not repeat itself, the plan is not blamed for that. If the planned step differs, replays are compared with what
    forward dropped. Then the step is recorded, so that the plan's peak is predicted for the very step that is measured,
    and the peaks and seconds of both steps are measured. Everything is put back. Copies of the state, and of one plain
    run's outputs and gradients, are held on the host.

    Of a model that is held to its budget inside what was compiled, the plain step is the compiled one.

    Backward runs outside autocast; no optimizer runs, nor do hooks that run after a gradient was accumulated.

    Args:
        model: in the mode (train or eval) in which it will train; its plain step has to fit into memory. Or several, as
            `apply` takes them.
        inputs: one batch: a tuple is passed positionally, a mapping by keyword; to the model, or to `step`.
        step: for several models, and only for them: is given the batch, calls the models, and returns the loss.
        plan: the plan to check; without it, and without a budget, the one that is applied to the model.
        budget: check the plan that `solve` chooses for this budget; `apply` may choose another.
        max_overhead: check the plan that `solve` chooses for this recompute overhead.
        loss: maps the model's outputs to a scalar; without it, an output's ``.loss``, else the sum over the
            outputs that require gradients, and the plan for a budget is made as by `apply`.
        optimizer: an optimizer of ``torch.optim``, or the name of its class. Its state counts; in a plan for a budget
            its step does too. Without it, the optimizers count that were seen to train a model which `apply` holds to a
            budget.
        solver: a name in ``autockpt.solvers.SOLVERS``, or ``uniform:4`` or ``block:4`` for so many layers.
        steps: how many steps to run one after the other; buffers and generators go on from step to step.
        keep: patterns of calls that must not run again, for a budget or overhead only; see `solve`.
        recompute: patterns of calls that must run again.

    Returns:
        What was found; as text it begins with the verdict.

    Raises:
        AutockptError: as `apply` and `solve` raise it.
        NotApplicable: several models are given without `step`, or one with it; or only some of the models that share a
            plan.
        BudgetError: more than one of plan, budget and overhead is given, or none and no plan is applied.
        ProfilingError: forward or the loss fails on the batch, which leaves the model as it was.
        Exception: whatever else the plain step raises.

    Example:
        >>> import torch, autockpt
        >>> model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
        >>> verification = autockpt.verify(model, torch.randn(8, 32), plan=autockpt.Plan.of(["1", ["2", "3"]]))
        >>> verification.exact, verification.replays
        (True, 2)
    """
    whole = as_one(model)
    refuse_unclear(plan, budget, max_overhead, keep, recompute, steps)
    if private.is_compiled(whole) and not any(each is not None for each in (plan, budget, max_overhead)):
        from ..._compiled.hold import held_by  # who does not compile loads none of it
        from .compiled import verify_compiled

        held = held_by(whole)
        if held is not None:
            return verify_compiled(whole, held, inputs, loss, steps)
    runs = runnable(whole if plan is not None else as_applied(whole), step, loss)
    governor = governor_of(next(iter(roots(whole).values())))
    known = governor.standing() if plan is None and budget is None and isinstance(governor, Governor) else None
    standing = known or LoopState()
    if optimizer is not None:
        standing = dataclasses.replace(standing, optimizer=optimizer)
    own = nullcontext() if plan is not None else switched_off(whole)
    with set_aside(whole) as applied, own:
        refuse_plans_inside(runs)
        if budget is not None or max_overhead is not None:
            asked = Asked(goal=goal_for(whole, budget, max_overhead), solver=solver, pins=Pins.of(keep, recompute))
            plan = choose(profile(runs, inputs, loss=loss, optimizer=optimizer), asked)
        return _verified(runs, plan or applied, inputs, loss, steps, standing)


def _verified(
    model: torch.nn.Module,
    plan: Plan | None,
    inputs: object,
    loss: Callable[[Any], torch.Tensor] | None,
    steps: int,
    standing: LoopState,
) -> Verification:
    if plan is None:
        raise BudgetError(
            "there is no plan to verify: give a plan or a budget, as in verify(model, batch, budget='8GB'). Where a "
            "budget was applied, its plan is made as the third step begins, or at once with apply(..., inputs=batch)"
        )
    install(model, plan)  # refuses a plan that does not fit before anything runs
    uninstall(model)
    step = training_step(model, inputs, loss or sum_of_outputs)
    with Sandbox(model, inputs=(*step.args, *step.kwargs.values()), loss=loss, parameters=True) as sandbox:
        return _verify(Runs(step=step, plan=plan, sandbox=sandbox, steps=steps), standing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs of some steps, plain or under a plan, each from the state that the sandbox remembers.

    Attributes:
        step: one step.
        plan: what to recompute.
        sandbox: puts everything back, and takes the plan off with it.
        steps: how many steps to run one after the other.
    """

    step: TrainingStep
    plan: Plan
    sandbox: Sandbox
    steps: int

    @contextmanager
    def planned(self, replayers: Replayers | None = None) -> Iterator[None]:
        """Have the plan on the model, in the state from which runs begin: the one place where it is installed."""
        self.sandbox.restore()
        govern(self.step.model, None, self.plan, replayers)
        try:
            yield
        finally:
            uninstall(self.step.model)

    def outcomes(self) -> Iterator[list[Observed]]:
        """Run the steps in a context of their own, so that nobody else sees what they set in a `ContextVar`."""
        context = copy_context()
        for _ in range(self.steps):
            yield context.run(observe, self.step, self.sandbox)

    def differences(self, plain: Sequence[Sequence[Observed]]) -> Iterator[Difference]:
        """Run the steps; yield what differs from plain ones."""
        for number, (expected, outcome) in enumerate(zip(plain, self.outcomes(), strict=True), 1):
            yield from compare(number, expected, outcome)


def _verify(runs: Runs, standing: LoopState) -> Verification:
    """Run plain steps twice and planned ones once, and compare them.

    While a difference is not explained by noise, up to `PATIENCE` more plain runs look for more noise.
    """
    step, plan, sandbox = runs.step, runs.plan, runs.sandbox
    sandbox.restore()
    plain = [[one.kept() for one in outcome] for outcome in runs.outcomes()]
    order = {one.key: index for index, one in enumerate(plain[0])}
    noise: list[Difference] = []
    _run_plain(runs, plain, noise)
    differences, error, replayed = _run_planned(runs, plain)
    plain_runs = 2
    while plain_runs < 2 + PATIENCE and _is_to_blame(differences, error, noise):
        _run_plain(runs, plain, noise)
        noise.sort(key=lambda each: (each.step, order.get(each.key, len(order))))
        plain_runs += 1
    wrong = _wrong_replays(runs, noise) if differences or error else ()
    blamed = bool(wrong) or _is_to_blame(differences, error, noise)
    return Verification(
        verdict=_verdict(blamed=blamed, noisy=bool(noise), replayed=bool(replayed) or _moves(plan)),
        model=title(step.model),
        device=device_of(step.device).name,
        torch_version=str(torch.__version__),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        steps=runs.steps,
        plain_runs=plain_runs,
        segments=len(plan.segments),
        replays=len(replayed),
        compared=dict(Counter(one.kind for outcome in plain for one in outcome)),
        differences=tuple(differences),
        plain_differences=tuple(noise),
        wrong_replays=wrong,
        error=error,
        notes=tuple(sandbox.notes()),
        **_never_met(step.model, plan, {key for keys in replayed for key in keys}),
        **figures_of(step, plan, sandbox, runs.planned if error is None else None, standing),
    )


def _verdict(*, blamed: bool, noisy: bool, replayed: bool) -> Verdict:
    """Return the verdict on a plan: `blamed` for a difference, `noisy` if the plain step does not repeat itself."""
    if blamed:
        return "different"
    if noisy:
        return "not repeatable"
    return "exact" if replayed else "nothing recomputed"


def _moves(plan: Plan) -> bool:
    """Whether a plan moves what some calls save off the device; nothing of these calls runs again."""
    return any(not segment.runs_again for segment in plan.segments)


def _wrong_replays(runs: Runs, noise: Sequence[Difference]) -> tuple[Difference, ...]:
    """Replays that do not restore their forward; where the plain step does not repeat itself, those that repeat."""
    return tuple(fault.difference for fault in _faults(runs) if fault.repeats or not noise)


def _run_plain(runs: Runs, plain: Sequence[Sequence[Observed]], noise: list[Difference]) -> None:
    """Run the plain steps again, and add the differences that are new to `noise`."""
    known = {difference.key for difference in noise}
    runs.sandbox.restore()
    noise += [each for each in runs.differences(plain) if each.key not in known]


def _run_planned(
    runs: Runs, plain: Sequence[Sequence[Observed]]
) -> tuple[list[Difference], str | None, list[tuple[str, ...]]]:
    """Run the planned steps; return the differences, the error if any, and the keys that each replay came to."""
    found: list[Difference] = []
    error = None
    with runs.planned(), watching_replays(runs.step.model) as replayed:
        try:
            found.extend(runs.differences(plain))
        except torch.OutOfMemoryError:
            raise
        except Exception as raised:  # the plain step went through, so whatever this is, the plan brought it
            told = raised.own if isinstance(raised, ProfilingError) else raised
            error = f"{type(told).__name__}: {' '.join(str(told).split()):.400}"
    return found, error, replayed


def _faults(runs: Runs) -> list[Fault]:
    """Run the planned steps again, up to the first with faults, and return those of that step.

    A fault is a replay that does not make what was dropped.
    """
    step, outcomes = runs.step, runs.outcomes()
    state = partial(Sandbox, step.model, inputs=(*step.args, *step.kwargs.values()), loss=step.loss)
    comparing = Comparing(state)
    with runs.planned(comparing), suppress(Exception):  # the planned run before has reported it
        while comparing.step < runs.steps and not comparing.faults:
            comparing.step += 1
            next(outcomes)
    return comparing.faults


def _is_to_blame(differences: Sequence[Difference], error: str | None, noise: Sequence[Difference]) -> bool:
    """Whether planned steps went wrong in a way that is not explained by plain steps that do not repeat."""
    known = {difference.key for difference in noise}
    if error is not None and not any(kind in ("output", "loss") for kind, _ in known):
        return True  # a forward that does not repeat itself cannot be replayed under any plan
    return any(difference.key not in known for difference in differences)


def _never_met(model: torch.nn.Module, plan: Plan, replayed: Collection[str]) -> dict[str, Any]:
    """Find segments that never ran again, and units of the other segments that forward never came to."""
    first = {id(module): name for name, module in model.named_modules()}
    canonical = {name: first[id(module)] for name, module in model.named_modules(remove_duplicate=False)}
    segments: list[str] = []
    units: list[str] = []
    for segment in plan.segments:
        if not segment.runs_again:
            continue
        if not any(call in replayed for call in segment.calls):
            segments.append(" … ".join(label(call) for call in dict.fromkeys((segment.calls[0], segment.calls[-1]))))
            continue
        for unit in segment.units:
            name, sharp, rest = unit.partition("#")
            if unit not in segment.calls and f"{canonical[name]}{sharp}{rest}" not in replayed:
                units.append(unit)
    return {"not_replayed": tuple(segments), "not_met": tuple(units)}

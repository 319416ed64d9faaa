"""`verify` of a model that is held to its budget inside what was compiled, beside the compiled plain step."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ..._calls.roots import title
from ..._compiled.hold import CompiledHold
from ..._data.compiled_plan import CompiledPlan
from ..._record.aside.sandbox import Sandbox
from ..._record.loss import sum_of_outputs
from ..._record.step import TrainingStep, training_step
from ..._torch.devices import device_of
from ...solvers.errors import BudgetError
from .figures import peak_bytes_of, seconds_of
from .outcome import Observed, compare, observe
from .report import Verdict, Verification

There = Callable[[], AbstractContextManager[None]]
"""Makes a context that a step runs in."""

ROUNDS = (
    "inductor fuses operators that run again with others than in forward: where it does, values may differ by "
    "rounding, and masks of dropout do not"
)


def verify_compiled(
    model: nn.Module, held: CompiledHold, inputs: object, loss: Callable[[Any], torch.Tensor] | None, steps: int
) -> Verification:
    """Run the compiled plain step and the planned one from the same state, and compare all that they make.

    Args:
        model: the model, as it was compiled.
        held: what holds it to its budget.
        inputs: a batch.
        loss: maps the model's outputs to a scalar.
        steps: how many steps to run one after the other.

    Raises:
        BudgetError: no plan was made yet.
    """
    if held.plan is None:
        raise BudgetError(
            "there is no plan to verify yet: that of a compiled model is made as its first training step begins, or "
            "at once with apply(..., inputs=batch)"
        )
    step = training_step(model, inputs, loss or sum_of_outputs)
    with Sandbox(model, inputs=(*step.args, *step.kwargs.values()), loss=loss, parameters=True) as sandbox:
        own = functools.partial(_plain, model, held)
        plain, again, planned = (_outcomes(step, sandbox, steps, there) for there in (own, own, nullcontext))
        measured = _measured(step, sandbox, "measured_plain_", own) | _measured(step, sandbox, "measured_", nullcontext)
    return _found(model, held.plan, (plain, again, planned), measured, device_of(step.device).name)


def _found(
    model: nn.Module,
    plan: CompiledPlan,
    runs: tuple[Sequence[Sequence[Observed]], ...],
    measured: dict[str, Any],
    device: str,
) -> Verification:
    plain, again, planned = runs
    noise, differences = (
        tuple(
            one
            for i, (first, second) in enumerate(zip(plain, run, strict=True), 1)
            for one in compare(i, first, second)
        )
        for run in (again, planned)
    )
    operators = sum(len(each.again) for each in plan.graphs)
    verdict: Verdict = "exact" if operators else "nothing recomputed"
    if {each.key for each in differences} - {each.key for each in noise}:
        verdict = "different"
    elif noise:
        verdict = "not repeatable"
    return Verification(
        verdict=verdict,
        model=title(getattr(model, "_orig_mod", model)),
        device=device,
        torch_version=str(torch.__version__),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        steps=len(plain),
        plain_runs=2,
        segments=operators,
        replays=operators * len(plain),
        compared=dict(Counter(one.kind for outcome in plain for one in outcome)),
        differences=differences,
        plain_differences=noise,
        planned_plain_peak_bytes=plan.plain_peak_bytes,
        planned_peak_bytes=plan.peak_bytes,
        notes=(ROUNDS,) if plan.tried_bytes and differences else (),
        **measured,
    )


@contextmanager
def _plain(model: nn.Module, held: CompiledHold) -> Iterator[None]:
    """Have the user's own compiled call on the model."""
    ours = vars(model)[held.settings.attribute]
    vars(model)[held.settings.attribute] = held.own
    try:
        yield
    finally:
        vars(model)[held.settings.attribute] = ours


def _outcomes(step: TrainingStep, sandbox: Sandbox, steps: int, there: There) -> list[list[Observed]]:
    """Run the steps from the state that the sandbox remembers, and inside a context."""
    sandbox.restore()  # first: it puts back what the context changes
    with there():
        return [[one.kept() for one in observe(step, sandbox)] for _ in range(steps)]


def _measured(step: TrainingStep, sandbox: Sandbox, name: str, there: There) -> dict[str, Any]:
    """Measure the peak and the seconds of a step, as `_outcomes` runs it."""
    sandbox.restore()
    with there():
        peak_bytes = peak_bytes_of(step)
    sandbox.restore()
    with there():
        return {f"{name}peak_bytes": peak_bytes, f"{name}seconds": seconds_of(step)}

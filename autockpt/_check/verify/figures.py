"""Peaks and seconds of the plain and the planned step.

    planned    what the plan predicts of the step that it was made for, the step of its optimizer included
    predicted  the same plan, on a recording of the step that is run here: forward and backward
    measured   that very step

The step here is like the steps that the plan is for, as far as those are known. If they begin without gradients or
release their outputs before backward, it does too, and the state of their optimizer is counted.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import msgspec
from torch.optim import Optimizer

from ..._data.errors import ProfilingError
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._record.alive import storage_bytes
from ..._record.aside.sandbox import Sandbox
from ..._record.optimizers.memory import Optimizers
from ..._record.optimizers.shadow import state_tensors
from ..._record.recorder import record_step
from ..._record.step import TrainingStep
from ..._torch.devices import device_of
from ..._train.deciding.known import LoopState
from ...solvers.errors import AutockptError
from ..measure import measure

Planned = Callable[[], AbstractContextManager[None]]


def figures_of(
    step: TrainingStep, plan: Plan, sandbox: Sandbox, planned: Planned | None, standing: LoopState
) -> dict[str, Any]:
    """Return the figures of a `Verification` by name: those that the plan predicts, and those of a step.

    Args:
        step: the step.
        plan: the plan.
        sandbox: puts everything back between runs.
        planned: a context in which the plan is on; None if its step fails: then nothing is measured.
        standing: what is alive in the steps that the plan is for.
    """
    asked = plan.goal.budget if plan.goal is not None else None
    found: dict[str, Any] = {"asked": asked if isinstance(asked, str) else "", "budget_bytes": plan.budget_bytes}
    if plan.plain_seconds:
        seconds = plan.plain_seconds
        found |= {"predicted_plain_seconds": seconds, "predicted_seconds": seconds + plan.recompute_seconds}
    begun = dataclasses.replace(step, holds_outputs=standing.outputs)
    if not standing.gradients:
        begun = dataclasses.replace(begun, held=(None,) * len(step.held))

    @contextmanager
    def state(there: Planned) -> Iterator[None]:
        """The state in which a step begins."""
        sandbox.restore()  # first: it takes the plan off
        with there(), nullcontext() if standing.gradients else step.gradients_aside():
            yield

    optimizer_bytes = 0
    if plan.plain_peak_bytes:
        found |= {"planned_plain_peak_bytes": plan.plain_peak_bytes, "planned_peak_bytes": plan.peak_bytes}
        with state(nullcontext):
            profile = _recorded(begun, standing.optimizer)
        optimizer_bytes = profile.static.optimizer_bytes if profile is not None else 0
        found |= _predicted(plan, profile)
    if planned is None:
        return found
    optimizer_bytes = _state_bytes(begun, standing.optimizer) or optimizer_bytes
    for name, there in (("measured_plain_", nullcontext), ("measured_", planned)):
        with state(there):
            peak_bytes = peak_bytes_of(begun)
        found[name + "peak_bytes"] = None if peak_bytes is None else peak_bytes + optimizer_bytes
        with state(there):
            found[name + "seconds"] = seconds_of(begun)
    return found | {"optimizer_bytes": optimizer_bytes}


def _recorded(step: TrainingStep, optimizer: Optimizers | None) -> Profile | None:
    """Record the step that is measured; None where it cannot be."""
    try:
        return record_step(step, optimizer=optimizer, timed=False)
    except AutockptError:  # nothing is predicted then
        return None


def _predicted(plan: Plan, profile: Profile | None) -> dict[str, int]:
    """Predict the peaks of a recorded forward and backward; nothing where the plan does not fit it."""
    if profile is None:
        return {}
    profile = msgspec.structs.replace(profile, optimizer_step_bytes=0)
    try:
        peak_bytes = plan.timeline(profile).peak_bytes
    except AutockptError:
        return {}
    return {"predicted_plain_peak_bytes": profile.plain_peak_bytes, "predicted_peak_bytes": peak_bytes}


def _run(step: TrainingStep) -> None:
    outputs, loss = step.forward()
    if not step.holds_outputs:
        outputs = None
    if any(gradient is not None for gradient in step.held):
        step.add_gradients(loss)
    else:
        step.gradients(loss)
    del outputs


def _state_bytes(step: TrainingStep, optimizer: Optimizers | None) -> int:
    """Bytes of the state that optimizers have now."""
    several = optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)
    held = [tensor for each in several if isinstance(each, Optimizer) for tensor in state_tensors(each)]
    return storage_bytes(device_of(step.device), held)


def peak_bytes_of(step: TrainingStep) -> int | None:
    """Measure the peak of a step with its model, batch and gradients; nothing else alive in the process counts."""
    standing = [*step.model.parameters(), *step.model.buffers(), *step.inputs()]
    standing += [gradient for gradient in step.held if gradient is not None]
    device = device_of(step.device)
    try:
        step_bytes = measure(lambda: _run(step), device=step.device).step_bytes
    except ProfilingError:  # a profiler of the caller's is running
        return None
    return storage_bytes(device, standing) + step_bytes + device.forget_workspaces()  # earlier steps allocated them


def seconds_of(step: TrainingStep) -> float:
    """Measure the seconds of a step."""
    device = device_of(step.device)
    device.wait()
    began = time.perf_counter()
    _run(step)
    device.wait()
    return time.perf_counter() - began

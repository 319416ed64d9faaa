"""Peaks and seconds of the plain and the planned step, predicted and measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..._data.errors import ProfilingError
from ..._data.plan import Plan
from ..._device import device_of
from ..._record.recorder import storage_bytes
from ..._record.sandbox import Sandbox
from ..._record.step import TrainingStep
from ..measure import measure


def figures_of(
    step: TrainingStep, plan: Plan, sandbox: Sandbox, planned: Callable[[], AbstractContextManager[None]] | None
) -> dict[str, Any]:
    """Return the figures of a `Verification` by name: those that the plan predicts, and those of a step.

    In the context `planned` the plan is on; None where its step does not go through: nothing is measured then.
    """
    found: dict[str, Any] = {"budget_bytes": plan.budget_bytes}
    if plan.plain_peak_bytes:
        found |= {"predicted_plain_peak_bytes": plan.plain_peak_bytes, "predicted_peak_bytes": plan.peak_bytes}
    if plan.plain_seconds:
        seconds = plan.plain_seconds
        found |= {"predicted_plain_seconds": seconds, "predicted_seconds": seconds + plan.recompute_seconds}
    if planned is None:
        return found
    for name, there in (("measured_plain_", nullcontext), ("measured_", planned)):
        for figure, measured in (("peak_bytes", _peak_bytes), ("seconds", _seconds)):
            sandbox.restore()  # which would take the plan off
            with there():
                found[name + figure] = measured(step)
    return found


def _run(step: TrainingStep) -> None:
    _outputs, loss = step.forward()  # the outputs are alive in backward, as in a training loop
    step.gradients(loss)


def _peak_bytes(step: TrainingStep) -> int | None:
    """Measure the peak of a step over what it stands on; what else is alive in the process does not count."""
    standing = [*step.model.parameters(), *step.model.buffers(), *step.inputs()]
    standing += [gradient for gradient in step.held if gradient is not None]
    device = device_of(step.device)
    try:
        step_bytes = measure(lambda: _run(step), device=step.device).step_bytes
    except ProfilingError:  # a profiler of the caller's is running
        return None
    return storage_bytes(device, standing) + step_bytes + device.forget_workspaces()  # earlier steps took them


def _seconds(step: TrainingStep) -> float:
    device = device_of(step.device)
    device.wait()
    began = time.perf_counter()
    _run(step)
    device.wait()
    return time.perf_counter() - began

"""Which plan is right for the training step that begins.

first step             record the step, holding nothing; solve; train on, under the plan
a smaller batch        the same plan
a larger batch         a plan for it before it runs: of a recorded step (the second size in a single run, where it
                       does what the first did), or, once two sizes were recorded, of a predicted one, for a size
                       somewhat larger still
the model changed      (layers unfrozen, autocast off) a plan for it as it is now, of a recorded step
gradients are there    (accumulation) a plan for steps that begin with them, and from then on always that
a measured step        above the budget, or far below: the difference is added to what is alive, and solved again
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import nn

from ..._choose.candidates import find_candidates
from ..._choose.candidates.restated import restate
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._record.recorder import record_step
from ..._record.step import NothingToTrain, step_of, training_step
from ..._record.tape import ProfilerElsewhere
from ...solvers.errors import Infeasible, TooCostly
from ...solvers.units import format_bytes
from ..frames import Handle
from ..install import replan, unplanned
from .again import record_again
from .batch import Batch, batch_of, enlarged
from .foresight import MARGIN, Known, foreseen
from .gauge import Gauge, Reading
from .request import Request
from .searched import Searched, searched_for
from .surroundings import optimizers_for, other_bytes, reserved_margin

_log = logging.getLogger("autockpt")

MOST_CORRECTIONS = 3
"""After so many the plan stays: what varies from step to step is not for a plan to follow."""

LOOKS = 2
"""Training steps at whose begin optimizers are looked for: they may be made after the first forward."""

WELL_USED = 0.9
"""A measured peak above this share of the budget is near enough to it."""


SEARCH_STEPS = 1.0
"""Plain steps that the search for a later plan may take; that for the first has no such limit."""

SEARCH_STEPS_RECORDED = 0.2
"""The same where a step was recorded for it, in about one and a half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A plan, and the steps that it keeps to the budget."""

    known: Known
    plan: Plan


class Governor:
    """Holds a model to a budget, step by step.

    It knows the model only while a step begins, so that copies and pickles of the model take it along; a copy makes
    its own plans, for the same budget.

    Args:
        request: what the user asked for.

    Attributes:
        handle: what the root's forward knows of the plan that is on the model now.
    """

    handle: Handle

    def __init__(self, request: Request) -> None:
        self._request = request
        self._known: list[Known] = []
        self._searched: list[Searched] = []
        self._ready: list[Ready] = []
        self._current: Ready | None = None
        self._gauge = Gauge(request.measured_steps)
        self._untrained: list[Batch] = []
        self._error_bytes = 0
        self._looks = 0
        self._corrections = 0
        self._raised = False
        self._alike = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Governor:
        return _restored(_without_optimizer(self._request), copy.deepcopy(self.handle, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        # A loss may be a lambda, and an optimizer would take the weights along a second time.
        return _restored, (dataclasses.replace(_without_optimizer(self._request), loss=None), self.handle)

    def prepare(self, model: nn.Module, inputs: object) -> Plan:
        """Plan before any step, on a batch that the user gives; errors as for `autockpt.apply`."""
        request = self._request
        step = training_step(model, inputs, request.loss)
        if request.plan_for:
            args, kwargs = enlarged(model.forward, step.args, step.kwargs, request.plan_for)
            step = step_of(model, args, kwargs, request.loss)
        known = Known(
            batch=batch_of(model, model.forward, step.args, step.kwargs),
            gradient_bytes=gradient_bytes(model),
            profile=record_step(step, optimizer=request.optimizer or optimizers_for(model)),
            recorded=True,
        )
        self._current = self._solved(known)
        self._known, self._ready = [known], [self._current]
        return self._current.plan

    def before(
        self, model: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Make the plan right for the training step that begins with these arguments.

        Raises:
            Infeasible: no plan keeps this step to the budget.
            ProfilingError: the step cannot be recorded.
            Exception: whatever the model's own forward raises.
        """
        reading = self._gauge.read()
        if reading is not None:
            self._correct(model, reading)
        self._look_for_optimizers(model)
        batch, held_bytes = batch_of(model, forward, args, kwargs), gradient_bytes(model)
        current = [self._current] if self._current is not None else []  # first: a plan stays where it can
        ready = next((each for each in (*current, *self._ready) if each.known.includes(batch, held_bytes)), None)
        if ready is None and any(each.covers(batch) for each in self._untrained):
            return
        if ready is None:
            try:
                ready = self._made(model, forward, args, kwargs, batch, held_bytes)
            except NothingToTrain:  # a prediction, say, of a model left in train mode: no step begins here
                self._untrained.append(batch)
                return
            except ProfilerElsewhere as error:
                _log.warning("this step runs as it is, a later one is planned: %s", error)
                return
            self._ready.append(ready)
        if ready is not self._current:
            replan(model, self, ready.plan)
            self._current = ready
        if (ready.known.batch, ready.known.gradient_bytes) == (batch, held_bytes):  # else it foretold another step
            self._gauge.open(ready.plan, next(model.parameters()).device)

    def close(self) -> None:
        """End a measurement that is under way."""
        self._gauge.read()

    def _look_for_optimizers(self, model: nn.Module) -> None:
        """Forget what was planned without an optimizer, if there is one by now."""
        if self._looks == LOOKS or self._request.optimizer is not None:
            return
        self._looks += 1
        if self._known and not self._known[0].profile.optimizer and optimizers_for(model):
            self._known, self._searched, self._ready, self._current = [], [], [], None

    def _made(
        self,
        model: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        batch: Batch,
        held_bytes: int,
    ) -> Ready:
        """Make a plan for the step that begins: from what is known, or from what it shows."""
        ready = self._foreseen(batch, held_bytes, SEARCH_STEPS)
        if ready is None:
            if self._request.plan_for and not self._known:
                args, kwargs = enlarged(forward, args, kwargs, self._request.plan_for)
                batch = batch_of(model, forward, args, kwargs)
            with unplanned(model, self, forward):
                again = self._recorded_again(model, args, kwargs, batch, held_bytes)
                recorded = again or self._recorded(model, args, kwargs)
            known = Known(batch=batch, gradient_bytes=held_bytes, profile=recorded, recorded=True)
            self._known.append(known)
            steps = SEARCH_STEPS if again is None else SEARCH_STEPS_RECORDED
            ready = self._foreseen(batch, held_bytes, steps)
            ready = ready or self._solved(known, math.inf if again is None else steps)
        return ready

    def _foreseen(self, batch: Batch, held_bytes: int, search_steps: float) -> Ready | None:
        """Plan for steps that recorded ones foretell, None where they do not tell enough."""
        for known in foreseen(batch, held_bytes, self._known):
            try:
                return self._solved(known, search_steps)
            except (Infeasible, TooCostly):
                continue  # less headroom may do, or a recorded step, which needs no margin
        return None

    def _recorded(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Profile:
        """Record the step that begins, without holding its activations."""
        request = self._request
        optimizer = request.optimizer or optimizers_for(model)
        step = step_of(model, args, kwargs, request.loss, hooks=False)
        recorded = record_step(step, optimizer=optimizer, whole=False)
        if step.device.type == "cuda" or request.measured_steps:
            recorded = _with_others(recorded, other_bytes(recorded.static, optimizer, step.device))
        return recorded

    def _recorded_again(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        batch: Batch,
        held_bytes: int,
    ) -> Profile | None:
        """Record the step that begins as another size of one that is known; None where it is none."""
        alike = [each for each in self._known if each.gradient_bytes == held_bytes and each.batch.kind == batch.kind]
        if not alike or not self._alike:
            return None
        known, request = alike[-1], self._request
        step = step_of(model, args, kwargs, request.loss, hooks=False)
        recorded = record_again(step, known.profile)
        self._alike = recorded is not None
        return recorded

    def _solved(self, known: Known, search_steps: float = math.inf) -> Ready:
        """Plan for steps that are known, as far as measurements have corrected that by now.

        The solver has half of the `search_steps`; the rest is for finding what may be recomputed, unless that is known
        from another size.
        """
        began = time.perf_counter()
        corrected = _with_others(known.profile, self._error_bytes)
        margin = reserved_margin(corrected) + (0.0 if known.recorded else MARGIN)
        half_seconds = search_steps * corrected.plain_seconds / 2
        solve = functools.partial(self._request.solve, corrected, margin=margin, limit_seconds=half_seconds)
        plan = None
        searched = searched_for(known, self._searched)
        if searched is not None:
            try:
                plan = solve(restate(searched.candidates, corrected))
            except (Infeasible, TooCostly):
                if not known.recorded:
                    raise  # less headroom may do, or a recorded step: for that one it is worth searching anew
        if plan is None:
            candidates = find_candidates(corrected)
            self._searched.append(Searched(known=known, candidates=candidates))
            plan = solve(candidates)
        _log.info(
            "for batches of %s%s, asked for %s: predicted peak %s, recompute overhead %.1f %%; solved in %.1f s",
            known.batch.describe(),
            "" if known.recorded else " (foretold from two recorded steps)",
            self._request.goal,
            format_bytes(plan.peak_bytes),
            100 * plan.recompute_seconds / (plan.plain_seconds or math.inf),
            time.perf_counter() - began,
        )
        return Ready(known=known, plan=plan)

    def _correct(self, model: nn.Module, reading: Reading) -> None:
        """Solve again where a measured step shows that the budget is exceeded, or far from used."""
        budget_bytes, measured_bytes = self._request.goal.budget_bytes, reading.measurement.peak_bytes
        if budget_bytes is None:  # the lowest peak was asked for, whatever it is
            return
        exceeded = measured_bytes > budget_bytes
        error_bytes = reading.error_bytes if exceeded else reading.error_bytes + reading.left_bytes
        nearly_used = measured_bytes + reading.left_bytes >= WELL_USED * budget_bytes
        unused = not nearly_used and error_bytes < 0 and bool(reading.plan.segments)
        # Once the error was raised it is not lowered again: else the two could follow each other for ever.
        if self._corrections == MOST_CORRECTIONS or not (exceeded or (unused and not self._raised)):
            return
        self._corrections += 1
        self._raised = self._raised or exceeded
        self._error_bytes += error_bytes
        said = (
            f"a step measured {format_bytes(measured_bytes)} where {format_bytes(reading.plan.peak_bytes)} was "
            f"predicted and {format_bytes(budget_bytes)} is the budget"
        )
        assert self._current is not None
        try:
            known = self._current.known
            ready = self._solved(known, math.inf if known.recorded else SEARCH_STEPS)
        except Infeasible as error:
            _log.warning("%s; no plan does better: %s", said, error)
            return
        _log.info("%s: planned again", said)
        plan = msgspec.structs.replace(ready.plan, notes=(*ready.plan.notes, f"{said}; the difference is counted"))
        replan(model, self, plan)
        self._current = Ready(known=ready.known, plan=plan)
        self._ready = [self._current]  # the others did not know


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of the parameters to whose gradients a step that begins now adds its own."""
    return sum(each.nbytes for each in model.parameters() if each.requires_grad and each.grad is not None)


def _with_others(profile: Profile, other_bytes: int) -> Profile:
    """Count more, or less, that is alive beside the step."""
    static = profile.static
    return msgspec.structs.replace(
        profile, static=msgspec.structs.replace(static, other_bytes=static.other_bytes + other_bytes)
    )


def _without_optimizer(request: Request) -> Request:
    """What a copy of the model can take along: an optimizer by its name, but none that trains the original."""
    return request if isinstance(request.optimizer, str) else dataclasses.replace(request, optimizer=None)


def _restored(request: Request, handle: Handle) -> Governor:
    """A governor out of a pickle: the plan that is on the model stays until a step needs another."""
    governor = Governor(request)
    governor.handle = handle
    return governor

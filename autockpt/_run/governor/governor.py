"""How each training step of a model runs that is held to a budget.

step 1     recorded in place, spilled
step 2     timed, spilled
step 3     planned before it runs, and so is every later one, until one comes that needs more: that one is recorded
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ... import _torch_private
from ..._data.errors import NotApplicable, ProfilingError
from ..._data.plan import Plan
from ..._record.in_place import Recorded, RecordedStep
from ..._record.ranks import refuse_collectives, refuse_sharded
from ..._record.recorder import record_step
from ..._record.spilled import SpilledStep
from ..._record.step import step_of, training_step
from ..._record.timed import TimedStep
from ...solvers.errors import Infeasible, TooCostly
from ...solvers.units import format_bytes
from ..batch import Batch, Forward, Kind, gradient_bytes
from ..frames import Handle, patched_forward
from ..headroom import enlarged
from ..install import replan, uninstall
from ..optimizer_steps import OptimizerSteps
from ..plans import Plans, Ready
from ..request import Request
from ..surprises import Surprises
from ..switches import Switches
from .decision import Decision, Situation, decide
from .step import Step

_log = logging.getLogger("autockpt")

HOOKS = (
    "saved_tensors_hooks (save_on_cpu is one) around the forward put something else in the place of saved tensors, "
    "which a plan would undo: the model trains without a plan, and the budget does not hold"
)

UNHOOKED = (
    "forward uses torch.func.grad, vjp or jacrev, or switches saved-tensor hooks off in another way, and recording "
    "needs them: the model trains without a plan, and the budget does not hold. Write a plan by hand that keeps the "
    "calls which do (Plan.of)."
)

UNSEEN = (
    "an optimizer took a step on a model that is held to a budget, and no training forward of the model itself was "
    "seen: the step ran without a plan. Apply to the module whose forward is called (with Lightning: the one that "
    "training_step calls), after whatever replaces its forward, and before torch.compile."
)


class Governor:
    """Holds a model to a budget, step by step.

    It keeps the model alive only while a step is under way. Copies and pickles of the model take it along; a copy
    records and plans by itself, for the same budget.

    Args:
        request: what the user asked for.

    Attributes:
        handle: what the root's forward knows of the plan that is on the model now.
    """

    handle: Handle

    def __init__(self, request: Request) -> None:
        self._request, self._plans = request, Plans(request)
        self._step: Step | None = None
        self._optimizers: OptimizerSteps | None = None
        self._newest = ""  # the class of an optimizer that took its first step
        self._unknown = False  # whether the last step did what no recording covers
        self._surprises, self._switches = Surprises(), Switches()
        self._settled = self._idle = self._seen = False
        self._early = False  # whether a step is over with its optimizer's, since the next one runs in another thread
        self._waited = False  # whether a step was recorded of which a forward had no backward
        self._said: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Governor:
        return _restored(_without_optimizer(self._request), copy.deepcopy(self.handle, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        # A loss may be a lambda, and an optimizer would take the weights along a second time.
        return _restored, (dataclasses.replace(_without_optimizer(self._request), loss=None), self.handle)

    def prepare(self, model: nn.Module, inputs: object) -> Plan:
        """Plan before any step, on a batch that the user gives; errors as for `autockpt.apply`."""
        request = self._request
        step = training_step(model, inputs, request.loss)
        begins = Forward(model, model.forward, (step.args, step.kwargs))
        if request.plan_for:
            begins = begins._replace(arguments=enlarged(begins, request.plan_for))
            step = step_of(model, *begins.arguments, request.loss)
        kind = Kind(batches=(begins.batch(),), gradient_bytes=gradient_bytes(model))
        return self._plans.given(kind, record_step(step, optimizer=request.optimizer))

    def listen(self, model: nn.Module) -> None:
        """Hear of the steps that optimizers take from now on."""
        if self._optimizers is None:
            self._optimizers = OptimizerSteps(model, self._stepped)

    def train(
        self, model: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a training forward: `forward` is the model's own.

        Raises:
            Infeasible: no plan keeps the step to the budget.
            Exception: whatever the model's own forward raises.
        """
        begins, step, self._seen = Forward(model, forward, (args, kwargs)), self._step, True
        if self._idle or (step is not None and step.running and step.is_here()):
            if step is not None and step.way is not None:
                return step.way.call(begins.arguments, begins.run)  # the model calls itself
            return patched_forward(forward, model, "", self.handle, *args, **kwargs)
        if step is not None and step.way is not None and not step.is_here() and step.is_alive():  # a tape is open there
            return SpilledStep(model, begins.device, begins.arguments).forward(begins.arguments, begins.run)
        batch = begins.batch(numbers=self._plans.numbers)
        if step is None or not step.goes_on():
            step = self._begin(begins, batch)
        step.batches.append(batch)
        current = self._plans.current
        if step.way is not None:
            return self._run(step, functools.partial(step.way.forward, begins.arguments, begins.run))
        if current is None or not current.kind.covers(step.batches, step.gradient_bytes):
            self._unknown = True  # more forwards before one backward than the plan counts on
            spilled = SpilledStep(model, begins.device, begins.arguments)
            return self._run(step, functools.partial(spilled.forward, begins.arguments, begins.run))
        with step.counting_on():
            return self._run(step, functools.partial(patched_forward, forward, model, "", self.handle, *args, **kwargs))

    def pause(self, model: nn.Module, arguments: object) -> None:
        """End what is being recorded, if its backward has come: the model does something else than train now."""
        step = self._step
        if step is None or step.way is None:
            return
        if step.is_here() and step.backward:
            self._end(model, arguments)
        elif not step.is_alive():
            self._drop()

    def close(self) -> None:
        """Let go of everything: the plan is taken off the model."""
        self._drop()
        self._switches.put_back()
        if self._optimizers is not None:
            self._optimizers.close()
            self._optimizers = None

    def _run(self, step: Step, run: Callable[[], Any]) -> Any:
        """Run one forward of a step."""
        nodes, step.running = _torch_private.saving_node(), True
        try:
            outputs = run()
        except BaseException:
            self._drop()
            raise
        finally:
            step.running = False
        if step.way is not None and step.way.unhooked:
            self._idle = True
            self._say(UNHOOKED)
            self._drop()
        step.nodes += _torch_private.saving_node() - nodes
        step.watch(outputs)
        return outputs

    def _begin(self, begins: Forward, batch: Batch) -> Step:
        """Begin a step: decide how it runs, and prepare that."""
        model, device, plans = begins.model, begins.device, self._plans
        self._end(model, begins.arguments)
        self.listen(model)
        held_bytes = gradient_bytes(model)
        ready = plans.ready(batch, held_bytes)
        decision = decide(
            Situation(
                recorded=(ready is not None or plans.knows(batch, held_bytes)) and not self._unknown,
                timed=plans.timed,
                planned=ready is not None,
                unfit=ready.unfit if ready is not None else "",
                surprise=self._surprise(model, device),
            )
        )
        if decision.what == "Replan":
            ready = self._replanned(begins, held_bytes, decision.reason)
            decision = Decision("Lowest", ready.unfit) if ready.unfit else decision
        step = Step(decision=decision, gradient_bytes=held_bytes)
        if decision.what == "Record":
            step.way = self._recording(begins)
        elif decision.what == "Time":
            step.way = TimedStep(model, device, begins.arguments)
        elif ready is not None and (ready is not plans.current or self.handle.table.plan is not ready.plan):
            try:
                replan(model, self, ready.plan)
            except NotApplicable as error:
                self._idle = True
                self._say(f"the model trains without a plan of its own, and the budget may not hold: {error}")
            else:
                plans.current = ready
                self._surprises.replanned()
        self._step = step
        return step

    def _recording(self, begins: Forward) -> SpilledStep:
        """Record the step that begins, if that can be done now; else it is only spilled."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise NotApplicable(
                "a CUDA graph is being captured, and no step can be recorded inside it. Train three steps before."
            )
        refuse_sharded(begins.model)
        for said in self._switches.off(begins.model):
            self._say(said)
        try:
            recording = RecordedStep(begins.model, begins.device, begins.arguments)
        except ProfilingError as error:
            self._say(f"this step is spilled and not recorded, a later one will be: {error}")
            return SpilledStep(begins.model, begins.device, begins.arguments)
        _torch_private.yields_to_others(functools.partial(_pause, weakref.ref(self), weakref.ref(begins.model)))
        return recording

    def _replanned(self, begins: Forward, held_bytes: int, reason: str) -> Ready:
        """Plan for the step that begins; where the first plan cannot be made the model is left as it was."""
        try:
            ready = self._plans.make(begins, held_bytes, self._seen_optimizers(), reason)
        except (Infeasible, TooCostly):
            self._idle = True
            with contextlib.suppress(NotApplicable):  # somebody put a forward over ours
                uninstall(begins.model)
            raise
        if ready.unfit:
            self._say(f"no plan holds this step to the budget, and it runs under the lowest one: {ready.unfit}")
        return ready

    def _end(self, model: nn.Module, arguments: object) -> None:
        """End the step that was under way, as something else begins that has these arguments."""
        step, self._step = self._step, None
        if step is None:
            return
        if step.backward and self._surprises.more_calls(step.kind, step.nodes, planned=step.way is None):
            self._unknown = True
            self._say("a step made more calls than one of its kind before: from now on the largest seen is planned for")
        if isinstance(step.way, RecordedStep):
            try:
                if not step.is_here():
                    self._early = True
                    raise ProfilingError("the next step runs in another thread")
                if step.waits() and step.backward and not self._waited:
                    self._waited = True  # the next such one is how the loop is
                    raise ProfilingError("one of its forwards had no backward, and its outputs are still held")
                recorded = step.way.close(arguments)
                if step.way.foreign:
                    self._idle = True
                    self._say(HOOKS)
                else:
                    self._learn(step, recorded)
            except ProfilingError as error:
                step.way.drop()
                if step.differentiable:
                    self._failed(error)
        elif isinstance(step.way, TimedStep) and step.backward:
            seconds = self._plans.time(step.kind, step.way)
            if seconds is not None:
                _log.info("timed a step: %.3g s without what spilling took", seconds)

    def _learn(self, step: Step, recorded: Recorded) -> None:
        """Remember what was recorded."""
        if recorded.sets_itself_up and not self._settled:
            self._settled = True
            _log.info("the model set itself up in its first step, so the next one is recorded")
            return
        refuse_collectives(recorded.operators)
        _log.info("recorded a step on batches of %s", step.kind.describe())
        if self._unknown:
            self._unknown = False
            self._plans.forget_plans()
        self._plans.learn(step.kind, step.nodes, recorded)

    def _failed(self, error: ProfilingError) -> None:
        """A recording came to nothing."""
        self._surprises.tries += 1
        self._idle = self._surprises.exhausted
        if self._idle:
            self._say(f"no step could be recorded, so the model trains without a plan from now on: {error}")
        else:
            self._say(f"the recording of a step is dropped, and a later one will be recorded: {error}")

    def _surprise(self, model: nn.Module, device: torch.device) -> str:
        """Say what the last step showed that the plan does not count on; empty where nothing."""
        newest, self._newest = self._newest, ""
        budget_bytes, planned = self._request.goal.budget_bytes, self._plans.current is not None
        peak_bytes = self._surprises.measured_above(budget_bytes, device, planned=planned)
        if budget_bytes is not None and peak_bytes:
            self._plans.error_bytes += peak_bytes - budget_bytes
            return f"a step measured {format_bytes(peak_bytes)} where the budget is {format_bytes(budget_bytes)}"
        if newest and not self._plans.counts(model, device, self._seen_optimizers()):
            return f"{newest} took its first step"
        return ""

    def _seen_optimizers(self) -> list[Optimizer]:
        return self._optimizers.optimizers if self._optimizers is not None else []

    def _stepped(self, optimizer: Optimizer, first: bool) -> None:
        """An optimizer has taken a step on the model's parameters."""
        step = self._step
        if step is not None and step.way is not None:
            step.way.optimizer_stepped(optimizer)
            if self._early and step.is_here() and isinstance(step.way, RecordedStep):
                self._end(step.way.model, ())
        if first:
            self._newest = type(optimizer).__name__
        if not self._seen:
            self._say(UNSEEN)

    def _drop(self) -> None:
        """Forget the step that is under way."""
        step, self._step = self._step, None
        if step is not None and step.way is not None:
            step.way.drop()

    def _say(self, what: str) -> None:
        """Warn, once of each thing."""
        if what not in self._said:
            self._said.add(what)
            _log.warning("%s", what)


def _pause(governor: weakref.ref[Governor], model: weakref.ref[nn.Module]) -> None:
    """End what a governor records, as far as that can be: another recording begins."""
    owner, trained = governor(), model()
    if owner is not None and trained is not None:
        owner.pause(trained, ())


def _without_optimizer(request: Request) -> Request:
    """What a copy of the model can take along: an optimizer by its name, but none that trains the original."""
    return request if isinstance(request.optimizer, str) else dataclasses.replace(request, optimizer=None)


def _restored(request: Request, handle: Handle) -> Governor:
    """A governor out of a pickle: the plan that is on the model stays until a step needs another."""
    governor = Governor(request)
    governor.handle = handle
    return governor

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
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..._data.errors import NotApplicable, ProfilingError
from ..._device import device_of
from ..._record.in_place import Recorded, RecordedStep
from ..._record.ranks import refuse_collectives
from ..._record.switches import CACHE, keeps_cache
from ..._record.timed import TimedStep
from ..._torch_private import transforms_active
from ...solvers.errors import Infeasible, TooCostly
from ...solvers.units import format_bytes
from .. import said
from ..batch import Batch, Forward, gradient_bytes
from ..frames import Handle, patched_forward
from ..install import cover, replan, uninstall
from ..known import Ready, Standing
from ..optimizer_steps import OptimizerSteps
from ..plans import Plans
from ..refusing import told
from ..request import Request
from ..said import Said
from ..surprises import Surprises
from ..unseen import Unseen
from .decision import Decision, Situation, decide
from .measured import Measured
from .step import Step
from .ways import Ways

_log = logging.getLogger("autockpt")


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
        self._request, self._surprises, self._said = request, Surprises(), Said()
        self._ways = Ways(self._said)
        self._plans = Plans(request, self._ways.stashes)
        self._optimizers, self._unseen = OptimizerSteps(self._stepped), Unseen(self._unplanned)
        self._step: Step | None = None
        self._transformed = False  # whether a transform of torch.func has run a forward
        self._idle = False  # whether steps run as they come from now on

    def __deepcopy__(self, memo: dict[int, Any]) -> Governor:
        return _restored(self._request.copied(), copy.deepcopy(self.handle, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (dataclasses.replace(self._request.copied(), loss=None), self.handle)  # it may be a lambda

    def prepare(self, model: nn.Module, inputs: object) -> Ready:
        """Plan before any step, on a batch that the user gives; errors as for `autockpt.apply`."""
        return self._plans.prepare(model, inputs)

    def standing(self) -> Standing | None:
        """Say what stands in the steps that the plan is for; None where there is none."""
        return self._plans.standing(self._optimizers.optimizers)

    def listen(self, model: nn.Module) -> None:
        """Hear from now on of the steps that optimizers take, and of backwards until a forward is seen."""
        self._optimizers.listen(model)
        self._unseen.listen(model)

    def train(
        self, model: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a training forward: `forward` is the model's own.

        Raises:
            Infeasible: no plan keeps the step to the budget.
            Exception: whatever the model's own forward raises.
        """
        self._unseen.close()
        begins, step = Forward(model, forward, (args, kwargs)), self._step
        if self._idle or (step is not None and step.running and step.is_here()):
            if step is not None and step.way is not None:
                return step.way.call(begins.arguments, begins.run)  # the model calls itself
            return patched_forward(forward, model, "", self.handle, *args, **kwargs)
        if step is not None and step.way is not None and not step.is_here() and step.is_alive():  # a tape is open there
            return self._ways.spilled(begins).forward(begins.arguments, begins.run)
        batch = begins.batch(numbers=self._plans.numbers)
        if step is None or not step.goes_on():
            try:
                step = self._begin(begins, batch)
            except BaseException:
                self._ways.stashes.let_go()
                raise
            if step is None:
                return patched_forward(forward, model, "", self.handle, *args, **kwargs)
        step.batches.append(batch)
        way, current = step.way, self._plans.current
        if way is None and (current is None or not current.kind.covers(step.batches, step.gradient_bytes)):
            self._said.once(said.UNCOVERED, where=self._surprises.uncovered())
            way = self._ways.spilled(begins)
        if way is not None:
            return self._run(step, functools.partial(way.forward, begins.arguments, begins.run))
        with step.counting_on():
            return self._run(step, functools.partial(patched_forward, forward, model, "", self.handle, *args, **kwargs))

    def pause(self, model: nn.Module, arguments: object) -> None:
        """End what is being recorded, if its backward has come: the model does something else than train now."""
        self._transformed = self._transformed or transforms_active()
        if (step := self._step) is not None:
            step.over()
            if step.way is not None and step.is_here() and step.backward:
                self._end(arguments)
            elif step.way is not None and not step.is_alive():
                self._drop()

    def resume(self, model: nn.Module) -> None:
        """Hold the model to its budget again after a plan was put on it at once, or back on it."""
        if self.handle.table.plan is not None:
            self._ways.switch_off(model)

    def close(self) -> None:
        """Let go of everything: the plan is taken off the model."""
        self._drop()
        self._ways.put_back()
        self._optimizers.close()
        self._unseen.close()

    def _run(self, step: Step, run: Callable[[], Any]) -> Any:
        """Run one forward of a step."""
        step.running = True
        try:
            with step.nodes.counting():
                outputs = run()
        except BaseException:
            self._drop()
            raise
        finally:
            step.running = False
        if step.way is not None and step.way.unhooked:
            self._said.once(said.UNHOOKED)
            self._drop()
            self._rest()
        self._said.once(CACHE, where=step.decision.what == "Record" and keeps_cache(outputs))
        step.watch(outputs)
        return outputs

    def _begin(self, begins: Forward, batch: Batch) -> Step | None:
        """Begin a step: decide how it runs, and prepare that; None where steps run as they come."""
        model, device, plans = begins.model, begins.device, self._plans
        ended = self._end(begins.arguments)
        if self._idle:
            return None
        self.listen(model)
        held_bytes = gradient_bytes(model)
        ready, unknown = plans.ready(batch, held_bytes), self._surprises.unknown
        decision = decide(
            Situation(
                alike=plans.knows(batch, held_bytes, sizes=False) and not unknown,
                recorded=(ready is not None or plans.knows(batch, held_bytes)) and not unknown,
                timed=plans.timed,
                planned=ready is not None,
                unfit=ready.unfit if ready is not None else "",
                surprise=self._surprise(model, device, ended),
            )
        )
        if decision.what == "Replan":
            ready = self._replanned(begins, held_bytes, decision.reason)
            decision = Decision("Lowest", ready.unfit) if ready.unfit else decision
        step = Step(decision=decision, gradient_bytes=held_bytes)
        if decision.what == "Record":
            step.way = self._ways.recorded(begins, self.pause)
        elif decision.what == "Time":
            step.way = self._ways.timed(begins)
        elif ready is not None and (ready is not plans.current or self.handle.table.plan is not ready.plan):
            try:
                replan(model, self, ready.plan, ready.nets, ready.calls)
            except NotApplicable as error:
                self._rest()
                self._said.once(f"the model trains without a plan of its own, and the budget may not hold: {error}")
            else:
                plans.current = ready
        elif ready is not None:  # it was rehearsed in a step before
            step.measured = Measured(device_of(device), ready, held_bytes)
        if step.way is None:
            step.after_backward = self._ways.after_rehearsal(ready)
        self._step = step
        return step

    def _replanned(self, begins: Forward, held_bytes: int, reason: str) -> Ready:
        """Plan for the step that begins; where the first plan cannot be made the model is left as it was."""
        try:
            ready = self._plans.make(begins, held_bytes, self._optimizers.optimizers, reason)
        except (Infeasible, TooCostly):
            self._rest()
            with contextlib.suppress(NotApplicable):  # somebody put a forward over ours
                uninstall(begins.model)
            raise
        if ready.unfit:
            self._said.once(f"no plan holds this step to the budget, and it runs under the lowest one: {ready.unfit}")
        return ready

    def _end(self, arguments: object) -> Step | None:
        """End the step that was under way, as something else begins that has these arguments; return it."""
        step, self._step = self._step, None
        if step is None:
            return None
        strangers = self.handle.table.strangers.take_met()
        if step.backward:
            self._said.once(
                said.OTHER_CALLS, where=self._surprises.other_calls(step.kind, step.nodes.made, strangers=strangers)
            )
            if step.way is None and self._plans.current and len(step.backwards) > self._plans.current.backwards:
                self._said.once(said.BACKWARDS, where=self._surprises.more_backwards())
        if isinstance(step.way, RecordedStep):
            try:
                self._surprises.refuse(here=step.is_here(), waits=step.backward and step.waiting > 0)
                self._learn(step, step.way.close(arguments), foreign=step.way.foreign)
            except ProfilingError as error:
                if step.differentiable:
                    self._surprises.tries += 1
                    if self._surprises.exhausted:
                        self._rest()
                    self._said.once(f"{said.FAILED if self._idle else said.LATER}: {error}")
        elif isinstance(step.way, TimedStep) and step.backward:
            self._plans.time(step.kind, step.way)
        if step.way is not None:
            step.way.drop()
        return step

    def _learn(self, step: Step, recorded: Recorded, *, foreign: bool) -> None:
        """Remember what was recorded, unless hooks of the user's were on."""
        if foreign:
            self._rest()
            self._said.once(said.HOOKS)
        elif self._surprises.sets_up(recorded.run.sets_itself_up):
            _log.info("the model set itself up in its first step, so the next one is recorded")
        else:
            refuse_collectives(recorded.operators)
            _log.info("recorded a step on batches of %s%s", step.kind.describe(), recorded.beside())
            if self._surprises.learnt(new=self._plans.learn(step.kind, step.nodes.made, recorded)):
                self._plans.forget_plans()
            self._said.once(said.UNPLANNED, where=self._plans.late)

    def _surprise(self, model: nn.Module, device: torch.device, last: Step | None) -> str:
        """Say what the `last` step showed that the plan does not count on; empty where nothing."""
        if (nets := self.handle.table.nets) is not None and (faults := nets.take_faults()):
            self._said.once(told(faults))
            self._plans.refuse(faults)
            return "some calls cannot be replayed"
        if last is not None and last.measured is not None and not self._surprises.exhausted:
            above_bytes, error_bytes = last.measured.above(self._request.goal.budget_bytes)
            if above_bytes:
                self._surprises.tries += 1
                self._plans.count(error_bytes)
                return f"a step measured {format_bytes(above_bytes)} more than the budget"
        grown = self._optimizers.grown()
        counted = not grown or self._plans.counts(model, device, self._optimizers.optimizers)
        return "" if counted else f"{grown} keeps more than the plan counts on"

    def _stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has taken a step on the model's parameters."""
        if (step := self._step) is not None:
            step.over()
            if step.way is not None:
                step.way.optimizer_stepped(optimizer)
            if isinstance(step.way, RecordedStep) and step.may_be_the_last_here():
                self._end(())
            if step.ends_twice(optimizer) and not self._idle:
                self._unseen.again()
        self._unseen.comes("step")

    def _unplanned(self, model: nn.Module) -> None:
        """A step of the model was none that came by here; in eval mode it runs under the plan that there may be."""
        if cover(model, self):
            self._said.once(said.REPLACED)
        elif self._transformed:
            self._said.once(said.TRANSFORMED)
        elif self.handle.table.plan is None:
            self._said.once(said.UNSEEN if model.training else said.EVAL)
        elif model.training:
            self._said.once(said.BEHIND)

    def _rest(self) -> None:
        """Let steps run as they come from now on."""
        self._idle = True
        self._ways.stashes.let_go()

    def _drop(self) -> None:
        """Forget the step that is under way, and let go of where it waits."""
        step, self._step = self._step, None
        if step is not None and step.way is not None:
            step.way.drop()
        self._ways.stashes.let_go()


def _restored(request: Request, handle: Handle) -> Governor:
    """A governor out of a pickle: the plan that is on the model stays until a step needs another."""
    governor = Governor(request)
    governor.handle = handle
    return governor

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

from torch import nn
from torch.optim import Optimizer

from .._calls.roots import Together, title, trains
from .._data.door import bare
from .._data.errors import NotApplicable
from .._device import device_of
from .._frames import Handle, Table, patched_forward
from .._frames.install import cover, replan, uninstall
from .._record.in_place import RecordedStep
from .._record.switches import CACHE, keeps_cache
from .._torch_private import transforms_active
from ..solvers.errors import Infeasible, TooCostly
from . import said
from .account import Account
from .batch import Batch, Forward, gradient_bytes
from .company import Company
from .decision import Decision, Situation, decide
from .known import LoopState, Ready
from .lessons import Lessons
from .measured import Measured
from .optimizer_steps import OptimizerSteps
from .plans import Plans
from .request import Request
from .said import Said
from .step import Step
from .surprises import Surprises
from .unseen import Unseen
from .ways import Ways

_log = logging.getLogger("autockpt")


class Governor:
    """Holds a model to a budget, step by step.

    It keeps the model alive only while a step is under way. Copies and pickles of the model take it along; a copy
    records and plans by itself, for the same budget.

    Args:
        request: what the user asked for.
        together: the models, where there are several; copies of one of them run plain.

    Attributes:
        handle: what the root's forward knows of the plan that is on the model now.
        company: which models it has seen.
        what: the model, and its budget, for a sentence.
    """

    handle: Handle

    def __init__(self, request: Request, together: Together | None = None) -> None:
        self._request, self._surprises, self._said = request, Surprises(), Said()
        self._ways = Ways(self._said)
        self._plans = Plans(request, self._ways.stashes)
        self._optimizers, self._unseen = OptimizerSteps(self._stepped), Unseen(self._unplanned)
        self._lessons = Lessons(request.goal.budget_bytes, self._plans, self._surprises, self._optimizers, self._said)
        self._together, self.company, self.what = together, Company(), "a model"
        self._step: Step | None = None
        self._transformed = False  # whether a transform of torch.func has run a forward
        self._idle = False  # whether steps run as they come from now on

    def __deepcopy__(self, memo: dict[int, Any]) -> Governor:
        return _restored(self._request.copied(), copy.deepcopy(self.handle, memo), self._together is not None)

    def __reduce__(self) -> tuple[Any, ...]:
        request = dataclasses.replace(self._request.copied(), loss=None)  # it may be a lambda
        return _restored, (request, self.handle, self._together is not None)

    def prepare(self, model: nn.Module, inputs: object) -> Ready:
        """Plan before any step, on a batch that the user gives; errors as for `autockpt.apply`."""
        return self._plans.prepare(model, inputs)

    def standing(self) -> LoopState | None:
        """Say what stands in the steps that the plan is for; None where there is none."""
        ready, optimizers = self._plans.current, self._optimizers.optimizers
        return ready.standing(optimizers or self._request.optimizer) if ready is not None else None

    def listen(self, model: nn.Module) -> None:
        """Hear from now on of the steps that optimizers take, and of backwards until a forward is seen."""
        self.what = f"{title(model)}{self._request.budget()}"
        self._optimizers.listen(model)
        self._unseen.listen(model)

    def train(
        self, root: nn.Module, name: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a training forward of the model, or of one of several: `forward` is its own.

        Raises:
            Infeasible: no plan keeps the step to the budget.
            Exception: whatever the model's own forward raises.
        """
        self._unseen.close()
        self._said.once(*self.company.meets(self, name, planned=not self._idle))  # copies of one of several run plain
        model = root if self._together is None else self._together
        begins, step = Forward(model, forward, (args, kwargs), name), self._step
        planned = functools.partial(patched_forward, forward, root, name, self.handle, *args, **kwargs)
        if self._idle or (step is not None and step.running and step.is_here()):
            if step is not None and step.way is not None:
                return step.way.call(begins.arguments, begins.run, name)  # the model calls itself
            return planned()
        if step is not None and step.way is not None and not step.is_here() and step.is_alive():  # a tape is open there
            return self._ways.spilled(begins).forward(begins.arguments, begins.run)
        batch = begins.batch(numbers=self._plans.numbers)
        if step is None or not step.goes_on():
            try:
                step = self._begin(begins, batch)
            except BaseException as error:
                self._ways.stashes.let_go()
                raise bare(error) from error.__cause__
            if step is None:
                return planned()
        step.begins_forward(batch)
        way, current = step.way, self._plans.current
        if way is None and (current is None or not current.covers(step.batches, step.gradient_bytes)):
            self._said.once(said.UNCOVERED, where=self._surprises.uncovered())
            way = self._ways.spilled(begins)
        if way is not None:
            return self._run(step, functools.partial(way.forward, begins.arguments, begins.run, name))
        with step.counting_on():
            return self._run(step, planned)

    def pause(self, name: str, arguments: object) -> None:
        """A model does something else than train: what is watched ends, if its backward has come, and that goes on."""
        self.company.comes(name)
        self._transformed = self._transformed or transforms_active()
        if self._step is not None and self._step.pauses_long():
            self.give_way(arguments)

    def give_way(self, arguments: object = ()) -> None:
        """End what is being recorded, if its backward has come: something begins that has these arguments."""
        if (step := self._step) is not None and step.way is not None:
            if step.ends_here():
                step.cut = True
                self._end(arguments)
            elif not step.is_alive():
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

    @property
    def account(self) -> Account:
        """What has become of the model's steps."""
        return self._plans.account

    @property
    def waits(self) -> bool:
        """Whether a step is under way whose backward has not come."""
        return self._step is not None and self._step.goes_on()

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
        self._said.once(*self.company.missing(self.handle.roots))
        held_bytes = gradient_bytes(model)
        before = ended.made if ended is not None else ()
        plans.precede(batch, held_bytes, before)
        ready, unknown = plans.ready(batch, held_bytes), self._surprises.begins()
        decision = decide(
            Situation(
                alike=plans.knows(batch, held_bytes, sizes=False) and not unknown,
                recorded=(ready is not None or plans.knows(batch, held_bytes)) and not unknown,
                timed=plans.timed,
                planned=ready is not None,
                unfit=ready.unfit if ready is not None else "",
                surprise=self._lessons.surprise(model, device, ended, self.handle.table),
            )
        )
        if decision.what == "Replan":
            ready = self._replanned(begins, held_bytes, decision.reason)
            decision = Decision("Lowest", ready.unfit) if ready.unfit else decision
        step = Step(decision=decision, gradient_bytes=held_bytes, model=weakref.ref(model), before=before)
        if decision.what == "Record":
            step.way = self._ways.recorded(begins, self.give_way, is_first=ended is None)
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
        except (Infeasible, TooCostly) as error:
            self._rest()
            with contextlib.suppress(NotApplicable):  # somebody put a forward over ours
                uninstall(begins.model)
            raise error.carrying(kept=True) from None
        if ready.unfit:
            self._said.once(f"no plan holds this step to the budget, and it runs under the lowest one: {ready.unfit}")
        return ready

    def _end(self, arguments: object) -> Step | None:
        """End the step that was under way, as something else begins that has these arguments; return it."""
        step, self._step = self._step, None
        if step is not None and not self._lessons.of(step, self.handle.table, arguments):
            self._rest()
        return step

    def _stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has taken a step on the model's parameters."""
        if (step := self._step) is not None:
            step.over()
            again = step.ends_twice(optimizer)
            if step.way is not None:
                step.way.optimizer_stepped(optimizer)
            if isinstance(step.way, RecordedStep) and step.may_be_the_last_here() and not step.goes_on():
                self._end(())
            if again and not self._idle:
                self._unseen.again()
        self._unseen.comes("step")

    def _unplanned(self, model: nn.Module) -> None:
        """A step of the model was none that came by here; in eval mode it runs under the plan that there may be."""
        planned = self.handle.table.plan is not None
        why = said.REPLACED if cover(model, self) else said.unplanned(trains(model), self._transformed, planned)
        self._said.once(why, where=bool(why))

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


def _restored(request: Request, handle: Handle, one_of_several: bool = False) -> Governor:
    """A governor out of a pickle: the plan that is on the model stays until a step needs another.

    That of one of several models lets its copy run plain: the others need not be copied, nor train with it.
    """
    governor = Governor(request)
    governor.handle = handle
    if one_of_several:
        handle.table = Table()
        governor._rest()
    return governor

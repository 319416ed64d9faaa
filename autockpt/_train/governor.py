"""How each training step of a model with a budget runs.

step 1     recorded as it trains; saved tensors are spilled
step 2     timed as it trains; saved tensors are spilled
step 3     planned as it begins; later steps run under a plan too, or are recorded if no recording covers them
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .._batches.batch import Batch, Forward, gradient_bytes
from .._calls.roots import Together, roots, title
from .._frames.table import Handle
from .._install.install import cover
from .._install.installation import Installation
from .._optimizer.steps import OptimizerSteps, blank
from .._record.switches import CACHE, keeps_cache
from .._tell import said
from .._tell.account import Account
from .._tell.company import Company
from .._tell.said import Said
from .._tell.unseen import Unseen
from .._torch_private import foreign_checkpoint_active, recomputed_function, transforms_active
from .acting import Acting, Beginning
from .agreement import Agreement
from .decision import Situation, decide
from .early import EarlyReplays
from .known import LoopState, Ready
from .lessons import Lessons
from .plans import Plans
from .request import Request
from .step import StepUnderWay, is_watched_elsewhere
from .surprises import Surprises
from .way import Installed, ObservedStep, Way
from .ways import Ways


class Governor:
    """Holds a model to a budget, step by step.

    It keeps the model alive only while a step is under way. A deep copy of the model has a governor of its own: it
    records and plans anew, for the same budget. Until then the plan that was on the model stays on the copy.

    Args:
        request: what the user asked for.
        together: the models, if the budget is for several. A copy of one of them runs without a plan.
        said: gives each warning once; shared with the model that this one is a copy of.

    Attributes:
        company: which models it has seen.
        what: the model and its budget, as part of a sentence for the user.
    """

    _installed: Installed

    def __init__(self, request: Request, together: Together | None = None, said: Said | None = None) -> None:
        self._request, self._surprises, self._said = request, Surprises(), said or Said()
        self._ways = Ways(self._said, summed=request.offload is not None and request.offload.is_shard)
        self._agreement = Agreement(request)
        self._plans = Plans(request, self._ways.stashes, self._agreement)
        self._optimizers, self._unseen = OptimizerSteps(self._stepped), Unseen(self._unplanned)
        self._acting = Acting(self._plans, self._ways, self._optimizers, self._said, self._agreement)
        self._lessons = Lessons(request.goal, self._plans, self._surprises, self._optimizers, self._said)
        self._together, self.company, self.what = together, Company(), "a model"
        self._early = EarlyReplays(self._acting.pipeline)
        self._step: StepUnderWay | None = None

    @property
    def handle(self) -> Handle:
        """What the patched forwards know of the installed plan. Whoever patches the forwards sets it."""
        return self._handle

    @handle.setter
    def handle(self, handle: Handle) -> None:
        self._handle, self._installed = handle, Installation(handle)
        handle.made_early = self._early.made

    def __deepcopy__(self, memo: dict[int, Any]) -> Governor:
        copied = Governor(self._request.copied(), said=self._said)
        copied.handle = copy.deepcopy(self.handle, memo)
        if self._together is None:
            self._said.once(said.COPIED.format(self.what), level=logging.INFO)
        else:  # the others may not be copied, or may not train with it
            copied._installed.empty()
            copied._acting.rest()
        return copied

    def prepare(self, model: nn.Module, inputs: object) -> Ready:
        """Plan before any step, on a batch that the user gives; errors as for `autockpt.apply`."""
        try:
            return self._plans.prepare(model, inputs)
        except BaseException as error:
            self._agreement.leave("has failed before its first step", error)
            raise

    def standing(self) -> LoopState | None:
        """Return what the plan assumes of the loop, besides one forward and backward; None if there is no plan."""
        ready, optimizers = self._plans.history.current, self._optimizers.optimizers
        return ready.standing(optimizers or self._request.optimizer) if ready is not None else None

    def listen(self, model: nn.Module) -> None:
        """Listen from now on to optimizer steps, and to backwards until the first forward is seen."""
        self.what = f"{title(model)}{self._request.budget()}"
        self._optimizers.listen(model)
        self._unseen.listen(model)

    def train(
        self, root: nn.Module, name: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a training forward of the model, or of one of several; `forward` is the model's own, not patched.

        Raises:
            Infeasible: no plan keeps the step to the budget.
            Exception: whatever the model's own forward raises.
        """
        model = root if self._together is None else self._together
        begins, step = Forward(model, forward, (args, kwargs), name), self._step
        if not (evaluates := begins.evaluates):
            self._unseen.close()
            self._said.once(*self.company.meets(self, name, planned=not self._acting.idle))
        if step is not None and step.running and step.is_here():
            return step.way.call(begins)  # the model calls itself
        if self._acting.idle:
            return self._installed.forward(begins)
        if is_watched_elsewhere(step) or self._acting.pipeline.asks_for_shapes(roots(model).values(), root):
            return self._ways.spilled(begins).forward(begins)
        batch = begins.batch(numbers=self._plans.history.numbers)
        if self._lessons.evaluations.apart(batch, step, evaluates=evaluates):
            self._said.once(said.ALONE, where=not (evaluates or self._plans.history.known))
            return self._evaluate(begins, batch)
        self.company.comes(name)
        if step is None or not step.goes_on():
            try:
                step = self._begin(begins, batch)
            except BaseException as error:
                self._acting.failed(model, self._installed, error)
                raise
            if step is None:
                return self._installed.forward(begins)
        step.forward_begins(batch, trains=not evaluates)
        way = step.way
        if not way.covers(step.batches, step.gradient_bytes):
            self._said.once(said.UNCOVERED, where=self._surprises.uncovered())
            way = self._ways.spilled(begins)
        return self._run(step, way, begins)

    def pause(self, name: str, arguments: object) -> None:
        """Note that a model runs something other than training. A watched step ends if it has had its backward."""
        self.company.comes(name)
        if self._unseen.inside is None and (transforms_active() or foreign_checkpoint_active()):
            inside = said.UNDER_RECOMPUTE if recomputed_function() else said.CHECKPOINTED
            self._unseen.inside = said.TRANSFORMED if transforms_active() else inside
        if (step := self._step) is not None:
            step.way.pauses()
            if not (step.pauses_shortly() and step.way.tapes):
                self.give_way(arguments)

    def give_way(self, arguments: object = ()) -> None:
        """End a recorded or timed step if it has had its backward. What begins now has these `arguments`."""
        if (step := self._step) is not None and step.way.watches:
            if step.ends_here():
                self._end(arguments, cut=True)
            elif not step.is_alive():
                self._drop()

    def make_way(self) -> None:
        """Give way to another recording or measurement. Also end a step to which no backward can come."""
        self.give_way()
        if (step := self._step) is not None and step.is_here() and not step.running and step.leads_nowhere():
            self._end((), cut=True)
            self._drop()

    def resume(self, model: nn.Module) -> None:
        """Hold the model to its budget again, after a plan was installed on it directly, or put back."""
        if self._installed.plan is not None:
            self._ways.switch_off(model)

    def close(self) -> None:
        """Release everything, and take the plan off the model."""
        self._agreement.leave("has had the budget taken off its model")
        self._drop()
        self._ways.put_back()
        self._optimizers.close()
        self._unseen.close()

    @property
    def model(self) -> nn.Module | None:
        """The model (or several as one) with this budget; None before it is known, or after it was deleted."""
        return self._optimizers.model

    @property
    def account(self) -> Account:
        """What has become of the model's steps."""
        return self._plans.account

    @property
    def waits(self) -> bool:
        """Whether a step is under way that still waits for a backward."""
        return self._step is not None and self._step.goes_on()

    def _run(self, step: StepUnderWay, way: Way, begins: Forward) -> Any:
        """Run one forward of a step."""
        step.running = True
        try:
            with step.graphs.nodes.counting():
                outputs = way.forward(begins)
        except BaseException:
            self._drop()
            raise
        finally:
            step.running = False
        if step.way.unhooked:
            self._said.once(said.UNHOOKED)
            self._drop()
            self._acting.rest()
        self._said.once(CACHE, where=step.decision.what == "Record" and keeps_cache(outputs))
        step.graphs.watch(outputs, trains=not begins.evaluates)
        return outputs

    def _evaluate(self, begins: Forward, batch: Batch) -> Any:
        """Run a forward that, by all that is known, belongs to no step."""
        self.make_way()
        self.pause(begins.name, begins.arguments)
        outputs = self._installed.forward(begins)
        self._lessons.evaluations.watch(outputs, batch, self._unseen.close)
        return outputs

    def _begin(self, begins: Forward, batch: Batch) -> StepUnderWay | None:
        """Begin a step: decide how it runs, and set up its way. None if steps run as they come from now on."""
        model, plans = begins.model, self._plans
        ended = self._end(begins.arguments)
        if self._acting.idle:
            return None
        self.listen(model)
        self._said.once(*self.company.missing(self._installed.roots))
        held_bytes = gradient_bytes(model)
        made_before = ended.made if ended is not None else ()
        plans.history = history = plans.history.following(batch, held_bytes, made_before)
        unknown, endless = self._surprises.begins(), self._surprises.endless
        why = self._lessons.surprise(begins, ended, self._installed, held_bytes)  # may change `plans.history`
        situation = Situation(batch=batch, gradient_bytes=held_bytes, unknown=unknown, endless=endless, surprise=why)
        beginning = Beginning(begins, self._installed, held_bytes, self.make_way, is_first=ended is None)
        decision, way = self._acting.on(decide(history, situation), beginning)
        self._step = StepUnderWay(decision, way, model, held_bytes, made_before)
        self._step.whole = self._acting.pipeline.there
        return self._step

    def _end(self, arguments: object, *, cut: bool = False) -> ObservedStep | None:
        """End the step under way, since something else begins; return what was seen of it. Arguments: see `Way.end`."""
        step, self._step = self._step, None
        self._early.end()
        if step is not None and step.is_evaluation:
            step.way.drop()
        if step is None or step.is_evaluation:
            return None
        observed, on = self._lessons.of(step, self._installed, arguments, cut=cut)
        if not on:
            self._acting.rest()
        return observed

    def _stepped(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has taken a step on the model's parameters."""
        self._early.end()
        if (step := self._step) is not None:
            again = step.optimizer_stepped(optimizer)
            step.way.optimizer_stepped(optimizer)
            if step.way.tapes and step.may_be_the_last_here() and not step.goes_on():
                self._end(())
            if again and not self._acting.idle:
                self._unseen.again()
            if step.whole and not self._acting.idle and (model := step.model) is not None:
                self._acting.stepped(model, self._installed)
        if self._unseen.waits and not blank(optimizer):
            self._unseen.comes("step")

    def _unplanned(self, model: nn.Module) -> None:
        """Warn that the model ran a training step whose forward this governor did not see."""
        if self._step is not None and self._step.backward and not self._step.trains:
            return  # the forward was seen, in eval mode: only its backward shows that the step trains
        planned = self._installed.plan is not None
        why = said.REPLACED if cover(model, self) else said.unplanned(self._unseen.inside, planned)
        self._said.once(why, where=bool(why))

    def _drop(self) -> None:
        """Drop the step under way, and release the stashes where its tensors wait."""
        step, self._step = self._step, None
        self._early.end()
        if step is not None:
            step.way.drop()
        self._ways.stashes.let_go()

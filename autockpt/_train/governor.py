"""How each training step of a model with a budget runs.

step 1     recorded as it trains; saved tensors are spilled
step 2     timed as it trains; saved tensors are spilled
step 3     planned as it begins; later steps run under a plan too, or are recorded if no recording covers them
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .._calls.roots import Together, title
from .._record.aside.switches import CACHE, keeps_cache
from .._record.optimizers.steps import OptimizerSteps, blank
from .._run.frames.table import Handle
from .._run.patch.install import cover, uninstall
from .._torch.private import compiled_around, foreign_checkpoint_active, recomputed_function, transforms_active
from .batches.batch import Batch, Forward, gradient_bytes
from .deciding.known import LoopState, Ready
from .deciding.machine import step_begins, step_grows
from .deciding.state import Ran, StepState
from .messages import said
from .messages.account import Account
from .messages.other_models import OtherModels, telling
from .messages.said import WarnOnce
from .messages.unseen import Unseen
from .plans import Plans
from .ranks.starter import RanksStarter
from .request import Request
from .review import StepReview
from .runners import Runners
from .starter import StepStarter
from .step import StepRunner, StepUnderWay, is_watched_elsewhere


class Governor:
    """Holds a model to a budget, step by step.

    It keeps the model alive only while a step is under way. A deep copy of the model has a governor of its own: it
    records and plans anew, for the same budget. Until then the plan that was on the model stays on the copy.

    Args:
        request: what the user asked for.
        together: the models, if the budget is for several. A copy of one of them runs without a plan.
        warn: gives each warning once; shared with the model that this one is a copy of.

    Attributes:
        others: which models it has seen.
        what: the model and its budget, as part of a sentence for the user.
        compiled: whether the model is compiled as a whole; that is held otherwise.
        account: what has become of the model's steps.
    """

    compiled = False

    def __init__(self, request: Request, together: Together | None = None, warn: WarnOnce | None = None) -> None:
        self._request, self._warn, self.account = request, warn or WarnOnce(), Account(request.goal)
        self._state = StepState.of(request.goal)
        summed = request.offload is not None and request.offload.is_shard
        self._runners = Runners(self._warn, self.make_way, summed=summed)
        self._optimizers, self._unseen = OptimizerSteps(self._stepped), Unseen(self._unplanned)
        shared = Plans(request, self._runners.stashes), self._optimizers, self._warn, self.account
        self._review = StepReview(*shared)
        # It also starts steps with other ranks, if there are any.
        self._starter: StepStarter = RanksStarter(self._runners, *shared)
        self._together, self.others, self.what = together, OtherModels(), "a model"
        self._step: StepUnderWay | None = None

    @property
    def handle(self) -> Handle:
        """What the patched forwards know of the installed plan. Whoever patches the forwards sets it."""
        return self._handle

    @handle.setter
    def handle(self, handle: Handle) -> None:
        self._handle = handle
        self._starter.listen(handle)

    def __deepcopy__(self, memo: dict[int, Any]) -> Governor:
        copied = Governor(self._request.copied(), warn=self._warn)
        copied.handle = copy.deepcopy(self.handle, memo)
        if self._together is None:
            self._warn.once(said.COPIED.format(self.what), level=logging.INFO)
        else:  # the others may not be copied, or may not train with it
            copied._starter.installed.empty()
            copied._starter.rest()
        return copied

    def prepare(self, model: nn.Module, inputs: object) -> Ready:
        """Plan before any step, on a batch that the user gives; errors as for `autockpt.apply`."""
        state, ready = self._starter.prepare(self._state, model, inputs)
        self._state = replace(state, history=replace(state.history, current=ready))
        return ready

    def standing(self) -> LoopState | None:
        """Return what the plan assumes of the loop, besides one forward and backward; None if there is no plan."""
        ready, optimizers = self._state.history.current, self._optimizers.optimizers
        return ready.standing(optimizers or self._request.optimizer) if ready is not None else None

    def listen(self, model: nn.Module) -> None:
        """Listen from now on to optimizer steps, and to backwards until the first forward is seen."""
        if self.model is None:
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
            self._warn.once(*self.others.meets(self, name, planned=not self._starter.idle))
        if step is not None and step.running and step.is_here():
            return step.runner.call(begins)  # the model calls itself
        if self._starter.idle:
            return self._starter.installed.forward(begins)
        if is_watched_elsewhere(step) or not self._starter.is_step(model, root):
            return self._runners.spilled(begins).forward(begins)
        batch = begins.batch(numbers=self._state.history.numbers)
        if self._review.evaluations.apart(batch, step, evaluates=evaluates):
            if not (evaluates or self._state.history.known):
                self._tell_unplanned(said.ALONE)
            return self._evaluate(begins, batch)
        self.others.comes(name)
        if step is None or not step.goes_on():
            try:
                step = self._begin(begins, batch)
            except BaseException as error:
                self._starter.failed(model, error)
                raise
            if step is None:
                return self._starter.installed.forward(begins)
        step.forward_begins(batch, trains=not evaluates)
        runner = step.runner
        if not runner.covers(step.batches, step.gradient_bytes):
            self._state = step_grows(self._state)
            self._warn.once(said.UNCOVERED, where=self._state.exhausted)
            runner = self._runners.spilled(begins)
        return self._run(step, runner, begins)

    def pause(self, name: str, arguments: object) -> None:
        """Note that a model runs something other than training. A watched step ends if it has had its backward."""
        self.others.comes(name)
        self.account.untrained += 1
        if self._unseen.inside is None and (transforms_active() or foreign_checkpoint_active()):
            inside = said.UNDER_RECOMPUTE if recomputed_function() else said.CHECKPOINTED
            self._unseen.inside = said.TRANSFORMED if transforms_active() else inside
        if (step := self._step) is not None:
            step.runner.pauses()
            if not (step.pauses_shortly() and step.runner.tapes):
                self.give_way(arguments)

    def give_way(self, arguments: object = ()) -> None:
        """End a recorded or timed step if it has had its backward. What begins now has these `arguments`."""
        if (step := self._step) is not None and step.runner.watches:
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
        """Go on under the plan that is on the model: it was installed directly, or put back."""
        if self._starter.installed.plan is not None:
            self._runners.switch_off(model)

    def close(self) -> None:
        """Release everything, and take the plan off the model."""
        self._starter.close()
        self._drop()
        self._optimizers.close()
        self._unseen.close()

    @property
    def model(self) -> nn.Module | None:
        """The model (or several as one) with this budget; None before it is known, or after it was deleted."""
        return self._optimizers.model

    @property
    def holds(self) -> bool:
        """Whether forwards of the model are patched."""
        return bool(self.handle.patched)

    @property
    def waits(self) -> bool:
        """Whether a step is under way that still waits for a backward."""
        return self._step is not None and self._step.goes_on()

    def _run(self, step: StepUnderWay, runner: StepRunner, begins: Forward) -> Any:
        """Run one forward of a step."""
        step.running = True
        try:
            with step.graphs.nodes.counting():
                outputs = runner.forward(begins)
        except BaseException:
            self._drop()
            raise
        finally:
            step.running = False
        if step.runner.unhooked:
            self._tell_unplanned(said.UNHOOKED)
            self._drop()
            self._starter.rest()
        self._warn.once(CACHE, where=step.decision.what == "Record" and keeps_cache(outputs))
        step.graphs.watch(outputs, trains=not begins.evaluates)
        return outputs

    def _evaluate(self, begins: Forward, batch: Batch) -> Any:
        """Run a forward that, by all that is known, belongs to no step."""
        self.make_way()
        self.pause(begins.name, begins.arguments)
        outputs = self._starter.installed.forward(begins)
        self._review.evaluations.watch(outputs, batch, self._unseen.close)
        return outputs

    def _begin(self, begins: Forward, batch: Batch) -> StepUnderWay | None:
        """Begin a step: decide how it runs, and start it. None if steps run as they come from now on."""
        model, last = begins.model, self._end(begins.arguments)
        if self._starter.idle:
            return None
        self.listen(model)
        self.account.unplanned = ""
        self._warn.once(*self.others.missing(self._starter.installed.roots))
        held_bytes = gradient_bytes(model)
        seen = self._review.begins(self._state, begins, batch, held_bytes, last, self._starter.installed)
        self._state, decision = step_begins(self._state, seen)
        self._state, decision, runner = self._starter.start(self._state, decision, seen, begins)
        made_before = last.made if last is not None else ()
        lasts = self._starter.lasts_until_optimizer
        self._step = StepUnderWay(decision, runner, model, held_bytes, made_before, lasts_until_optimizer=lasts)
        return self._step

    def _end(self, arguments: object, *, cut: bool = False) -> Ran | None:
        """End the step under way, since something else begins; return how it ran. Arguments: see `StepRunner.end`."""
        step, self._step = self._step, None
        self._starter.end_early_replays()
        if step is not None and step.is_evaluation:
            step.runner.drop()
        if step is None or step.is_evaluation:
            return None
        self._state, ran = self._review.ends(self._state, step, self._starter.installed, arguments, cut=cut)
        if self._state.given_up:
            self._starter.rest()
        return ran

    def _stepped(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has taken a step on the model's parameters."""
        self._starter.end_early_replays()
        if (step := self._step) is not None:
            stepped_twice = step.optimizer_stepped(optimizer)
            step.runner.optimizer_stepped(optimizer)
            # A tape has to end in its own thread, and the next step may begin in another one.
            if step.runner.tapes and step.may_be_the_last_here() and not step.goes_on():
                self._end(())
            if stepped_twice and not self._starter.idle:  # without a forward between that was seen
                self._unseen.again()
            # In a pipeline the step ends here, and what one rank failed with is raised on all.
            if step.lasts_until_optimizer and not self._starter.idle and (model := step.model) is not None:
                self._starter.stepped(model)
        if self._unseen.waits and not blank(optimizer):  # no forward of the model was seen so far
            self._unseen.comes("step")

    def _unplanned(self, model: nn.Module) -> None:
        """Warn that the model ran a training step whose forward this governor did not see."""
        if self._step is not None and self._step.backward and not self._step.trains:
            return  # the forward was seen, in eval mode: only its backward shows that the step trains
        planned = self._starter.installed.plan is not None
        if not (planned or self._unseen.inside) and self._moves_inside(model):
            return
        self._tell_unplanned(said.REPLACED if cover(model, self) else said.unplanned(self._unseen.inside, planned))

    def _tell_unplanned(self, why: str) -> None:
        """Warn of steps that run without a plan, once; the report says it as long as it is so."""
        self._warn.once(why)
        self.account.unplanned = why

    def _moves_inside(self, model: nn.Module) -> bool:
        """Let a model that was compiled as a whole be held inside what was compiled, as its next forward begins."""
        compiled = compiled_around(model)
        asked = None if compiled is None else self._request.inside_compiled()
        if compiled is None or asked is None:
            return False
        from .._compiled.hold import hold_next, takes  # who does not compile loads none of it

        def leave() -> list[Optimizer]:
            uninstall(model)
            return self._optimizers.optimizers

        if not takes(compiled) or not hold_next(compiled, asked, leave, telling()):
            return False
        self._warn.once(said.COMPILED)
        return True

    def _drop(self) -> None:
        """Drop the step under way, and release the stashes where its tensors wait."""
        step, self._step = self._step, None
        self._starter.end_early_replays()
        if step is not None:
            step.runner.drop()
        self._runners.stashes.let_go()

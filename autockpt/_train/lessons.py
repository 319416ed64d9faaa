"""Evaluates a step that is over: remembers what it did, warns the user, and finds whether the plan can stay."""

from __future__ import annotations

import dataclasses
import logging
import math

from .._batches.batch import Forward, gathered_bytes
from .._data.errors import ProfilingError
from .._data.goal import Goal
from .._device import device_of
from .._optimizer.steps import OptimizerSteps
from .._ranks.refuse import refuse_collectives
from .._record.own_replays import is_unasked, own_replays
from .._record.recorded import Recorded
from .._record.timed import Timing
from .._tell import said
from .._tell.said import Said
from .._tell.spoken import in_unit
from .evaluations import Evaluations
from .known import Ready
from .planned import Measured
from .plans import Plans
from .refusing import told
from .step import StepUnderWay
from .surprises import MOST_TRIES, Surprises
from .way import Installed, ObservedStep

_log = logging.getLogger("autockpt")


class Lessons:
    """Evaluates the steps of one governor.

    Args:
        goal: what the user asked for.
        plans: remembers what is known of steps, and makes plans for them.
        surprises: compares steps with earlier ones.
        optimizers: the optimizers that have taken steps.
        said: gives each warning once.

    Attributes:
        evaluations: counts the forwards that had no backward.
    """

    def __init__(self, goal: Goal, plans: Plans, surprises: Surprises, optimizers: OptimizerSteps, said: Said) -> None:
        self._goal, self._budget_bytes, self._plans, self._surprises = goal, goal.budget_bytes, plans, surprises
        self._optimizers, self._said, self.evaluations = optimizers, said, Evaluations()
        self._untimed = 0  # steps that were timed in vain
        self._faults: dict[str, str] = {}  # calls that cannot be replayed, not yet acted on
        self._keeping: tuple[Ready, int] | None = None  # a plan, and how many of its backwards keep their graph
        self._unplanned = False  # whether a step made calls that no recorded step has

    def of(
        self, step: StepUnderWay, installed: Installed, arguments: object, *, cut: bool = False
    ) -> tuple[ObservedStep, bool]:
        """Learn of a step that is over.

        Args:
            step: the step.
            installed: the plan that is on the model.
            arguments: arguments of what begins now.
            cut: whether what begins now is not the next step's forward.

        Returns:
            What was seen of the step, and whether planning goes on. If not, later steps run as they come.
        """
        self._look_at(installed)
        self._compare(step)
        self.evaluations.over(step)
        self._said.once(said.AHEAD, where=step.runs_ahead())
        observed, on = ObservedStep(), True
        try:
            if step.way.tapes:
                self._surprises.refuse(here=step.is_here(), waits=step.backward and step.graphs.waiting > 0)
            observed = step.way.end(arguments, cut=cut)
            if observed.recorded is not None:
                on = self._recorded(step, observed.recorded, foreign=observed.foreign)
        except ProfilingError as error:
            if step.graphs.differentiable:  # without a graph, as in `maker(x).detach()`, there was nothing to plan
                self._surprises.tries += step.backward or step.waits()
                on = not self._surprises.exhausted
                self._said.once(f"{said.LATER if on else said.FAILED}: {error}")
        if observed.timing is not None and step.backward:
            self._time(step, observed.timing)
            if not self._plans.history.has_met(step.batches, step.gradient_bytes):
                self._surprises.uncovered()
        if observed.ready is not None:
            self._count_backwards(step, observed.ready)
        step.way.drop()
        return observed, on

    def surprise(self, begins: Forward, last: ObservedStep | None, installed: Installed, gradient_bytes: int) -> str:
        """Return what the `last` step, or the one that begins, does that no plan counts on; empty if nothing.

        Args:
            begins: the first forward of the step that begins.
            last: what was seen of the step before it.
            installed: the plan that is on the model.
            gradient_bytes: bytes of the gradients that exist now.
        """
        planned = last is not None and last.ready is not None
        self._surprises.planned(planned=planned)
        self._plans.account.begins(planned=planned, device=device_of(begins.device))
        if last is None:
            self._look_at(installed)
        if self._faults:
            faults, self._faults = self._faults, {}
            self._said.once(told(faults))
            self._plans.history = self._plans.history.refusing(faults)
            self._plans.account.refuse(faults)
            return "some calls cannot be replayed"
        above_bytes = self._above_bytes(last)
        if above_bytes:
            return f"a step measured {in_unit(above_bytes, self._goal)} more than the budget"
        lacking_bytes = self._lacking_bytes(begins, gradient_bytes)
        if lacking_bytes:
            return (
                f"the step would take {in_unit(lacking_bytes, self._goal)} more than the budget, with what is new on "
                "the device"
            )
        grown = self._optimizers.grown()
        counted = not grown or self._plans.counts(begins, self._optimizers.optimizers)
        return "" if counted else f"{grown} keeps more than the plan counts on"

    def _above_bytes(self, last: ObservedStep | None) -> int:
        """Return how far the last step's peak was above the budget. Later predictions add the error of this one."""
        if last is None or last.ready is None or last.peak_bytes is None or self._budget_bytes is None:
            return 0
        above_bytes = max(last.peak_bytes - self._budget_bytes, 0)
        if not above_bytes or self._surprises.exhausted:
            return 0
        self._surprises.tries += 1
        # New allocations outside the step are no error of the plan: the next plan measures them anyway.
        error_bytes = max(last.peak_bytes - last.new_bytes - last.ready.plan.peak_bytes, 0)
        self._plans.history = self._plans.history.counting(error_bytes)
        return above_bytes

    def _lacking_bytes(self, begins: Forward, gradient_bytes: int) -> int:
        """Return how far the step that begins would exceed the budget, with new allocations outside it.

        Return 0 if the plan was made from a given batch: then it is not known what the loop keeps between steps.
        """
        history, device, budget_bytes = self._plans.history, device_of(begins.device), self._budget_bytes
        current = history.current
        if current is None or current.unfit or history.given or budget_bytes is None or self._surprises.exhausted:
            return 0
        room_bytes = budget_bytes - current.plan.peak_bytes
        held_bytes = gradient_bytes + gathered_bytes(begins.model)
        new_bytes = Measured(device, current, held_bytes).new_bytes
        if new_bytes > max(room_bytes, 0):
            device.wait()  # autograd's thread may still hold the last gradient of the previous step
            new_bytes = Measured(device, current, held_bytes).new_bytes
        if new_bytes <= max(room_bytes, 0):
            return 0
        self._surprises.tries += 1
        self._plans.history = history.without_plans()
        return new_bytes - room_bytes

    def _look_at(self, installed: Installed) -> None:
        """Take what the installed plan has shown: faults, and calls that it does not know."""
        report = installed.take_report()
        self._faults.update(report.faults)
        self._unplanned = self._unplanned or report.unplanned

    def _compare(self, step: StepUnderWay) -> None:
        """Compare a step's calls with those of earlier steps of its kind."""
        unplanned, self._unplanned = self._unplanned, False
        if step.backward:
            other = self._surprises.other_calls(step.kind, step.graphs.nodes.made, unplanned=unplanned)
            changed = self._plans.history.changed(step.model) if other and step.model is not None else ""
            self._said.once(said.CHANGED.format(changed) if changed else said.OTHER_CALLS, where=other)

    def _count_backwards(self, step: StepUnderWay, ready: Ready) -> None:
        """Compare a step's backward passes with those that its plan counts on."""
        covered = ready.covers(step.batches, step.gradient_bytes)
        if covered and (len(step.graphs.backwards) > ready.backwards or self._keeps_more(step, ready)):
            self._said.once(said.BACKWARDS, where=self._surprises.more_backwards())

    def _keeps_more(self, step: StepUnderWay, ready: Ready) -> bool:
        """Whether a step had more backwards that keep their graph than its plan counts on."""
        if not step.graphs.keeping:
            return False
        if self._keeping is None or self._keeping[0] is not ready:
            self._keeping = ready, ready.keeping()
        return len(step.graphs.keeping) > self._keeping[1]

    def _recorded(self, step: StepUnderWay, recorded: Recorded, *, foreign: bool) -> bool:
        """Remember a recorded step; return whether planning goes on. It does not if the user's own hooks were on."""
        if foreign:
            self._said.once(said.HOOKS)
            return False
        if self._surprises.sets_up(recorded.run.sets_itself_up):
            _log.info("the model set itself up in its first step, so the next one is recorded")
            return True
        if not recorded.speaks:
            refuse_collectives(recorded.operators)
        _log.info("recorded a step on batches of %s%s", step.kind.describe(), recorded.uncounted())
        least_bytes = said.MOST_UNCOUNTED * (self._budget_bytes or math.inf)
        uncounted_bytes = recorded.uncounted_bytes or 0
        if (model := step.model) is not None and (own := own_replays(model, recorded.run.regions)):
            self._said.once(own, where=is_unasked(own))
        self._said.once(
            said.UNCOUNTED.format(in_unit(uncounted_bytes, self._goal)), where=uncounted_bytes > least_bytes
        )
        graphs = step.graphs
        new = self._plans.learn(step.kind, graphs.nodes.made, recorded, step.made_before, len(graphs.keeping))
        if self._surprises.learnt(new=new):
            self._plans.history = self._plans.history.without_plans()
        self._said.once(said.UNPLANNED, where=self._plans.history.late)
        self._said.once(said.ENDLESS, where=self._surprises.endless)
        return True

    def _time(self, step: StepUnderWay, timing: Timing) -> None:
        """Take the seconds of a timed step. If several in a row had none, those that its recording measured count."""
        self._plans.time(step.kind, timing)
        self._untimed += 1
        if self._untimed >= MOST_TRIES and not self._plans.history.timed:
            self._plans.history = dataclasses.replace(self._plans.history, slower=1.0)

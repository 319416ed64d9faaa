"""What follows from a step that is over: what is learnt of its kind, what is said, and whether its plan can stay."""

from __future__ import annotations

import logging
import math

import torch
from torch import nn

from .._data.errors import ProfilingError
from .._device import device_of
from .._frames import Table
from .._record.in_place import RecordedStep
from .._record.ranks import refuse_collectives
from .._record.recorded import Recorded
from .._record.timed import TimedStep
from ..solvers.units import format_bytes
from . import said
from .optimizer_steps import OptimizerSteps
from .plans import Plans
from .refusing import told
from .said import Said
from .step import Step
from .surprises import Surprises

_log = logging.getLogger("autockpt")


class Lessons:
    """Draws them, for one governor.

    Args:
        budget_bytes: what steps are held to; None where they are not held to bytes.
        plans: what is known of steps, and plans for them.
        surprises: compares steps with those before.
        optimizers: those that have taken steps.
        said: what the user was told.
    """

    def __init__(
        self, budget_bytes: int | None, plans: Plans, surprises: Surprises, optimizers: OptimizerSteps, said: Said
    ) -> None:
        self._budget_bytes, self._plans, self._surprises = budget_bytes, plans, surprises
        self._optimizers, self._said = optimizers, said

    def of(self, step: Step, table: Table, arguments: object) -> bool:
        """Learn of a step that is over; return whether steps are planned from now on, or run as they come.

        Args:
            step: the step.
            table: under which it ran.
            arguments: of what begins now.
        """
        self._compare(step, table)
        on = True
        if isinstance(step.way, RecordedStep):
            try:
                self._surprises.refuse(here=step.is_here(), waits=step.backward and step.waiting > 0)
                on = self._recorded(step, step.way.close(arguments, cut=step.cut), foreign=step.way.foreign)
            except ProfilingError as error:
                if step.differentiable:  # where its graph has gone nothing was to be planned: `maker(noise).detach()`
                    self._surprises.tries += step.backward or step.waits()
                    on = not self._surprises.exhausted
                    self._said.once(f"{said.LATER if on else said.FAILED}: {error}")
        elif isinstance(step.way, TimedStep) and step.backward:
            self._plans.time(step.kind, step.way)
            if not self._plans.has_met(step.batches, step.gradient_bytes):
                self._surprises.uncovered()
        if step.way is not None:
            step.way.drop()
        return on

    def surprise(self, model: nn.Module, device: torch.device, last: Step | None, table: Table) -> str:
        """Say what the `last` step showed that the plan does not count on; empty where nothing."""
        self._plans.account.begins(planned=last is not None and last.way is None, device=device_of(device))
        if table.nets is not None and (faults := table.nets.take_faults()):
            self._said.once(told(faults))
            self._plans.refuse(faults)
            return "some calls cannot be replayed"
        if last is not None and last.measured is not None and not self._surprises.exhausted:
            above_bytes, error_bytes = last.measured.above(self._budget_bytes)
            if above_bytes:
                self._surprises.tries += 1
                self._plans.count(error_bytes)
                return f"a step measured {format_bytes(above_bytes)} more than the budget"
        grown = self._optimizers.grown()
        counted = not grown or self._plans.counts(model, device, self._optimizers.optimizers)
        return "" if counted else f"{grown} keeps more than the plan counts on"

    def _compare(self, step: Step, table: Table) -> None:
        """Compare a step with those before, and with its plan."""
        strangers = table.strangers.take_met()
        if not step.backward:
            return
        self._said.once(
            said.OTHER_CALLS, where=self._surprises.other_calls(step.kind, step.nodes.made, strangers=strangers)
        )
        current = self._plans.current if step.way is None else None
        covered = current is not None and current.covers(step.batches, step.gradient_bytes)
        if covered and current is not None and len(step.backwards) > current.backwards:
            self._said.once(said.BACKWARDS, where=self._surprises.more_backwards())

    def _recorded(self, step: Step, recorded: Recorded, *, foreign: bool) -> bool:
        """Remember what was recorded, unless hooks of the user's were on, under which nothing can be planned."""
        step.made = recorded.made
        if foreign:
            self._said.once(said.HOOKS)
            return False
        if self._surprises.sets_up(recorded.run.sets_itself_up):
            _log.info("the model set itself up in its first step, so the next one is recorded")
            return True
        refuse_collectives(recorded.operators)
        _log.info("recorded a step on batches of %s%s", step.kind.describe(), recorded.beside())
        least_bytes = max(said.MOST_BESIDE * (self._budget_bytes or math.inf), said.LEAST_BESIDE_BYTES)
        beside_bytes = recorded.beside_bytes or 0
        self._said.once(said.BESIDE.format(format_bytes(beside_bytes)), where=beside_bytes > least_bytes)
        if self._surprises.learnt(new=self._plans.learn(step.kind, step.nodes.made, recorded, step.before)):
            self._plans.forget_plans()
        self._said.once(said.UNPLANNED, where=self._plans.late)
        return True

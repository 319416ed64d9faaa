"""What the governor of a model goes by, as one frozen value; and what is seen as a step begins and as one ends.

`machine.py` has the functions that make the next state of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..._data.goal import Goal
from ..._record.seconds.timed import Timing
from ..._record.written.recorded import Recorded
from ..._run.patch.installation import PlanReport
from ..batches.batch import Batch, Kind
from .known import History, Ready

MOST_TRIES = 4
"""How often a recording may fail, or a step do what its plan does not count on. After that the plan stays."""

MOST_WAITS = 2
"""How many recorded steps are refused for a forward without backward. Later ones are kept: the loop is like that."""

MOST_RECORDED = 16
"""How many steps may be recorded with none under a plan between them. Sizes that grow are covered by then: plans have
headroom. After that no step is recorded for being of another kind, since the next one will be too."""


NOTHING_SEEN = PlanReport()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """What is known of a model's steps, and what is counted from step to step.

    Attributes:
        goal: what the user asked for; figures are told in its unit.
        budget_bytes: the highest peak that it allows; None if it names none.
        history: the kinds of steps that were recorded, and the plans for them.
        put_on: plans that were on the model, newest last: kinds of steps may take turns.
        number: how many steps have begun.
        tries: how often a step did what its plan does not count on, or a recording failed.
        unknown: whether the next step is recorded, since one did what no recording covers.
        uncovered: whether the step that is looked for is one with more forwards than plans cover.
        uncovered_at: number of the last such step; 0 if there was none since a new kind was recorded.
        due: number of the step at which such a one is due again, if they come at regular intervals; 0 for none.
        recorded: how many steps were recorded since the last one under a plan.
        endless: whether each step is of another kind, so that no more are recorded for that.
        waited: how many recorded steps had a forward without backward.
        untimed: how many steps were timed.
        set_up: whether a recorded step has changed attributes of modules. What it set up stays set up.
        nodes: the most autograd nodes that a step made, by kind.
        faults: calls that cannot be replayed, by key with the reason; no plan was made since.
        unplanned: whether calls were made that no recorded step has, in a step that is not over.
        given_up: whether steps run as they come from now on: no step can be recorded.
    """

    goal: Goal
    budget_bytes: int | None
    history: History = field(default_factory=History)
    put_on: tuple[Ready, ...] = ()
    number: int = 0
    tries: int = 0
    unknown: bool = False
    uncovered: bool = False
    uncovered_at: int = 0
    due: int = 0
    recorded: int = 0
    endless: bool = False
    waited: int = 0
    untimed: int = 0
    set_up: bool = False
    nodes: Mapping[Kind, int] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    unplanned: bool = False
    given_up: bool = False

    @classmethod
    def of(cls, goal: Goal) -> StepState:
        """Return the state before any step."""
        return cls(goal=goal, budget_bytes=goal.budget_bytes)

    @property
    def exhausted(self) -> bool:
        """Whether nothing more is done about what plans do not count on, after `MOST_TRIES`."""
        return self.tries >= MOST_TRIES

    @property
    def room_bytes(self) -> int | None:
        """What may be allocated beside the step that begins under the plan on the model; None if that is not looked at.

        It is not after a plan for a given batch, since nobody knows then what the loop keeps between steps.
        """
        history, budget_bytes = self.history, self.budget_bytes
        current = history.current
        if current is None or current.unfit or history.given or budget_bytes is None or self.exhausted:
            return None
        return max(budget_bytes - current.plan.peak_bytes, 0)

    def trying(self) -> StepState:
        """Count a surprise, and have the next step recorded."""
        return replace(self, tries=self.tries + 1, unknown=True)

    def without_plans(self) -> StepState:
        """Have plans made anew."""
        return replace(self, history=self.history.without_plans())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a step ran that is over.

    Attributes:
        recorded: the recording; None if it was not recorded.
        timing: the stamps; None if it was not timed.
        foreign: whether the user's hooks replaced saved tensors by something else.
        ready: the plan that it ran under; None without one.
        peak_bytes: its measured peak; None if the device does not tell, or if an earlier peak was as high.
        new_bytes: bytes allocated as it began that its plan does not count on.
    """

    recorded: Recorded | None = None
    timing: Timing | None = None
    foreign: bool = False
    ready: Ready | None = None
    peak_bytes: int | None = None
    new_bytes: int = 0

    @property
    def made(self) -> tuple[int, ...]:
        """Sizes of what the loop allocated between this step and the next; empty if this step was not recorded."""
        return self.recorded.made if self.recorded is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegins:
    """What is seen as a step begins.

    Attributes:
        batch: the batch of its first forward.
        gradient_bytes: bytes of the gradients that exist.
        last: how the step before it ran; None for the first step, and after one that was cut short.
        report: what the plan on the model has shown since the last report.
        new_bytes: bytes that are allocated and that the plan on the model does not count on.
        outgrown: class of an optimizer that needs more than the newest plan counts; empty if none does.
    """

    batch: Batch
    gradient_bytes: int = 0
    last: Ran | None = None
    report: PlanReport = NOTHING_SEEN
    new_bytes: int = 0
    outgrown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnds:
    """What was seen of a step that is over.

    Attributes:
        kind: the kind of step that it was.
        nodes: how many autograd nodes its forwards made.
        backwards: how many backward passes it had.
        keeping: how many of those kept their graph.
        backward: whether it had one at all, even at a tensor that no forward returned.
        waits: whether a graph of it still waits for a backward.
        differentiable: whether its forwards made a graph.
        ran: how it ran.
        made_before: sizes of what the loop allocated before it.
        failure: why nothing could be learnt of it; empty if something could.
        left_waiting: whether it was watched, and one of its forwards had no backward.
        report: as in `StepBegins`.
    """

    kind: Kind
    nodes: int = 0
    backwards: int = 0
    keeping: int = 0
    backward: bool = False
    waits: bool = False
    differentiable: bool = True
    ran: Ran = field(default_factory=Ran)
    made_before: Sequence[int] = ()
    failure: str = ""
    left_waiting: bool = False
    report: PlanReport = NOTHING_SEEN

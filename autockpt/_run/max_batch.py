"""`max_batch`: how many samples fit a budget, with which plan, and how many a second go through at each number."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .._choose.solve import solve
from .._data.document import Document
from .._data.goal import Patterns
from .._data.plan import Plan
from .._data.profile import Profile
from .._record import profile
from .._record.optimizer import Optimizers
from .._record.recorder import Mode
from ..solvers.errors import BudgetError, Infeasible
from .apply import goal_for
from .growth.recordings import FIRST_SIZES, Recordings, agree
from .growth.search import SEARCH_SECONDS, Fitting, largest_plain

MOST_TRIES = 4
"""Recordings at the size that was found, where a recording says something else than the prediction."""

MOST_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How many samples a second go through at one number of samples a batch. Predicted.

    Attributes:
        batch_size: samples in a batch.
        plan: what is recomputed, so that the batch fits.
    """

    batch_size: int
    plan: Plan

    @property
    def step_seconds(self) -> float:
        """Seconds of the plain step and recompute seconds."""
        return self.plan.plain_seconds + self.plan.recompute_seconds

    @property
    def samples_per_second(self) -> float:
        """Samples that go through in a second of training; 0 where nothing was timed."""
        return self.batch_size / self.step_seconds if self.step_seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxBatch(Document):
    """The largest batch that fits a budget.

    Attributes:
        batch_size: samples in it.
        plan: the plan with which it fits, predicted from a step that was recorded at this size.
        plain_batch_size: samples in the largest batch that fits without recomputing anything; 0 where none does.
        throughputs: smaller batches and this one, in ascending order. Their plans keep to the budget too; those of
            sizes that were not recorded are predicted from sizes that were, as their notes say.
    """

    TEXT: ClassVar[str] = "explain.explain_max_batch"
    HTML: ClassVar[str] = "pictures.html.max_batch_html"

    batch_size: int
    plan: Plan
    plain_batch_size: int
    throughputs: tuple[Throughput, ...]

    @property
    def best(self) -> Throughput:
        """The batch with the most samples a second, the smallest of such; often not the largest batch."""
        return max(self.throughputs, key=lambda each: (each.samples_per_second, -each.batch_size))

    def explain(self) -> str:
        """Return the batch sizes as text: a row for each, the best marked."""
        text: str = self._shown(self.TEXT)
        return text


def max_batch(
    model: torch.nn.Module,
    make_inputs: Callable[[int], object],
    budget: int | str,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Optimizers | None = None,
    solver: str = "auto",
    seconds: float = 3.0,
    keep: Patterns = (),
    recompute: Patterns = (),
    mode: Mode = "measured",
    device: str | None = None,
    most: int | None = None,
) -> MaxBatch:
    """Find the largest batch with which `model` trains within `budget`, and what each smaller one would bring.

    Steps of a few samples are recorded, those of more predicted from them; then a step of the size that was found is
    recorded, and the answer is what that one says. The model stays as it is: apply the plan that you choose.

    Args:
        model: the model, in the mode (train or eval) in which it will train.
        make_inputs: makes a batch of so many samples, as `profile` takes it: a tuple is passed positionally, a mapping
            by keyword. Batches may differ in nothing but the number of samples.
        budget: highest peak of the whole step: bytes, ``"8GB"``, ``"8GiB"``, or ``"80%"`` of the
            device's memory (on a CPU, of the physical memory).
        loss: maps the model's outputs to a scalar; see `profile`.
        optimizer: its state and its step count in the budget; an optimizer, several, or a name, as in `profile`.
        solver: a name in ``autockpt.solvers.SOLVERS``.
        seconds: how long the solver may search for the plan of the largest batch.
        keep: patterns of calls that must not run again; see `solve`.
        recompute: patterns of calls that must.
        mode: how steps are recorded; see `profile`. ``fake`` runs nothing.
        device: in fake mode, the device whose roofline gives the seconds.
        most: no more samples than these are asked for; at least 4, which are recorded in any case.

    Returns:
        The number of samples, its plan, and the throughput of several sizes up to it. For one sample more the solver
        finds no plan within the budget, as far as that step can be predicted from the recorded ones; where recordings
        and predictions never agree, the largest of a few sizes that were recorded and fit.

    Raises:
        BudgetError: the budget does not parse, or `most` is below 4.
        GrowthError: `make_inputs` makes batches that do not grow, or with which the model does something else at each
            size, so that no size tells of another.
        Infeasible: not even one sample fits; carries the minimum reachable bytes for it, and the plan that reaches it.
        PinError: a pattern matches no call, or no plan can honour the pins.
        ProfilingError: the model cannot be recorded.
        UnknownSolver: there is no such solver.
        Exception: whatever `make_inputs` or the model's own forward raises.

    Example:
        >>> import torch, autockpt
        >>> block = lambda: torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
        >>> model = torch.nn.Sequential(*(block() for _ in range(4)))
        >>> found = autockpt.max_batch(model, lambda samples: torch.randn(samples, 32), "1MB")
        >>> found.batch_size > found.plain_batch_size, found.plan.peak_bytes <= 10**6
        (True, True)
        >>> model = autockpt.apply(model, plan=found.plan)

    Heuristic as the solver is: about ten searches of a second, and `seconds` for the plan itself.
    """
    budget_bytes = goal_for(model, budget, None).budget_bytes
    if budget_bytes is None:
        raise BudgetError(f"the largest batch is the largest for a number of bytes, and budget={budget!r} is none")
    if most is not None and most < FIRST_SIZES[1]:
        raise BudgetError(f"most is at least {FIRST_SIZES[1]} samples, which are recorded in any case; this is {most}")

    def record(size: int) -> Profile:
        return profile(model, make_inputs(size), loss=loss, optimizer=optimizer, mode=mode, device=device)

    def plan_of(recorded: Profile, seconds: float) -> Plan:
        return solve(recorded, budget_bytes, solver=solver, seconds=seconds, keep=keep, recompute=recompute)

    recordings = Recordings(record)
    growths = [recordings.first_growth(most)]
    fitting = Fitting(budget_bytes, solver=solver, seconds=seconds, keep=keep, recompute=recompute)
    plans: dict[int, Plan] = {}
    fits_not = None if most is None else most + 1
    for _ in range(MOST_TRIES):
        size = fitting.largest(growths[-1], max(plans, default=0), fits_not)
        if size == 0:
            fits_not = FIRST_SIZES[0]
        if size == 0 or size in plans:
            break
        predicted, recorded = growths[-1].at(size), recordings.at(size)
        growths += recordings.growths_to(size)
        try:
            plans[size] = plan_of(recorded, seconds)
        except Infeasible:
            fits_not = size
        else:
            if agree(predicted, recorded):
                break
    for size in recordings.below(fits_not):
        if not plans:
            with suppress(Infeasible):
                plans[size] = plan_of(recordings.at(size), seconds)
    if not plans:
        plans[1] = plan_of(recordings.at(1), seconds)  # raises with its figures where not even one fits

    def predicted_at(size: int) -> Profile:
        return next((each for each in reversed(growths) if min(each.sizes) <= (size,)), growths[0]).at(size)

    size = max(plans)
    plain_size = largest_plain(predicted_at, budget_bytes, size)
    for each in _rows(size, plain_size):
        if each not in plans:
            with suppress(Infeasible):
                plans[each] = plan_of(predicted_at(each), min(seconds, SEARCH_SECONDS))
    return MaxBatch(
        batch_size=size,
        plan=plans[size],
        plain_batch_size=plain_size,
        throughputs=tuple(Throughput(batch_size=each, plan=plan) for each, plan in sorted(plans.items())),
    )


def _rows(size: int, plain_size: int) -> list[int]:
    """Sizes to tell of: halves, halves of halves, and the largest without a plan."""
    halves = [size >> times for times in range(1, MOST_ROWS)]
    return sorted({each for each in (*halves, plain_size) if each >= min(FIRST_SIZES[0], size)})

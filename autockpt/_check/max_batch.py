"""`max_batch`: how many samples fit a budget, with which plan, and the throughput at each batch size."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch

from .._choose.solve import solve
from .._data.errors import GrowthError
from .._data.goal import Patterns, refuse_no_number
from .._data.plan import Plan
from .._data.profile import Profile
from .._data.text.document import Document
from .._record import profile
from .._record.optimizers.memory import Optimizers
from .._record.recorder import Mode
from .._record.step import refuse_other
from .._torch.devices import device_of, planned_device
from .._train.apply import goal_for
from .._train.request import less_margin
from ..solvers.errors import BudgetError, Infeasible
from ..solvers.units import in_unit_of, shown
from .fitting import FIRST_SIZES, largest

_log = logging.getLogger("autockpt")

SEARCH_SECONDS = 1.0
"""For the solver at one size. The final plan gets a search of its own."""

MOST_ROWS = 5

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The predicted throughput of one batch size.

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
        throughputs: smaller batches and this one, in ascending order. Their plans keep to the budget too.
    """

    _repr_pretty_ = Document._repr_pretty_  # IPython would take the repr of the dataclass, which comes first

    PAGE: ClassVar[str] = "explain.results.max_batch_page"

    batch_size: int
    plan: Plan
    plain_batch_size: int
    throughputs: tuple[Throughput, ...]

    @property
    def best(self) -> Throughput:
        """The batch with the most samples a second, the smallest of such; often not the largest batch."""
        return max(self.throughputs, key=lambda each: (each.samples_per_second, -each.batch_size))


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

    On a device, 3 % of the budget is left to its allocator, as in `apply`.

    First, fake steps of a few sizes are recorded: they run nothing, and show where the budget is reached. Then a step
    of the size found is recorded in `mode`, and gives the answer. The model stays as it is: apply the plan that you
    choose. Each recording is logged to the logger ``autockpt``.

    Args:
        model: the model, in the mode (train or eval) in which it will train.
        make_inputs: makes a batch of so many samples, as `profile` takes it: a tuple is passed positionally, a mapping
            by keyword. Batches may differ in nothing but the number of samples.
        budget: highest peak of the whole step: bytes, ``"8GB"``, ``"8GiB"``, or ``"80%"`` of the
            device's memory (on a CPU, of the physical memory).
        loss: maps the model's outputs to a scalar; see `profile`.
        optimizer: its state and its step count in the budget; an optimizer, several, or a name, as in `profile`.
        solver: a name in ``autockpt.solvers.SOLVERS``, or ``uniform:4`` or ``block:4`` for so many layers.
        seconds: how long the solver may search for the plan of the largest batch.
        keep: patterns of calls that must not run again; see `solve`.
        recompute: patterns of calls that must.
        mode: how steps are recorded; see `profile`. ``fake`` runs nothing.
        device: in fake mode, the device whose roofline gives the seconds.
        most: the largest batch size that is tried.

    Returns:
        The number of samples, its plan, and the throughput of several sizes up to it. For one sample more, the solver
        finds no plan within the budget, by a fake step scaled by measured over fake at the size found.

    Raises:
        BudgetError: the budget does not parse, or `most` is below 1.
        GrowthError: `make_inputs` makes batches that do not grow.
        Infeasible: not even one sample fits; carries the minimum reachable bytes for it, and the plan that reaches it.
        PinError: a pattern matches no call, or no plan can honour the pins.
        ProfilingError: the model cannot be recorded, or its forward fails on a batch.
        UnknownSolver: there is no such solver.
        Exception: whatever `make_inputs` raises.

    Example:
        >>> import torch, autockpt
        >>> block = lambda: torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
        >>> model = torch.nn.Sequential(*(block() for _ in range(4)))
        >>> found = autockpt.max_batch(model, lambda samples: torch.randn(samples, 32), "1MB")
        >>> found.batch_size > found.plain_batch_size, found.plan.peak_bytes <= 10**6
        (True, True)
        >>> model = autockpt.apply(model, plan=found.plan)

    Heuristic as the solver is: about ten fake recordings with a search of a second, and `seconds` for the
    plan itself.
    """
    refuse_other(model)
    _refuse_no_function(make_inputs)
    budget_bytes = _budget_bytes(model, budget, device)
    if most is not None:
        refuse_no_number("most", most, 1)
    search = functools.partial(solve, solver=solver, keep=keep, recompute=recompute)

    def record(size: int, mode: Mode = mode) -> Profile:
        _log.info("a step of %d samples is recorded (%s)", size, mode)
        return profile(model, make_inputs(size), loss=loss, optimizer=optimizer, mode=mode, device=device)

    def plan_of(recorded: Profile, seconds: float = seconds) -> Plan:
        return search(recorded, in_unit_of(budget_bytes, budget), seconds=seconds)

    recorded = functools.cache(record)
    fake = recorded if mode == "fake" else functools.cache(functools.partial(record, mode="fake"))
    _refuse_constant(fake, most)
    size = largest(
        lambda n: _least_bytes(search, fake(n)), lambda n: _least_bytes(search, recorded(n)), budget_bytes, most
    )
    plans = {max(size, 1): plan_of(recorded(max(size, 1)))}  # raises with its figures where not even one fits
    size = max(plans)
    plain_size = largest(lambda n: fake(n).plain_peak_bytes, lambda n: recorded(n).plain_peak_bytes, budget_bytes, size)
    for each in (each for each in _rows(size, plain_size) if each != size):
        with suppress(Infeasible):
            plans[each] = plan_of(recorded(each), min(seconds, SEARCH_SECONDS))
    throughputs = tuple(Throughput(batch_size=each, plan=plan) for each, plan in sorted(plans.items()))
    return MaxBatch(batch_size=size, plan=plans[size], plain_batch_size=plain_size, throughputs=throughputs)


def _refuse_no_function(make_inputs: object) -> None:
    """Refuse a `make_inputs` that is no function."""
    if not callable(make_inputs):
        raise GrowthError(
            f"make_inputs is {shown(make_inputs)}; give a function that makes a batch of so many samples, such as "
            "lambda samples: torch.randn(samples, 32)"
        )


def _budget_bytes(model: torch.nn.Module, budget: int | str, device: str | None) -> int:
    """Return the bytes that a step may have, without what a device's allocator keeps.

    Raises:
        BudgetError: the budget is no number of bytes.
    """
    on = planned_device() if device is not None else device_of(next((each.device for each in model.parameters()), CPU))
    budget_bytes = less_margin(goal_for(model, budget, None), on).budget_bytes
    if budget_bytes is None:
        raise BudgetError(f"max_batch needs a budget in bytes or percent, and budget={budget!r} is neither")
    return budget_bytes


def _least_bytes(search: Callable[..., Plan], recorded: Profile) -> int:
    """Return the lowest peak that a search finds for a step."""
    try:
        search(recorded, 1, seconds=SEARCH_SECONDS)
    except Infeasible as error:
        return error.minimum_bytes
    return 1


def _refuse_constant(fake: Callable[[int], Profile], most: int | None) -> None:
    """Refuse a function that does not make as many samples as it is asked for."""
    sizes = [size for size in FIRST_SIZES if most is None or size <= most]
    found = [fake(size).static.input_bytes for size in sizes]
    if any(one >= other for one, other in pairwise(found)):
        raise GrowthError(
            f"make_inputs({sizes[0]}) is {found[0]:,} bytes of inputs and make_inputs({sizes[1]}) {found[1]:,}; it has "
            "to make as many samples as it is asked for"
        )


def _rows(size: int, plain_size: int) -> list[int]:
    """Sizes to report: a half, a quarter and so on, and the largest that fits without a plan."""
    halves = [size >> times for times in range(1, MOST_ROWS)]
    return sorted({each for each in (*halves, plain_size) if each >= min(FIRST_SIZES[0], size)})

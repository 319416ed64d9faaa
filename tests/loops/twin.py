"""A training run that notes all it does to its model, and how a run under a budget is held against a plain one."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
import torch
from torch import Tensor, nn

import autockpt
from benchmarks.in_place.allocator import LOADED, Allocator
from tests.loops.models import loss_of
from tests.twin import differing, digest, generators, held_by, listening, storage_bytes

__all__ = ["PLANNED_BY", "Found", "Run", "held", "listening", "one", "steps", "train", "train_on"]

PLANNED_BY = 4
"""Step by which a plan is on the model, counted from 1. One later than for a model that its first step leaves alone:
ours count their forwards. After one step a counter looks like a flag that a first forward sets, and calls that set
flags could never be recomputed; so the second step is recorded, and what has not changed again was only set up."""

SETTLED = 4
"""Steps before the first that is measured: the meter runs torch's profiler, with which no step can be recorded.
`test_from_step_1.py` has another meter, and measures every step."""

BUDGET = 0.6
"""Of what the plain step adds to what was there."""

Loop = Callable[["Run"], None]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


@dataclass(slots=True)
class Run:
    """One run of a loop.

    Attributes:
        model: what trains; a loop may put another in its place.
        optimizer: of the model.
        budget_bytes: what the model is held to, and steps are measured where a plan is on it; None for a plain run.
        settled: steps before the first that is measured; a loop that brings something new puts it off.
        unmeasured: steps that are not measured from outside either, counted from 1; a loop says why.
        noted: digests of all that must be equal, by name.
        updates: how often gradients were noted.
        planned: whether a plan was on the model, after each step.
        static_bytes: of each measured step, what was there before.
        peak_bytes: of each measured step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    budget_bytes: int | None
    settled: int = SETTLED
    unmeasured: frozenset[int] = frozenset()
    noted: dict[str, str] = field(default_factory=dict)
    updates: int = 0
    planned: list[bool] = field(default_factory=list)
    static_bytes: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)

    @property
    def governed(self) -> bool:
        """Whether it is held to a budget."""
        return self.budget_bytes is not None

    def step(self, work: Callable[[], Tensor], batch: object = ()) -> None:
        """Run one step, from its first forward to the end of the optimizer's, and note its loss."""
        number, losses = len(self.planned) + 1, []
        settled = number > self.settled and (not self.governed or autockpt.plan_of(self.model) is not None)
        if number not in self.unmeasured and (settled or read_from_outside()):
            static_bytes = storage_bytes(held_by(self.model, self.optimizer, batch))
            self.static_bytes.append(static_bytes)
            self.peak_bytes.append(static_bytes + _added_bytes(lambda: losses.append(work().detach())))
        else:
            losses.append(work().detach())
        self.note(f"loss of step {number}", losses[0])
        self.planned.append(autockpt.plan_of(self.model) is not None)

    def unsettle(self, steps: int = SETTLED) -> None:
        """Measure nothing for some steps: something new comes."""
        self.settled = len(self.planned) + steps

    def update(self) -> None:
        """Note the gradients, let the optimizer step, and let go of them."""
        self.note_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def note(self, name: str, value: Tensor) -> None:
        """Note a tensor that must be equal."""
        self.noted[name] = digest(value)

    def note_gradients(self) -> None:
        """Note all gradients as they are now."""
        self.updates += 1
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:  # no copy is made: steps are measured meanwhile
                self.note(f"gradient {self.updates} of {name}", parameter.grad)

    def note_all(self) -> None:
        """Note what is left at the end: weights, buffers, optimizer, generators, and what modules count in Python."""
        for name, value in self.model.state_dict().items():
            self.note(f"model.{name}", value)
        for number, state in enumerate(self.optimizer.state.values()):
            for name, value in state.items():
                if isinstance(value, Tensor):
                    self.note(f"optimizer {number}.{name}", value)
        self.noted |= generators()
        for name, module in self.model.named_modules():
            self.noted[f"attributes of {name}"] = repr(sorted(vars(module)))
            for key, value in vars(module).items():
                if isinstance(value, (bool, int, float, str)):
                    self.noted[f"{name}.{key}"] = repr(value)


def train(run: Run, batches: Sequence[Tensor]) -> None:
    """Train as most loops do."""
    for batch in batches:
        run.step(lambda batch=batch: one(run, batch), batch)  # type: ignore[misc]


def train_on(run: Run, batches: Iterable[Tensor], loss_on: Callable[[Tensor], Tensor]) -> None:
    """Train as most loops do, by a loss of one's own."""
    for batch in batches:

        def work(batch: Tensor = batch) -> Tensor:
            loss = loss_on(batch)
            loss.backward()
            run.update()
            return loss

        run.step(work, batch)


def one(run: Run, batch: Tensor) -> Tensor:
    """One forward, backward and update."""
    loss = loss_of(run.model(batch))
    loss.backward()
    run.update()
    return loss


class Batches(Sequence[Tensor]):
    """Batches, the same each time. Each is made as it is asked for: a list of them would stand beside the model."""

    def __init__(self, numbers: range, rows: int) -> None:
        self._numbers, self._rows = numbers, rows

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Tensor: ...

    @overload
    def __getitem__(self, at: slice) -> Batches: ...

    def __getitem__(self, at: int | slice) -> Tensor | Batches:
        if isinstance(at, slice):
            return Batches(self._numbers[at], self._rows)
        return torch.randn(self._rows, 32, generator=torch.Generator().manual_seed(100 + self._numbers[at]))


def steps(count: int = 8, rows: int = 512) -> Batches:
    """Return so many batches."""
    return Batches(range(count), rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a run under a budget showed.

    Attributes:
        plain: the twin's run.
        run: the run.
        budget_bytes: what it was held to.
        said: all that the library warned of.
    """

    plain: Run
    run: Run
    budget_bytes: int
    said: str


def held(
    build: Callable[[], nn.Module],
    loop: Loop,
    *,
    optimizer: MakeOptimizer = adamw,
    planned_by: int = PLANNED_BY,
    budget: float = BUDGET,
    excuse: str | None = None,
) -> Found:
    """Run a loop plain and under a budget, and hold the two together.

    Args:
        build: makes the model, the same each time.
        loop: trains it.
        optimizer: makes the optimizer.
        planned_by: step after which a plan must be on the model, counted from 1.
        budget: share of what the plain step adds.
        excuse: words that a warning must have where no plan is on the model by then; None where it must be.

    Returns:
        What was found, for more to be asserted.
    """
    plain = _run(build, loop, optimizer, None)
    plain.model, plain.optimizer = nn.Identity(), adamw(nn.Linear(1, 1))  # else they stand beside the other run
    base, peak = max(plain.static_bytes), max(plain.peak_bytes)
    budget_bytes = base + round(budget * (peak - base))
    with listening() as said:
        run = _run(build, loop, optimizer, budget_bytes)
    found = Found(plain=plain, run=run, budget_bytes=budget_bytes, said="\n".join(said))
    different = differing(plain.noted, run.noted)
    assert different == [], f"{len(different)} of {len(plain.noted)} differ, such as {different[:3]}"
    measured = run.peak_bytes
    if read_from_outside() and excuse is not None:  # every step is measured, and those without a plan are excused
        measured = [peak for peak, planned in zip(measured, run.planned, strict=True) if planned]
    shares = [round(each / budget_bytes, 3) for each in measured if each > budget_bytes]
    assert shares == [], f"of {len(measured)} steps over the budget of {budget_bytes} (plain {peak}): {shares}"
    if not run.planned[planned_by - 1]:
        assert excuse is not None, f"no plan by step {planned_by}: {run.planned}; said: {found.said or 'nothing'}"
        assert found.said and excuse in found.said, f"no plan by step {planned_by}, and nobody said why"
    assert len(run.peak_bytes) > 0 or excuse is not None, f"no step was measured under a plan: {run.planned}"
    return found


def _run(build: Callable[[], nn.Module], loop: Loop, optimizer: MakeOptimizer, budget_bytes: int | None) -> Run:
    gc.collect()
    torch.manual_seed(0)
    model = build().train()
    if budget_bytes is not None:
        autockpt.apply(model, budget_bytes)
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    run = Run(model=model, optimizer=optimizer(model), budget_bytes=budget_bytes)
    loop(run)
    if run.governed:
        autockpt.remove(run.model)
    run.note_all()
    return run


def read_from_outside() -> bool:
    """Whether this process has a reader of the allocator beside torch, so that every step can be measured."""
    return "allocator" in os.environ.get(LOADED, "")


def _added_bytes(work: Callable[[], object]) -> int:
    """Do some work, and return by how much memory rose above what was there."""
    if not read_from_outside():
        return autockpt.measure(work, device="cpu").step_bytes
    allocator = Allocator()
    before = allocator.level_bytes()
    allocator.begin()
    work()
    return allocator.peak_bytes() - before

"""The same training run plain and under a budget on a device, told by the allocator's own counter."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import autockpt
from tests.doors import governor_of, torch_private
from tests.fake_cuda.device import take_peak
from tests.twin import same_bits

__all__ = [
    "Batch",
    "Loop",
    "Optimizers",
    "Outcome",
    "Run",
    "adamw",
    "blocks",
    "foretold",
    "loss_of",
    "outcome",
    "plain_and_planned",
    "plainly",
    "sweep",
    "trained",
    "trained_plainly",
    "within",
]

Batch = dict[str, Any]
Optimizers = Callable[[nn.Module], torch.optim.Optimizer | None]


@dataclass
class Run:
    """One training run, and what it noted of each step.

    Args:
        model: what trains.
        batch: its first batch.
        optimizer: what trains it.
        base_bytes: what stood before there was a model. Workspaces of libraries are not in it.
        left: what each step left: gradients and buffers.
        peaks: highest level of each step above that.
        predicted: peak of the plan that each step ran under; None where it ran under none.
        standing_bytes: level above that as the last step was over.
    """

    model: nn.Module
    batch: Batch
    optimizer: torch.optim.Optimizer | None
    base_bytes: int
    left: list[list[Tensor]] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    predicted: list[int | None] = field(default_factory=list)
    standing_bytes: int = 0

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Note one step, also one that fails: its peak, and the gradients and buffers that it leaves."""
        take_peak()
        try:
            yield
        finally:
            self._note()

    def _note(self) -> None:
        self.peaks.append(take_peak() - self.base_bytes)
        self.predicted.append(self.predicted_bytes())
        gradients = (each.grad for each in self.model.parameters() if each.grad is not None)
        self.left.append([each.detach().cpu().clone() for each in (*gradients, *self.model.buffers())])
        self.model.zero_grad()
        self.standing_bytes = torch.cuda.memory_allocated() - self.base_bytes

    def predicted_bytes(self) -> int | None:
        """Return the peak of the plan that is on; what stood before there was a model counts where it has a budget."""
        held = trained(self.model)
        plan = autockpt.plan_of(held)
        if plan is None or plan.peak_bytes is None:
            return None
        return plan.peak_bytes - (
            self.base_bytes if governor_of(next(iter(held)) if isinstance(held, list) else held) is not None else 0
        )


Loop = Callable[[Run], None]


def trained(model: nn.Module) -> nn.Module | list[nn.Module]:
    """What has the budget: the model, or all those of a dictionary together."""
    return [*model.values()] if isinstance(model, nn.ModuleDict) else model


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A plain run and a planned one."""

    plain: Run
    planned: Run
    budget_bytes: int
    plan: autockpt.Plan | None


def loss_of(outputs: Any) -> Tensor:
    """The loss that a model of transformers works out, or that of its result."""
    loss = getattr(outputs, "loss", None)
    return loss if isinstance(loss, Tensor) else outputs.float().square().mean()


def blocks(number: int = 6, width: int = 128, rows: int = 512, dropout: float = 0.1) -> tuple[nn.Module, Batch]:
    """A model of plain blocks, and a batch, on the device."""
    torch.manual_seed(0)
    made = (
        nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width))
        for _ in range(number)
    )
    return nn.Sequential(*made).cuda().train(), {"input": torch.randn(rows, width).cuda()}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def plainly(run: Run, steps: int = 6) -> None:
    """The plainest loop."""
    for _ in range(steps):
        with run.step():
            outputs = run.model(**run.batch)  # held as long as most loops do
            loss_of(outputs).backward()
            if run.optimizer is not None:
                run.optimizer.step()
            del outputs


def plain_and_planned(
    build: Callable[[], tuple[nn.Module, Batch]],
    loop: Loop = plainly,
    *,
    share: float = 0.6,
    optimizer: Optimizers = adamw,
    apply: Callable[[Run, int], object] | None = None,
    plain: Run | None = None,
) -> Outcome:
    """Train twice, the second time within a share of what a plain step adds to what stands.

    Args:
        build: Makes the model and its batch, the same each time.
        loop: Trains.
        share: Of the bytes between what stands and the plain peak.
        optimizer: Makes what trains the model.
        apply: Puts the budget on; `autockpt.apply` where nothing else is said.
        plain: The plain run, where there is one already.
    """
    plain = trained_plainly(build, loop, optimizer) if plain is None else plain
    standing, peak = plain.standing_bytes, max(plain.peaks[1:])
    budget_bytes = int(standing + share * (peak - standing))
    apply = apply or (lambda run, budget: autockpt.apply(trained(run.model), budget=budget))
    planned = _trained(build, loop, optimizer, lambda run: apply(run, budget_bytes + run.base_bytes))
    plan = autockpt.plan_of(trained(planned.model))
    return Outcome(plain=plain, planned=planned, budget_bytes=budget_bytes, plan=plan)


def trained_plainly(
    build: Callable[[], tuple[nn.Module, Batch]], loop: Loop = plainly, optimizer: Optimizers = adamw
) -> Run:
    """Train without a plan; return what was noted, from a model that is gone."""
    run = _trained(build, loop, optimizer, None)
    run.model, run.optimizer, run.batch = nn.Identity(), None, {}
    return run


def _trained(
    build: Callable[[], tuple[nn.Module, Batch]],
    loop: Loop,
    optimizer: Optimizers,
    prepare: Callable[[Run], object] | None,
) -> Run:
    sweep()
    base_bytes = torch.cuda.memory_allocated()
    model, batch = build()
    run = Run(model, batch, optimizer(model), base_bytes)
    if prepare is not None:
        prepare(run)
    torch.manual_seed(1)
    loop(run)
    return run


def sweep() -> None:
    """Let go of what others have left on the device, and of the highest level that it has seen."""
    gc.collect()
    torch_private.forget_workspaces()
    if torch.cuda.memory_allocated():
        gc.unfreeze()  # what other tests have left is frozen
        gc.collect()
        gc.freeze()  # else each recording and measurement would look through all that there is
    torch.cuda.empty_cache()  # else blocks of others, larger than what is asked for, are handed out whole
    torch.cuda.reset_peak_memory_stats()


def outcome(found: Outcome) -> list[bool]:
    """Whether each step of a planned run made bit for bit what the plain one did."""
    return [
        len(one) == len(other) and all(map(same_bits, one, other))
        for one, other in zip(found.plain.left, found.planned.left, strict=True)
    ]


def within(found: Outcome) -> list[bool]:
    """Whether each step of a planned run, those that were recorded too, kept to the budget."""
    return [peak <= found.budget_bytes for peak in found.planned.peaks]


def foretold(found: Outcome) -> float | None:
    """Predicted over measured peak: of the last plan, over the highest step under it but the one that rehearsed it."""
    last, steps = found.planned.predicted[-1], zip(found.planned.peaks, found.planned.predicted, strict=True)
    under = [peak for peak, predicted in steps if predicted == last]
    return last / max(under[1:] or under) if last is not None else None

"""Draws training loops: several models, forwards and backwards in any order, and holds planned steps to plain ones.

    F maker(batch)      out 0           a forward, of the batch or of an earlier output, cut off or not
    F critic(out 0, cut)  out 1
    B out 1             retained?       a backward of the losses of some outputs; or the norm of gradients first
    S critic                            its optimizer steps

Every step of a run has the same statements. A budget is drawn as a share of what the plain step adds.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import Infeasible
from tests.fuzz.check import Difference, PlainFails
from tests.twin import digest, listening, storage_bytes

__all__ = ["Loop", "LoopVerdict", "check_loop", "loops"]

WIDTH, ROWS, STEPS = 16, 512, 8

SETTLED = 5
"""Steps before the first that is measured: the meter runs torch's profiler, with which no step can be recorded."""

LOWEST = 1.02
"""Over the peak of torch's own checkpoint on every block: what the lowest peak may be that `Infeasible` tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of a step.

    Attributes:
        what: a forward, a backward, a penalty on the gradient of the batch and then a backward, an optimizer's step.
        model: of a forward or an optimizer's step.
        of: number of the output that a forward gets, -1 for the batch; the outputs that a backward takes.
        cut: whether a forward gets it without its graph.
        retain: whether a backward keeps its graph.
    """

    what: str
    model: int = 0
    of: tuple[int, ...] = ()
    cut: bool = False
    retain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop.

    Attributes:
        depths: blocks of each model; each output is as wide as the batch.
        dropout: of each block.
        together: whether the models are given to `apply` in a list, or are parts of one that runs them.
        statements: of a step.
        budget: share of what the plain step adds.
    """

    depths: tuple[int, ...]
    dropout: float
    together: bool
    statements: tuple[Statement, ...]
    budget: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopVerdict:
    """What became of a loop without a difference: ``within``, ``told`` (over, and said so), or ``infeasible``."""

    result: str
    detail: str = ""


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    """Draw a loop whose backwards take outputs that have not had one, or whose graph is kept."""
    depths = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    statements: list[Statement] = []
    alive: list[int] = []  # outputs that may have a backward
    made = 0
    for _ in range(draw(st.integers(2, 9))):
        kinds = ["forward"] * (made < 5) + ["backward", "backward", "penalty"] * bool(alive) + ["step"] * (made > 0)
        what = draw(st.sampled_from(kinds))
        model = draw(st.integers(0, len(depths) - 1))
        if what == "forward":
            came = draw(st.integers(-1, made - 1))
            statements.append(Statement(what=what, model=model, of=(came,), cut=draw(st.booleans())))
            alive.append(made)
            made += 1
        elif what == "step":
            statements.append(Statement(what=what, model=model))
        else:
            of = tuple(sorted(draw(st.sets(st.sampled_from([*alive]), min_size=1))))
            retain = draw(st.sampled_from([False, False, True]))
            statements.append(Statement(what=what, of=of, retain=retain))
            alive = alive if retain else [each for each in alive if each not in of]
    if alive:
        statements.append(Statement(what="backward", of=tuple(alive)))
    statements += [Statement(what="step", model=model) for model in range(len(depths))]
    return Loop(
        depths=depths,
        dropout=draw(st.sampled_from([0.0, 0.0, 0.2])),
        together=draw(st.booleans()),
        statements=tuple(statements),
        budget=draw(st.sampled_from([0.6, 0.75, 0.9])),
    )


class Parts(nn.Module):
    """Several networks in one, of which a forward runs one."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, which: int, hidden: Tensor) -> Tensor:
        made: Tensor = self.parts[which](hidden)
        return made


def check_loop(loop: Loop) -> LoopVerdict:
    """Run a loop plain and under a budget.

    Raises:
        PlainFails: the plain loop raises.
        Difference: bits differ, the run fails, or a step is over the budget and nobody said so.
    """
    try:
        plain = _Run(loop, None)
    except RuntimeError as error:
        raise PlainFails(str(error)) from error
    budget_bytes = int(plain.start_bytes + loop.budget * (plain.peak_bytes - plain.start_bytes))
    with listening() as said:
        try:
            run = _Run(loop, budget_bytes)
        except Infeasible as error:
            return _infeasible(loop, error, plain.peak_bytes)
        except RuntimeError as error:
            raise Difference(f"{loop} fails under a budget: {error}") from error
    for name, value in plain.noted.items():
        if run.noted.get(name) != value:
            raise Difference(f"{name} differs: {loop}; said: {said}")
    if run.peak_bytes <= budget_bytes:
        return LoopVerdict(result="within")
    if not any("budget" in each for each in said):
        over = f"{run.peak_bytes} of {budget_bytes} bytes, plain {plain.peak_bytes}"
        raise Difference(f"over the budget in silence, {over}: {loop}; said: {said}")
    return LoopVerdict(result="told", detail=" / ".join(each[:60] for each in said))


def _infeasible(loop: Loop, error: Infeasible, plain_bytes: int) -> LoopVerdict:
    """Hold the lowest peak that is told against that of torch's own checkpoint on every block."""
    peak_bytes = _Run(loop, None, checkpointed=True).peak_bytes
    if error.minimum_bytes > LOWEST * peak_bytes:
        raise Difference(
            f"the lowest peak is said to be {error.minimum_bytes} bytes, and torch's checkpoint has {peak_bytes}, "
            f"plain {plain_bytes}: {loop}"
        )
    return LoopVerdict(result="infeasible", detail=f"{error.minimum_bytes / peak_bytes:.1f} of torch's checkpoint")


class _Run:
    """One run of a loop; notes what it computes, and what its late steps hold."""

    def __init__(self, loop: Loop, budget_bytes: int | None, *, checkpointed: bool = False) -> None:
        gc.collect()
        torch.manual_seed(0)
        kind = _Checkpointed if checkpointed else nn.Sequential
        models = [nn.Sequential(*(kind(*_layers(loop.dropout)) for _ in range(depth))) for depth in loop.depths]
        self._whole = Parts(models)
        self._forwards = models if loop.together else [_Part(self._whole, number) for number in range(len(models))]
        self._optimizers = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in models]
        given = models if loop.together else self._whole
        if budget_bytes is not None:
            autockpt.apply(given, budget_bytes)
        self.noted: dict[str, str] = {}
        self.start_bytes, self.peak_bytes = 2**62, 0
        torch.manual_seed(1)
        for number in range(STEPS):
            batch = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(100 + number))
            if number < SETTLED:
                self._step(loop, number, batch)
                continue
            own_bytes = storage_bytes([*self._whole.parameters(), *self._states(), batch])
            added_bytes = autockpt.measure(lambda b=batch, n=number: self._step(loop, n, b), device="cpu").step_bytes  # type: ignore[misc]
            self.start_bytes = min(self.start_bytes, own_bytes)
            self.peak_bytes = max(self.peak_bytes, own_bytes + added_bytes)
        self.noted["generator"] = digest(torch.get_rng_state())
        if budget_bytes is not None:
            autockpt.remove(given)

    def _states(self) -> list[Tensor]:
        states = [value for each in self._optimizers for state in each.state.values() for value in state.values()]
        return [value for value in states if isinstance(value, Tensor)]

    def _step(self, loop: Loop, number: int, batch: Tensor) -> None:
        outputs: dict[int, Tensor] = {}
        for place, each in enumerate(loop.statements):
            if each.what == "forward":
                came = batch if each.of[0] < 0 else outputs[each.of[0]]
                outputs[len(outputs)] = self._forwards[each.model](came.detach() if each.cut else came)
            elif each.what == "step":
                self._optimizers[each.model].step()
                self._optimizers[each.model].zero_grad()
            else:
                self._backward(each, outputs, f"step {number}, statement {place}")

    def _backward(self, statement: Statement, outputs: dict[int, Tensor], where: str) -> None:
        loss = torch.stack([outputs[each].square().mean() for each in statement.of]).sum()
        if statement.what == "penalty":
            weights = [each for each in self._whole.parameters() if each.requires_grad]
            gradients = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
            reached: list[Tensor | None] = [*gradients]
            squares = [each.square().sum() for each in reached if each is not None]
            loss = loss + torch.stack(squares).sum()
        loss.backward(retain_graph=statement.retain)
        self.noted[f"loss of {where}"] = digest(loss)
        for name, parameter in self._whole.named_parameters():
            if parameter.grad is not None:
                self.noted[f"gradient of {name} after {where}"] = digest(parameter.grad)


class _Part:
    """Runs one part of a model by the model's own forward."""

    def __init__(self, whole: Parts, which: int) -> None:
        self._whole, self._which = whole, which

    def __call__(self, hidden: Tensor) -> Tensor:
        made: Tensor = self._whole(self._which, hidden)
        return made


class _Checkpointed(nn.Sequential):
    """A block that torch's own checkpoint recomputes."""

    def forward(self, hidden: Tensor) -> Tensor:
        made: Tensor = checkpoint(super().forward, hidden, use_reentrant=False)
        return made


def _layers(dropout: float) -> list[nn.Module]:
    return [nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout)]

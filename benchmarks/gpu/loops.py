"""Loops of any shape: several models, several backwards, gradients of gradients, and what stands beside them.

Each trains twice from the same numbers, plain and under one budget, with kernels that repeat themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import autockpt
from benchmarks.gpu.memory import clean
from benchmarks.gpu.rows import Figures, Job, NotHere
from benchmarks.gpu.steps import DETERMINISTIC, Setting, deterministic
from benchmarks.gpu.watch import Loop, bits, listening, watch

__all__ = ["rows"]

STEPS, SHARE = 8, 0.6
WIDTHS = {"full": (2048, 8192), "tiny": (32, 256)}
"""Of a model, and rows of its batch."""

DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """What trains in a loop: its models by name, an optimizer of each, and how large a batch is."""

    models: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]
    width: int
    rows: int
    device: torch.device

    def noise(self) -> Tensor:
        """Return a batch."""
        return torch.randn(self.rows, self.width, device=self.device)

    def steps(self, *names: str) -> None:
        """Let optimizers step, and all gradients go."""
        for name in names:
            self.optimizers[name].step()
        for each in self.models.values():
            each.zero_grad()


Body = Callable[[Networks], None]


def adversaries(nets: Networks) -> None:
    """A critic with a penalty on its gradients, then its maker."""
    maker, critic = nets.models.values()
    made = maker(nets.noise())
    real = nets.noise().requires_grad_()
    judged = critic(real)
    (slope,) = torch.autograd.grad(judged.sum(), real, create_graph=True)
    loss = critic(made.detach()).mean() - judged.mean() + (slope.norm(dim=1) - 1).square().mean()
    loss.backward()
    nets.steps("critic")
    critic(made).mean().neg().backward()
    nets.steps("maker")


def twice_through(nets: Networks) -> None:
    """Two losses of one graph, a backward each."""
    one, other = nets.models.values()
    hidden = one(nets.noise())
    hidden.square().mean().backward(retain_graph=True)
    other(hidden).square().mean().backward()
    nets.steps("one", "other")


def with_a_teacher(nets: Networks) -> None:
    """A frozen teacher beside the student, and an average of the student's weights that is made in the first step."""
    student, teacher = nets.models.values()
    batch = nets.noise()
    with torch.no_grad():
        wanted = teacher(batch)
    nn.functional.mse_loss(student(batch), wanted).backward()
    nets.steps("student")
    with torch.no_grad():
        for own, taught in zip(student.parameters(), teacher.parameters(), strict=True):
            taught.lerp_(own, 0.01)


LOOPS: dict[str, tuple[Body, tuple[str, str], tuple[str, ...]]] = {
    "a GAN with a penalty": (adversaries, ("maker", "critic"), ("maker", "critic")),
    "two backwards": (twice_through, ("one", "other"), ("one", "other")),
    "a teacher beside it": (with_a_teacher, ("student", "teacher"), ("student",)),
}
"""What a step does, names of the networks, and those that are held to the budget."""


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return a row for each loop."""
    return [
        Job(name=f"loop: {name}", run=partial(_row, name, setting), process=f"loop {name}", environment=DETERMINISTIC)
        for name in LOOPS
    ]


def _networks(names: tuple[str, str], setting: Setting) -> Networks:
    width, count = WIDTHS[setting.size]
    torch.manual_seed(0)
    models: dict[str, nn.Module] = {}
    for name in names:
        layers = [[nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1)] for _ in range(DEPTH)]
        models[name] = nn.Sequential(*(nn.Sequential(*each) for each in layers)).to(setting.device)
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-5) for name, model in models.items()}
    return Networks(models=models, optimizers=optimizers, width=width, rows=count, device=setting.device)


def _row(name: str, setting: Setting) -> Iterator[Figures]:
    if setting.device.type != "cuda":
        raise NotHere("a CPU's allocator keeps no statistics")
    body, names, held = LOOPS[name]
    with deterministic():
        nets = _networks(names, setting)
        plain = _train(nets, body)
        ends = [bits(model) for model in nets.models.values()]
        del nets
        clean(setting.device)
        # As the first step is over, all that stays is there.
        idle_bytes, peak_bytes = min(plain.idle_bytes), max(plain.loop.peaks_bytes)
        budget_bytes = idle_bytes + int(SHARE * (peak_bytes - idle_bytes))
        yield "predicted", {"plain_peak_bytes": peak_bytes, "budget_bytes": budget_bytes}
        yield "predicted", {"fits": True, "same bits": True, "warnings": 0}
        nets = _networks(names, setting)
        together = [nets.models[each] for each in held]
        with listening() as told:
            autockpt.apply(together if len(together) > 1 else together[0], budget_bytes, seconds=setting.search_seconds)
            planned = _train(nets, body)
        plan = autockpt.plan_of(together if len(together) > 1 else together[0])
        yield (
            "measured",
            {
                "fits": max(planned.loop.peaks_bytes) <= budget_bytes,
                "peaks": planned.loop.peaks_bytes,
                "predicted peak": plan.peak_bytes if plan is not None else None,
                "same bits": [bits(model) for model in nets.models.values()] == ends,
                "warnings": len(told.warnings),
                "log": told.lines,
                "plain_seconds": plain.loop.seconds,
                "steps' seconds": planned.loop.seconds,
            },
        )
        autockpt.remove(together if len(together) > 1 else together[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    loop: Loop
    idle_bytes: list[int]


def _train(nets: Networks, body: Body) -> _Trained:
    loop, idle_bytes = Loop(), list[int]()
    torch.manual_seed(1)
    for _ in range(STEPS):
        watch(loop, partial(body, nets), nets.device)
        idle_bytes.append(torch.cuda.memory_allocated(nets.device))
    return _Trained(loop=loop, idle_bytes=idle_bytes[1:])

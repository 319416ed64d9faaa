"""The demo: a small GPT-2 trained plain and inside half of its plain peak, and what came of it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec
import torch
from torch import nn

from .. import apply, measure, plan_of, remove
from .._run.frames import watching_replays
from ..solvers.errors import AutockptError

# Sizes for two CPU cores: activations several times the parameters, a step well below a second.
LAYERS, WIDTH, HEADS, VOCABULARY = 12, 192, 6, 1024
BATCH, TOKENS = 4, 128
STEPS = 3  # training steps whose losses, gradients and weights are compared
PAIRS = 7  # plain and planned steps timed in turns
STAGES = 7  # parts of the work that are told

Stage = Callable[[str], AbstractContextManager[None]]


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo found. Predicted figures were fixed before anything was measured."""

    model: str
    parameters: int
    batch: str
    device: str
    torch_version: str
    segments: int
    replays: int
    budget_bytes: int
    predicted_plain_peak_bytes: int
    measured_plain_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    measured_plain_seconds: float
    measured_seconds: float
    predicted_recompute_overhead: float
    measured_recompute_overhead: float
    steps: int
    largest_loss_difference: float
    largest_gradient_difference: float
    largest_weight_difference: float
    plain_repeats: bool

    @property
    def failures(self) -> tuple[str, ...]:
        """What should hold and does not, in words."""
        found = []
        if self.measured_peak_bytes > self.budget_bytes:
            found.append(
                f"the measured peak exceeds the budget by {self.measured_peak_bytes - self.budget_bytes:,} bytes"
            )
        if not self.replays:
            found.append("nothing was recomputed")
        differs = self.largest_loss_difference or self.largest_gradient_difference or self.largest_weight_difference
        if differs and self.plain_repeats:
            found.append("losses, gradients or weights differ from those of the plain steps")
        return tuple(found)


def run(*, stage: Stage) -> DemoReport:
    """Train plain and planned from the same weights and seeds, and compare.

    Args:
        stage: opened around each part of the work with words that say what goes on.

    Raises:
        AutockptError: transformers is not installed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for one another on a busy machine make seconds meaningless
    try:
        return _compare(torch.device("cuda" if torch.cuda.is_available() else "cpu"), stage)
    finally:
        torch.set_num_threads(threads)


def _compare(device: torch.device, stage: Stage) -> DemoReport:
    with stage("building a GPT-2"):
        training = _Training(device)
        model = training.model

    with stage("measuring the plain step"):
        training.step(0)  # what is allocated once is allocated now
        plain_peak = training.measured_peak_bytes()
    budget = plain_peak // 2

    with stage("recording and solving"):
        training.forget_gradients()  # the plan is for steps that begin without any, as these do
        apply(model, budget=budget, inputs=training.inputs)
        plan = plan_of(model)
        assert plan is not None  # apply has just put it there

    with stage("measuring the planned step"):
        peak = training.measured_peak_bytes()
        with watching_replays() as replayed:
            training.step(0)

    with stage("training inside the budget"):
        weights = training.weights()
        planned = training.run(weights)
    with stage("training plain"):
        remove(model)
        plain = training.run(weights)
        same = _largest_difference(plain.gradients, planned.gradients) == 0
        repeats = same or _largest_difference(plain.gradients, training.run(weights).gradients) == 0

    with stage("timing"):
        plain_seconds, planned_seconds = [], []
        for _ in range(PAIRS):
            plain_seconds.append(training.seconds())
            apply(model, plan=plan)
            planned_seconds.append(training.seconds())
            remove(model)
    pairs = zip(planned_seconds, plain_seconds, strict=True)

    return DemoReport(
        model=f"GPT-2, {LAYERS} layers, dropout on",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        batch=f"{BATCH} x {TOKENS} tokens",
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu, one thread",
        torch_version=str(torch.__version__),
        segments=len(plan.segments),
        replays=len(replayed),
        budget_bytes=budget,
        predicted_plain_peak_bytes=plan.plain_peak_bytes,
        measured_plain_peak_bytes=plain_peak,
        predicted_peak_bytes=plan.peak_bytes,
        measured_peak_bytes=peak,
        measured_plain_seconds=statistics.median(plain_seconds),
        measured_seconds=statistics.median(planned_seconds),
        predicted_recompute_overhead=plan.recompute_overhead,
        measured_recompute_overhead=statistics.median(slow / fast for slow, fast in pairs) - 1,
        steps=STEPS,
        largest_loss_difference=_largest_difference(plain.losses, planned.losses),
        largest_gradient_difference=_largest_difference(plain.gradients, planned.gradients),
        largest_weight_difference=_largest_difference(plain.weights, planned.weights),
        plain_repeats=repeats,
    )


class _Trace(NamedTuple):
    """What some training steps left behind."""

    losses: list[torch.Tensor]
    gradients: list[torch.Tensor]
    weights: list[torch.Tensor]


class _Training:
    """The model, its batch and its optimizer."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.model = _gpt2().to(device)
        batch = torch.randint(VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1)).to(device)
        self.inputs = {"input_ids": batch, "labels": batch}
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, seed: int) -> torch.Tensor:
        """Run one training step and return its loss; the gradients stay."""
        torch.manual_seed(seed)
        self.forget_gradients()
        outputs = self.model(**self.inputs)
        outputs.loss.backward()
        self._optimizer.step()
        loss: torch.Tensor = outputs.loss.detach()
        return loss

    def run(self, weights: dict[str, torch.Tensor]) -> _Trace:
        """Train some steps from `weights`."""
        self.model.load_state_dict(weights)
        losses, gradients = [], []
        for seed in range(STEPS):
            losses.append(self.step(seed))
            gradients += [parameter.grad.clone() for parameter in self.model.parameters() if parameter.grad is not None]
        return _Trace(losses, gradients, list(self.weights().values()))

    def forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def measured_peak_bytes(self) -> int:
        """Measure a step's peak; what else is alive in the process does not count."""
        self.forget_gradients()
        own = [*self.model.parameters(), *self.model.buffers(), self.inputs["input_ids"]]
        own_bytes = sum({tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in own}.values())
        return own_bytes + measure(lambda: self.step(0)).step_bytes

    def seconds(self) -> float:
        """Time one step."""
        self._wait()
        began = time.perf_counter()
        self.step(0)
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _gpt2() -> nn.Module:
    try:
        from transformers import GPT2Config, GPT2LMHeadModel, logging
    except ImportError:
        raise AutockptError(
            "the demo trains a GPT-2 of transformers, which is missing: pip install transformers"
        ) from None
    logging.set_verbosity_error()  # it warns of token numbers, of which random weights have none
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, use_cache=False
    )
    model: nn.Module = GPT2LMHeadModel(config).train()
    return model


def _largest_difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Return the largest absolute difference; infinite where the lists differ in length."""
    if len(ours) != len(theirs):
        return math.inf
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))

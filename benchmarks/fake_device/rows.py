"""Which models are trained in which situations, and how one such row is measured."""

from __future__ import annotations

import gc
import logging
import traceback
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch

import autockpt
from benchmarks.models import TINY
from tests.device import models
from tests.device.situations import SITUATIONS, Situation
from tests.device.twin import Outcome, foretold, outcome, plain_and_planned, trained, within
from tests.fake_cuda.device import Options, set_options

__all__ = ["ROWS", "WORKSPACES", "as_before", "measure", "run"]

WORKSPACES = {"64 KiB": 1 << 16, "8 MiB": 8 << 20}

EVERY_MODEL = ("the loop", "inputs=")

GPT2 = (
    "fp16, scaler",
    "foreach",
    "fused",
    "8-bit states",
    "accumulation",
    "gradients stay",
    "validation",
    "ragged",
    "loader thread",
    "thread beside",
    "save_on_cpu",
    "profiler, steps 1-2",
    "profiler, steps 5-6",
    "OOM in steps 2, 5, 6",
    "cap",
)

ROWS: tuple[tuple[str, str], ...] = (
    *((model, each) for model in TINY for each in EVERY_MODEL),
    *(("gpt2", each) for each in GPT2),
    *((model, "bf16") for model in ("gpt2", "vit", "t5", "resnet", "mixtral")),
    *((model, "accumulation") for model in ("resnet", "mixtral")),
    ("resnet", "fp16, scaler"),
    ("resnet", "validation"),
    ("resnet", "conv scratch"),
    ("unet", "conv scratch"),
    ("beside", "the loop"),
    ("checkpointed", "the loop"),
    ("pair", "two models in turn"),
    ("pair", "two models, one loss"),
)

SHARES = {"resnet": 0.8, "vit": 0.8, "checkpointed": 0.7}
"""Of the bytes that a plain step adds, the budget's at the least: 3 % of a budget are left to the allocator, which is a
large part of them where workspaces are most of it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one run showed.

    Args:
        exact: whether each step made bit for bit what the plain one did.
        within: whether each step kept to the budget, recorded ones too.
        foretold: predicted over measured peak, of the last plan; None without a plan.
        budget_bytes, plain_bytes: the budget, and the highest plain step but the first.
        peaks: measured, of each step.
        predicted: of the plan that each step ran under.
        segments: of the last plan.
        said: what was warned of.
        error: what was raised.
    """

    exact: list[bool]
    within: list[bool]
    foretold: float | None
    budget_bytes: int
    plain_bytes: int
    peaks: list[int]
    predicted: list[int | None]
    segments: int
    said: list[str]
    error: str = ""


class _Said(logging.Handler):
    """Collects warnings of the library's."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def measure(model: str, situation: str, workspace_bytes: int) -> dict[str, Any]:
    """Measure one row."""
    how, said, log = SITUATIONS[situation], _Said(), logging.getLogger("autockpt")
    set_options(Options(workspace_bytes=workspace_bytes, **how.options))
    log.addHandler(said)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch and transformers
            found = run(model, how)
        return asdict(_row(found, said.lines))
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", "said": said.lines}
    finally:
        log.removeHandler(said)
        as_before()


def run(model: str, how: Situation) -> Outcome:
    """Train one model in one situation, plain and within a budget."""
    return plain_and_planned(
        lambda: models.build(model),
        how.loop,
        share=max(how.share, SHARES.get(model, 0.0)),
        optimizer=how.optimizer,
        apply=how.apply,
    )


def as_before() -> None:
    """Set the device back to how it is at first, and give back what it has cached."""
    set_options(Options())
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


def _row(found: Outcome, said: list[str]) -> Row:
    planned = found.planned
    autockpt.remove(trained(planned.model))
    return Row(
        exact=outcome(found),
        within=within(found),
        foretold=foretold(found),
        budget_bytes=found.budget_bytes,
        plain_bytes=max(found.plain.peaks[1:]),
        peaks=planned.peaks,
        predicted=planned.predicted,
        segments=len(found.plan.segments) if found.plan is not None else 0,
        said=said,
    )

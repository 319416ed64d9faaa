"""Train one model, plain or under a budget that came without a batch, and print what each step did. Run by `run.py`.

    python -m benchmarks.in_place.worker MODEL [BUDGET]

A step is forward, a loss that the model does not know, backward, and AdamW, which is made after the first forward.
"""

from __future__ import annotations

import gc
import json
import logging
import random
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch

import autockpt
from benchmarks import models, others
from benchmarks.in_place.allocator import Allocator
from tests.loops.twin import Run
from tests.zoo import Case

STEPS = 8


def main(name: str, budget_bytes: str = "") -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    allocator, said = Allocator(), listen()
    try:
        found = Training(build(name), allocator, int(budget_bytes) if budget_bytes else None).run()
    except autockpt.Infeasible as error:
        found = {"minimum_bytes": error.minimum_bytes}
    except autockpt.AutockptError as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found | {"said": said}))


def build(name: str) -> Case:
    """Build a model whose batch has no labels, so that its loss is outside of it."""
    case = others.build(name) if name in others.OTHERS else models.build(name)
    labels = case.kwargs.pop("labels", None)
    if labels is not None and getattr(getattr(case.model, "config", None), "is_encoder_decoder", False):
        case.kwargs["decoder_input_ids"] = labels
    return case


class Training:
    """One run.

    Args:
        case: the model and its batch.
        allocator: what reads it.
        budget_bytes: what it is held to; None for the plain one.
    """

    def __init__(self, case: Case, allocator: Allocator, budget_bytes: int | None) -> None:
        self.batch, self.allocator = case.kwargs, allocator
        if budget_bytes is not None:
            autockpt.apply(case.model, budget_bytes)
        placeholder = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # of no weight of the model
        self.notes = Run(model=case.model, optimizer=placeholder, budget_bytes=budget_bytes)
        self.own_bytes = sum(_storages([*case.model.parameters(), *case.model.buffers(), *_tensors(case.kwargs)]))

    def run(self) -> dict[str, Any]:
        """Train; return what each step did, and digests of all that must be equal."""
        torch.manual_seed(5)
        random.seed(6)
        np.random.seed(7)
        gc.collect()
        beside_bytes = self.allocator.level_bytes() - self.own_bytes
        rows: dict[str, Any] = {"start_bytes": [], "peak_bytes": [], "seconds": [], "planned": [], "segments": []}
        for number in range(STEPS):
            self.allocator.begin()
            rows["start_bytes"].append(self.allocator.level_bytes() - beside_bytes)
            began = time.perf_counter()
            self.step(number)
            rows["seconds"].append(time.perf_counter() - began)
            rows["peak_bytes"].append(self.allocator.peak_bytes() - beside_bytes)
            plan = autockpt.plan_of(self.notes.model)
            rows["planned"].append(plan is not None)
            rows["segments"].append(len(plan.segments) if plan else 0)
        plan = autockpt.plan_of(self.notes.model)
        rows["predicted_plain_bytes"] = plan and plan.plain_peak_bytes
        rows["predicted_bytes"] = plan and plan.peak_bytes
        if self.notes.governed:
            autockpt.remove(self.notes.model)
        self.notes.note_all()
        return rows | {"noted": self.notes.noted}

    def step(self, number: int) -> None:
        """Train once, and note loss and gradients."""
        notes = self.notes
        outputs = notes.model(**self.batch)
        loss = outside(outputs)
        if number == 0:
            notes.optimizer = torch.optim.AdamW(notes.model.parameters(), lr=1e-4)
        loss.backward()
        notes.note_gradients()
        notes.optimizer.step()
        del outputs
        notes.optimizer.zero_grad()
        notes.note(f"loss of step {number + 1}", loss)


def outside(outputs: Any) -> torch.Tensor:
    """A loss that no model has: of each result a cross-entropy against its first class, and how large its sum is."""
    losses = []
    for each in _tensors(outputs):
        if each.requires_grad and each.is_floating_point():
            total = torch.logsumexp(each.float(), -1)
            losses.append((total - each[..., 0]).mean() + 1e-2 * total.square().mean())
    return torch.stack(losses).sum()


def listen() -> list[str]:
    """Collect from now on what the library warns of by its logger."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logging.getLogger("autockpt").addHandler(Listener(logging.WARNING))
    return said


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for each in values for tensor in _tensors(each)]


def _storages(tensors: list[torch.Tensor]) -> list[int]:
    return list({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


if __name__ == "__main__":
    main(*sys.argv[1:])

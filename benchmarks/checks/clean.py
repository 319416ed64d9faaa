"""Train models under the budget "lowest" with every replay checked, beside twins that no plan touches."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import autockpt
from benchmarks import others
from benchmarks.environment import table
from benchmarks.in_place.worker import outside
from tests import zoo
from tests.loops.twin import Run, listening
from tests.zoo import Case

STEPS = 6
"""Recorded, timed, rehearsed, and three that are checked."""


class Recurrent(nn.Module):
    """A language model of recurrent layers, as they were before attention."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(others.VOCABULARY, 64)
        self.layers = nn.ModuleList(kind(64, 64, num_layers=2, dropout=0.1, batch_first=True) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.head = nn.Linear(64, others.VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embedding(input_ids)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            hidden = hidden + norm(layer(hidden)[0])
        out: Tensor = self.head(hidden)
        return out


def recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Case:
    torch.manual_seed(0)
    return Case(Recurrent(kind).train(), others.text())


def with_odd_values(name: str) -> Case:
    """A model of the zoo with NaN, infinity and negative zero in what it computes on."""
    case = zoo.build(name)
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    with torch.no_grad():
        if "pixel_values" in case.kwargs:
            case.kwargs["pixel_values"].view(-1)[: len(odd)] = odd
        else:
            next(case.model.parameters()).view(-1)[: len(odd)] = odd
    return case


MODELS: dict[str, Callable[[], Case]] = {
    **{f"{name}, of the zoo": partial(zoo.build, name) for name in zoo.ZOO},
    **{name: partial(others.build, name) for name in others.OTHERS},
    "LSTM": partial(recurrent, nn.LSTM),
    "GRU": partial(recurrent, nn.GRU),
    "gpt2 with NaN and inf": partial(with_odd_values, "gpt2"),
    "resnet50 with NaN and inf": partial(with_odd_values, "resnet50"),
}


def run(asked: list[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run each model, and yield its row."""
    torch.set_num_threads(1)
    for name in asked or MODELS:
        yield name, run_model(name)


def run_model(name: str) -> dict[str, Any]:
    """Train both twins; say what differs, what was said and refused, and how low the peak is."""
    plain, planned = train(MODELS[name](), checked=False), train(MODELS[name](), checked=True)
    one, other = plain.pop("noted"), planned.pop("noted")
    differing = sorted(each for each in {**one, **other} if one.get(each) != other.get(each))
    return {"noted": len(one), "differing": differing, **planned}


def train(case: Case, *, checked: bool) -> dict[str, Any]:
    """Train for some steps; digests of all that must be equal, and what came of the plan."""
    gc.collect()
    found: dict[str, Any] = {"error": ""}
    with listening() as said:
        if checked:
            autockpt.apply(case.model, "lowest", check="always")
        torch.manual_seed(5)
        random.seed(6)
        np.random.seed(7)
        optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-4)
        notes = Run(model=case.model, optimizer=optimizer, budget_bytes=None, settled=STEPS)
        try:
            for _ in range(STEPS):
                notes.step(lambda: step(notes, case))
        except autockpt.AutockptError as error:
            found["error"] = f"{type(error).__name__}: {error}"
        plan = autockpt.plan_of(case.model) if checked else None
        if plan is not None:
            found |= {
                "segments": len(plan.segments),
                "peak_bytes": plan.peak_bytes,
                "plain_bytes": plan.plain_peak_bytes,
            }
            found["refused"] = {each.call: each.reason for each in plan.refused}
        autockpt.remove(case.model)
        notes.note_all()
    return found | {"noted": notes.noted, "said": said}


def step(notes: Run, case: Case) -> Tensor:
    """One forward, backward and update."""
    outputs = case.model(**case.kwargs)
    own = getattr(outputs, "loss", None)
    loss: Tensor = outside(outputs) if own is None else own
    loss.backward()
    del outputs
    notes.update()
    return loss


def alarms(row: dict[str, Any]) -> list[str]:
    """What a row says of replays that differ."""
    said = [each for each in row["said"] if "kept from now on" in each or "replays of" in each]
    return [*said, row["error"]] if row["error"] else said


def show(rows: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]]) -> str:
    """The summary, and a line a model.

    Args:
        rows: of this version.
        before: of a version whose recorder refused calls by guesses; empty for none.
    """
    exact = sum(not row["differing"] for row in rows.values())
    alarmed = [name for name, row in rows.items() if alarms(row)]
    summary = f"{len(rows)} models: {exact} bit for bit the plain twin, {len(alarmed)} with an alarm{_listed(alarmed)}."
    summary += compared([(before[name], row) for name, row in rows.items() if "refused" in before.get(name, {})])
    heads = ["model", "segments", "lowest peak / plain", "before", "calls refused", "before", "alarms", "bits"]
    return f"{summary}\n\n{table(heads, [_cells(name, row, before.get(name, {})) for name, row in rows.items()])}"


def compared(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Say how many calls were refused before and are now, and what the lowest peaks gain."""
    pairs = [(old, new) for old, new in pairs if "refused" in new]
    if not pairs:
        return ""
    before, now = ([len(pair[which]["refused"]) for pair in pairs] for which in (0, 1))
    gains = sorted(1 - new["peak_bytes"] / old["peak_bytes"] for old, new in pairs)
    fewer = sum(new < old for old, new in zip(before, now, strict=True))
    lower = sum(gain > 0.005 for gain in gains)
    return (
        f" Calls refused: {sum(before)} before, {sum(now)} now; fewer on {fewer} of {len(pairs)} models. "
        f"The lowest peak is lower by more than 0.5 % on {lower} of them, at most by {gains[-1]:.1%}."
    )


def _cells(name: str, row: dict[str, Any], before: dict[str, Any]) -> list[object]:
    planned = [each if "refused" in each else None for each in (row, before)]
    peaks = [each and f"{each['peak_bytes'] / each['plain_bytes']:.3f}" for each in planned]
    refused = [each and len(each["refused"]) for each in planned]
    bits = f"{len(row['differing'])} of {row['noted']} differ" if row["differing"] else "equal"
    return [name, row.get("segments", "no plan"), *peaks, *refused, "; ".join(alarms(row)), bits]


def _listed(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""

"""Take twenty budgets a model and optimizer, from the lowest reachable peak to the plain one, and measure whole steps.

A step is forward, backward and the optimizer's own; its learning rate is 0, so that all steps begin alike. The plan for
a budget comes off the frontier of a recorded step. Only public names of autockpt are used, so that any version can be
held to the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import autockpt
from autockpt import Plan, Profile
from benchmarks.environment import RESULTS, environment, table
from benchmarks.models import SMALL, build
from tests.end_to_end.reference import Reference, storage_bytes
from tests.zoo import loss_of

BUDGETS = 20
TIME_LIMIT_SECONDS = 20.0
WELL_USED = 0.9
"""A measured peak above this share of the budget is near enough to it."""

FOLDER = Path(__file__).parent / "twenty"

OPTIMIZERS: dict[str, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SMALL), choices=list(SMALL))
    torch.set_num_threads(1)
    results = FOLDER / "results.json"
    models: dict[str, Any] = {}
    where = environment()
    for name in parser.parse_args().models:
        plain = Reference(build(name))
        for optimizer in OPTIMIZERS:
            models[f"{name}, {optimizer}"] = run_model(plain, optimizer)
            print(line(f"{name}, {optimizer}", models[f"{name}, {optimizer}"]), flush=True)
        results.write_text(json.dumps({"environment": where, "models": models}, indent=1) + "\n")
    write_readme(where, models)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A model with an optimizer that changes nothing.

    Attributes:
        plain: the model, and what its plain step does.
        optimizer: has stepped once.
    """

    plain: Reference
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        """Train once; outputs are held until the optimizer has stepped."""
        outputs, loss = self.plain.case.forward()
        loss.backward()
        self.optimizer.step()
        del outputs, loss
        self.optimizer.zero_grad()

    def peak_bytes(self) -> int:
        """Measure a whole step over everything that belongs to it."""
        state = [value for each in self.optimizer.state.values() for value in each.values()]
        held = storage_bytes([value for value in state if isinstance(value, torch.Tensor)])
        return self.plain.static_bytes + held + autockpt.measure(self.step, device="cpu").step_bytes


def run_model(
    plain: Reference, optimizer: str, *, budgets: int = BUDGETS, seconds: float = TIME_LIMIT_SECONDS
) -> dict[str, Any]:
    """Solve a frontier, then run what it offers for each budget."""
    case = plain.case
    training = Training(plain=plain, optimizer=OPTIMIZERS[optimizer](case.model.parameters()))
    training.step()
    recorded = autockpt.profile(case.model, case.kwargs, loss=loss_of, optimizer=training.optimizer)
    began = time.perf_counter()
    found = autockpt.frontier(recorded, points=budgets, seconds=seconds)
    seconds = time.perf_counter() - began
    lowest, highest = found.minimum_bytes, found.plain_peak_bytes
    rows = []
    for i in range(budgets):
        budget_bytes = lowest + (highest - lowest) * i // (budgets - 1)
        rows.append(run_budget(training, recorded, found.within(budget_bytes), budget_bytes))
    return {"plain_bytes": highest, "minimum_bytes": lowest, "frontier_seconds": seconds, "rows": rows}


def run_budget(training: Training, recorded: Profile, plan: Plan, budget_bytes: int) -> dict[str, Any]:
    """Apply a plan and measure."""
    plain = training.plain
    with plain.under(plan):
        with CountReplayed() as replayed:
            plain.outcome()
        outcome = plain.outcome()
        measured = training.peak_bytes()
    return {
        "budget_bytes": budget_bytes,
        "segments": len(plan.segments),
        "recompute_seconds": plan.recompute_seconds,
        "recompute_overhead": plan.recompute_overhead,
        "predicted_bytes": plan.peak_bytes,
        "measured_bytes": measured,
        "error": plan.peak_bytes / measured - 1,
        "within": measured <= budget_bytes,
        "used": measured >= WELL_USED * budget_bytes or not could_keep_more(recorded, plan, budget_bytes),
        "freed_bytes": plan.plain_peak_bytes - measured,
        "replayed_operators": replayed.count,
        "exact": plain.plain.differences(outcome) == [],
    }


class CountReplayed(TorchDispatchMode):
    """Count the operators that replays run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += autockpt.is_recomputing()
        return func(*args, **(kwargs or {}))


def predicted(profile: Profile, plan: Plan) -> int:
    """The judge's peak of any plan in a profile."""
    return plan.timeline(profile).peak_bytes


def could_keep_more(profile: Profile, plan: Plan, budget_bytes: int) -> bool:
    """Whether the judge allows one segment fewer, or one more unit kept in a segment."""
    for i, segment in enumerate(plan.segments):
        others = (*plan.segments[:i], *plan.segments[i + 1 :])
        if predicted(profile, Plan(segments=others)) <= budget_bytes:
            return True
        for unit in recomputed_units(profile, plan, i):
            try:
                more = Plan(segments=(*others, msgspec.structs.replace(segment, keep=(*segment.keep, unit))))
                if predicted(profile, more) <= budget_bytes:
                    return True
            except autockpt.AutockptError:
                continue  # such a unit cannot be kept by itself
    return False


def recomputed_units(profile: Profile, plan: Plan, number: int) -> list[str]:
    """Torch functions inside a segment that its replay runs."""
    segment, functions = plan.segments[number], profile.functions
    calls = {call.key: i for i, call in enumerate(profile.calls)}
    inside = {i for member in segment.calls for i in range(calls[member], profile.calls[calls[member]].stop)}
    keys = [
        f"{profile.calls[functions.call[f]].key}/{functions.key(f)}"
        for f in range(len(functions))
        if functions.call[f] in inside
    ]
    left = {*segment.keep, *segment.skip}
    return [key for key in keys if key not in left and key.partition("/")[0] not in left]


def falling(models: dict[str, Any]) -> bool:
    """Whether no larger budget costs more than a smaller one."""
    return all(
        more["recompute_seconds"] <= less["recompute_seconds"]
        for model in models.values()
        for less, more in pairwise(model["rows"])
    )


def write_readme(where: dict[str, Any], models: dict[str, Any]) -> None:
    """Write the summary and the table after the marker."""
    rows = [row for model in models.values() for row in model["rows"]]
    recomputing = [row for row in rows if row["segments"]]
    errors = sorted(abs(row["error"]) for row in rows)
    done = sum(row["replayed_operators"] > 0 and row["freed_bytes"] > 0 for row in recomputing)
    summary = (
        f"{sum(row['within'] for row in rows)} of {len(rows)} measured peaks within their budgets; "
        f"{sum(row['exact'] for row in rows)} of {len(rows)} bit for bit exact; "
        f"{done} of {len(recomputing)} plans with segments replayed and freed bytes; "
        f"|predicted − measured| / measured: median {errors[len(errors) // 2]:.4%}, worst {errors[-1]:.4%}; "
        f"{sum(row['used'] for row in rows)} of {len(rows)} use {WELL_USED:.0%} of the budget, or could keep nothing "
        f"more; "
        f"cost never rises with the budget: {'yes' if falling(models) else 'NO'}."
    )
    said = ", ".join(f"{key} {value}" for key, value in where.items() if key != "command")
    heads = [
        "model, optimizer",
        "plain",
        "minimum",
        "frontier took",
        "recompute overhead at 90, 70, 50, 30, 0 % of the way",
        "worst error",
    ]
    cells = [line(name, model) for name, model in models.items()]
    readme = FOLDER / "README.md"
    text = f"`{where['command']}`: {said}.\n\n{summary}\n\n{table(heads, cells)}\n"
    readme.write_text(f"{readme.read_text().partition(RESULTS)[0]}{RESULTS}\n\n{text}")


def line(name: str, model: dict[str, Any]) -> list[str]:
    """One line of the table."""
    rows = model["rows"]
    shown = [rows[round(share * (BUDGETS - 1))] for share in (0.9, 0.7, 0.5, 0.3, 0.0)]
    return [
        name,
        f"{model['plain_bytes'] / 1e6:.1f} MB",
        f"{model['minimum_bytes'] / model['plain_bytes']:.1%}",
        f"{model['frontier_seconds']:.0f} s",
        ", ".join(f"{row['recompute_overhead']:.1%}" for row in shown),
        f"{max(abs(row['error']) for row in rows):.4%}",
    ]


if __name__ == "__main__":
    main()

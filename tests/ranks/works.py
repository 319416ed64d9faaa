"""What two ranks do, side by side: plain, and then under a plan; each returns what the other is compared with."""

from __future__ import annotations

import datetime
import gc
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, distributed, nn

import autockpt
from tests.doors import governor_of, torch_private

from .models import Shared, collectives, standing_bytes, step, tokens, trained, writer
from .quiet import group_of_all

STEPS = 6


def measured(step_once: Any) -> int:
    gc.collect()
    return autockpt.measure(step_once).peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What some steps and the end of a training were seen to be.

    Attributes:
        told: losses and gradients of each step, and all that the model has at the end.
        log: its collectives.
        starts, peaks: bytes that stood as each step began, and at most within it.
        grown: bytes that each step left.
    """

    told: list[dict[str, str]]
    log: list[str]
    starts: list[int]
    peaks: list[int]
    grown: list[int]

    def differ(self, other: Watched) -> list[tuple[int, str]]:
        """Name what is other bits in another training, by its step: the first few."""
        pairs = enumerate(zip(self.told, other.told, strict=True))
        return [(number, name) for number, (own, its) in pairs for name in own if own[name] != its.get(name)][:8]


def watched(model: nn.Module, batches: Sequence[Sequence[Tensor]], log: list[str]) -> Watched:
    """Train a model that is wrapped or sharded, and watch it.

    Args:
        model: the model.
        batches: for each of its steps.
        log: is told of its collectives.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    peaks: list[int] = []
    starts: list[int] = []
    grown: list[int] = []

    def step_once(number: int) -> dict[str, str]:
        said: list[dict[str, str]] = []
        gc.collect()
        stood = standing_bytes(model, optimizer, batches[number][:1])
        found = autockpt.measure(lambda: said.append(step(model, optimizer, batches[number], 100 + number)))
        starts.append(stood)
        peaks.append(stood + found.step_bytes)
        grown.append(found.end_bytes - found.start_bytes)
        return said[0]

    with collectives(log):
        told = trained(model, step_once, len(batches))
    return Watched(told=told, log=log, starts=starts, peaks=peaks, grown=grown)


def agreed(value: int) -> int:
    """Return the highest of all ranks."""
    highest = torch.tensor([value])
    distributed.all_reduce(highest, op=distributed.ReduceOp.MAX)
    return int(highest)


def kept(
    rank: int,
    *,
    shared: Shared,
    share: float,
    before: bool = False,
    accumulate: int = 1,
    width: int = 64,
    lengths: tuple[int, ...] = (64,),
    norm: bool = False,
) -> dict[str, Any]:
    """Train plainly and under a budget that leaves a share of what the plain step adds; lengths are those of ranks."""
    gc.freeze()  # what was there before is looked through by every measurement
    # Ranks that share layers are given the same batches.
    own = {"tp": 0, "sp": 0, "fsdp over tp": rank // 2}.get(shared.by, rank)
    length = lengths[rank % len(lengths)]
    batches = [[tokens(own, accumulate * i + j, length=length) for j in range(accumulate)] for i in range(STEPS)]

    def run(budget: int | str | None) -> tuple[Watched, list[Any]]:
        log: list[str] = []
        model = writer(width=width, norm=norm)
        applied = [model]
        if budget is not None and before:
            autockpt.apply(model, budget)
        wrapped = shared.wrap(model, log)
        if budget is not None and not before:
            applied = [autockpt.apply(wrapped, budget)]  # type: ignore[list-item]
        found = watched(wrapped, batches, log)
        governor: Any = governor_of(applied[0])
        return found, [] if budget is None else [made.plan for made in governor.account.plans]

    plain, _ = run(None)
    gc.collect()
    budget = agreed(int(plain.starts[-1] + share * (plain.peaks[-1] - plain.starts[-1])))
    result: dict[str, Any] = {"budget": budget, "plain": plain.peaks[-1], "start": plain.starts[-1]}
    try:
        found, plans = run(budget)
    except autockpt.Infeasible as error:
        return {**result, "infeasible": str(error)}
    plan = plans[-1]
    return {
        **result,
        "differ": plain.differ(found),
        "log": found.log,
        "plain_log": plain.log,
        "peaks": found.peaks,
        "grown": found.grown,
        "predicted": max(each.peak_bytes for each in plans),
        "plain_predicted": max(each.plain_peak_bytes for each in plans),
        "first": [list(segment.calls) for segment in plans[0].segments],
        "segments": [list(segment.calls) for segment in plan.segments],
        "refused": sorted({each.reason for each in plan.refused}),
    }


def _loop(
    rank: int, budget: int | str, lengths: list[int], *, shared: Shared, steps: int = STEPS, **asked: Any
) -> dict[str, Any]:
    """Train under a budget on batches of these lengths, in turn; tell what came of it."""
    model = writer()
    model = shared.wrap(autockpt.apply(model, budget, **asked), [])  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    said: list[Any] = []
    try:
        for number in range(steps):
            batch = tokens(rank, number, length=lengths[number % len(lengths)])
            said.append(step(model, optimizer, [batch], 100 + number))
    except (autockpt.BudgetError, autockpt.Infeasible, autockpt.NotApplicable) as error:
        return {"error": type(error).__name__, "words": str(error), "steps": len(said)}
    inner = model.module if shared.by == "ddp" else model
    plan = autockpt.plan_of(inner)  # type: ignore[arg-type]
    return {"told": said, "segments": None if plan is None else [list(each.calls) for each in plan.segments]}


def unequal(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Ask for another budget on each rank."""
    return _loop(rank, 8_000_000 + rank, [64], shared=shared)


def one_infeasible(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Give one rank alone batches that no plan holds to the budget."""
    return _loop(rank, 7_000_000, [32 if rank == 0 else 128], shared=shared)


def strict(rank: int, *, shared: Shared) -> dict[str, Any]:
    return _loop(rank, 8_000_000, [64], shared=shared, strict=True)


def ragged(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Train on other lengths on each rank, plainly and under a budget."""
    lengths = [[64, 48, 32], [32, 64, 48]][rank]
    loose = _loop(rank, 10**9, lengths, shared=shared, steps=9)
    tight = _loop(rank, 9_000_000, lengths, shared=shared, steps=9)
    return {"loose": loose, "tight": tight}


def absent(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Have one rank train without a budget: it never comes to where a plan is agreed on. Both train on plainly."""
    plain = shared.wrap(writer(), [])
    trains = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    expected = [step(plain, trains, [tokens(rank, number)], 100 + number) for number in range(2)]
    torch_private.default_store().set_timeout(datetime.timedelta(seconds=3))
    model = writer()
    wrapped = shared.wrap(autockpt.apply(model, 8_000_000) if rank == 0 else model, [])
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    words = ""
    if rank == 0:
        try:
            step(wrapped, optimizer, [tokens(rank, 0)], 100)
        except autockpt.NotApplicable as error:
            words = str(error)
    told = [step(wrapped, optimizer, [tokens(rank, number)], 100 + number) for number in range(2)]
    return {"words": words, "same": told == expected}


def plans_made(rank: int, *, shared: Shared) -> int:
    """Train ranks that share layers, on batches of one size; return how many plans were made."""
    model = autockpt.apply(shared.wrap(writer(), []), 5_500_000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(STEPS):
        step(model, optimizer, [tokens(0, number)], 100 + number)
    governor: Any = governor_of(model)
    return len(governor.account.plans)


def taken_off(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Have one rank take its budget off before there is a plan: the others train on, plainly."""
    model = writer()
    wrapped = shared.wrap(autockpt.apply(model, 8_000_000), [])
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    told = []
    for number in range(STEPS):
        if (rank, number) == (1, 2):
            autockpt.remove(model)
        told.append(step(wrapped, optimizer, [tokens(rank, number)], 100 + number))
    return {"told": told, "planned": autockpt.plan_of(model) is not None}


def failing(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Have planning fail on one rank, by an error that is none of the library's."""
    if rank == 1:
        from tests.doors import Request

        def solve(*given: object, **more: object) -> None:
            raise ZeroDivisionError("planned by nobody")

        with mock.patch.object(Request, "solve", solve), mock.patch.object(Request, "restated", solve):
            try:
                return _loop(rank, 8_000_000, [64], shared=shared)
            except ZeroDivisionError as error:
                return {"error": type(error).__name__, "words": str(error)}
    return _loop(rank, 8_000_000, [64], shared=shared)


def rounds(rank: int) -> dict[str, Any]:
    """Agree by itself, and through the store."""
    from torch.distributed.fsdp import fully_shard

    from tests.doors import One, ranks_of

    assert isinstance(ranks_of(torch.nn.Linear(2, 2)), One)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    fully_shard(model[0])
    ranks = ranks_of(model)
    return {
        "members": list(ranks.members),
        "own": ranks.own,
        "highest": [ranks.agree(value, max) for value in (rank, 5 - rank)],
        "again": ranks_of(model).agree(rank, list),
    }


def example(rank: int, *, folder: str, which: str) -> Any:
    """Run an example as its file says, but for the process group, which is there."""
    gc.freeze()
    group_of_all([], quiet=False)  # which caches of DTensor may have from a test before
    with mock.patch.object(sys, "path", [folder, *sys.path]):
        return importlib.import_module(which).run(torch.device("cpu"))

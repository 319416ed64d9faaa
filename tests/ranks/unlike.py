"""What two ranks do where one does otherwise than the other; see `works`."""

from __future__ import annotations

import functools
import gc
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel

import autockpt
from tests.doors import FileStash, NoRoom, governor_of, rank_group

from .models import Block, Shared, bits, loss_of, standing_bytes, step, tokens, writer
from .quiet import group_of_all

STEPS = 6


@contextmanager
def full_after(count: int) -> Iterator[None]:
    """Have stashes take so many tensors and no more."""
    put, taken = FileStash.put, [0]

    def limited(self: FileStash, tensor: torch.Tensor) -> Any:
        taken[0] += 1
        if taken[0] > count:
            raise NoRoom("the stash is full")
        return put(self, tensor)

    with mock.patch.object(FileStash, "put", limited):
        yield


def no_room(rank: int, *, shared: Shared, when: str) -> dict[str, Any]:
    """Have one rank alone find no room for what a step saves: as it begins, or within it."""
    model = writer()
    wrapped = shared.wrap(autockpt.apply(model, 8_000_000), [])
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    done, words, kind = 0, "", ""
    with mock.patch.object(rank_group, "PATIENCE_SECONDS", 120.0):
        no_folder = mock.patch.object(tempfile, "TemporaryFile", side_effect=OSError("no folder"))
        ways: dict[str, Any] = {"begins": no_folder, "within": full_after(5)}
        try:
            if rank == 1:
                with ways[when]:
                    for number in range(2):
                        step(wrapped, optimizer, [tokens(rank, number)], 100 + number)
                        done += 1
            else:
                for number in range(2):
                    step(wrapped, optimizer, [tokens(rank, number)], 100 + number)
                    done += 1
        except (autockpt.NotApplicable, NoRoom) as error:
            words, kind = str(error), type(error).__name__
    told = step(wrapped, optimizer, [tokens(rank, 2)], 102)
    return {"done": done, "words": words, "kind": kind, "goes on": bool(told)}


def _loop(model: nn.Module, rank: int, batches: int) -> list[str]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    said = []
    for number in range(batches):
        torch.manual_seed(100 + number)
        optimizer.zero_grad()
        loss = loss_of(model, tokens(rank, number))
        loss.backward()
        said.append(bits(loss))
        del loss
        optimizer.step()
    return said


def joined(rank: int) -> dict[str, Any]:
    """Give one rank two batches and the other six, under `join`."""

    def run(budget: int | None) -> tuple[list[str], bool]:
        model = writer()
        wrapped = DistributedDataParallel(model if budget is None else autockpt.apply(model, budget))
        with Join([wrapped]):
            said = _loop(wrapped, rank, [2, 6][rank])
        said += [bits(each) for each in wrapped.parameters()]
        return said, budget is not None and autockpt.plan_of(model) is not None

    with mock.patch.object(rank_group, "PATIENCE_SECONDS", 1.0):
        plain, planned = run(None)[0], run(8_000_000)
    return {"same": planned[0] == plain, "planned": planned[1]}


def accumulated(rank: int) -> dict[str, Any]:
    """Give one rank three microbatches a step and the other one, under `no_sync`."""

    def run(budget: int | None) -> tuple[list[str], bool]:
        model = writer()
        wrapped = DistributedDataParallel(model if budget is None else autockpt.apply(model, budget))
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-2)
        said = []
        for number in range(STEPS):
            optimizer.zero_grad()
            for part in range([3, 1][rank]):
                wrapped.require_backward_grad_sync = part + 1 == [3, 1][rank]
                torch.manual_seed(10 * number + part)
                loss = loss_of(wrapped, tokens(rank, 10 * number + part))
                loss.backward()
                said.append(bits(loss))
                del loss
            optimizer.step()
        said += [bits(each) for each in wrapped.parameters()]
        return said, budget is not None and autockpt.plan_of(model) is not None

    with mock.patch.object(rank_group, "PATIENCE_SECONDS", 1.0):
        plain, planned = run(None)[0], run(8_000_000)
    return {"same": planned[0] == plain, "planned": planned[1]}


def profiled(rank: int, *, shared: Shared, steps: range) -> dict[str, Any]:
    """Have a profiler of the user's run on one rank, around each of some steps."""
    model = writer()
    wrapped = shared.wrap(autockpt.apply(model, 8_000_000), [])
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    for number in range(9):
        with torch.profiler.profile() if rank == 1 and number in steps else nullcontext():
            step(wrapped, optimizer, [tokens(rank, number)], 100 + number)
    return {"planned": autockpt.plan_of(model) is not None}


def wrapped_late(rank: int, *, share: float) -> dict[str, Any]:
    """Wrap a model in DistributedDataParallel once it has a plan: as many steps without, and then with."""
    gc.freeze()

    def run(budget: int | None) -> tuple[Any, ...]:
        model = writer()
        if budget is not None:
            autockpt.apply(model, budget)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        said, starts, peaks, whole = [], [], [], nn.Module()
        for number in range(2 * STEPS):
            if number == STEPS:
                whole = DistributedDataParallel(model)
            trains, batch = (model, tokens(0, number)) if number < STEPS else (whole, tokens(rank, number))
            gc.collect()
            starts.append(standing_bytes(trains, optimizer, [batch]))
            found = autockpt.measure(lambda: said.append(step(trains, optimizer, [batch], 100 + number)))  # noqa: B023
            peaks.append(starts[-1] + found.step_bytes)
        governor: Any = governor_of(model)
        return said, starts, peaks, [] if governor is None else [each.plan for each in governor.account.plans]

    plain, starts, peaks, _ = run(None)
    budget = int(starts[-1] + share * (peaks[-1] - starts[-1]))
    told, _, held, plans = run(budget)
    return {
        "same": told == plain,
        "budget": budget,
        "held": held,
        "predicted": [each.peak_bytes for each in plans],
        "plain": peaks,
        "segments": [len(each.segments) for each in plans],
    }


class Halves(nn.Module):
    """The small language model, as two parts."""

    def __init__(self) -> None:
        super().__init__()
        whole = writer()
        self.front = nn.Sequential(whole.words, *whole.blocks[:2])
        self.back = nn.Sequential(*whole.blocks[2:], whole.norm, whole.head)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.back(self.front(batch))  # type: ignore[no-any-return]


def inside(rank: int) -> dict[str, Any]:
    """Train a model whose parts are DistributedDataParallel; `measure` sees their buckets."""
    gc.freeze()

    def standing() -> int:
        gc.collect()
        return autockpt.measure(lambda: None).start_bytes

    def run(budget: int | None) -> tuple[Any, ...]:
        model = Halves()
        before_bytes = standing()
        # Over quiet collectives: gloo's own threads free what a step that is recorded does not see go.
        wrap = functools.partial(DistributedDataParallel, process_group=group_of_all([], quiet=True))
        model.front, model.back = map(wrap, (model.front, model.back))  # type: ignore[assignment]
        seen_bytes = standing() - before_bytes
        if budget is not None:
            autockpt.apply(model, budget)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        said: list[Any] = []
        peaks, stood = [], 0
        for number in range(STEPS):
            batch = tokens(rank, number)
            stood = standing_bytes(model, optimizer, [batch]) + seen_bytes
            gc.collect()
            found = autockpt.measure(lambda: said.append(step(model, optimizer, [batch], 100 + number)))  # noqa: B023
            peaks.append(stood + found.step_bytes)
        own = sum(each.nbytes for each in model.parameters())
        return said, stood, peaks, autockpt.plan_of(model), (seen_bytes, own, standing() - before_bytes)

    plain, start, peaks, _, seen = run(None)
    budget = int(start + 0.6 * (peaks[-1] - start))
    told, _, held, plan, _ = run(budget)
    return {
        "same": told == plain,
        "budget": budget,
        "plain": peaks,
        "held": held,
        "predicted": plan.peak_bytes,
        "plain_predicted": plan.plain_peak_bytes,
        "segments": [list(each.calls) for each in plan.segments],
        "seen": seen,
    }


def restored(rank: int) -> dict[str, Any]:
    """Have torch.distributed.checkpoint ask for a new optimizer's state before the first step."""
    model = autockpt.apply(writer(), 8_000_000)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    with warnings_of() as said:
        get_state_dict(wrapped, optimizer)
        for number in range(4):
            step(wrapped, optimizer, [tokens(rank, number)], 100 + number)
    return {"said": said, "planned": autockpt.plan_of(model) is not None}


@contextmanager
def warnings_of() -> Iterator[list[str]]:
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("autockpt").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("autockpt").removeHandler(handler)


class Counts(Block):
    """A block whose forward reads how often it was called: no replay of it can be right."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1  # type: ignore[operator, index]
        return super().forward(hidden) * (1 + 1e-3 * self.calls[0])  # type: ignore[index]


def faulty(rank: int) -> dict[str, Any]:
    """Have one rank alone find that a call of a shared model cannot be replayed."""

    def run(budget: int | None) -> tuple[list[Any], list[Any]]:
        model = writer()
        if rank == 1:
            model.blocks[1].__class__ = Counts
            model.blocks[1].calls = [0]  # type: ignore[assignment]
        wrapped = Shared(by="tp").wrap(model, [])
        if budget is not None:
            autockpt.apply(wrapped, budget)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        said = [step(wrapped, optimizer, [tokens(0, number)], 100 + number) for number in range(STEPS + 2)]
        plan = None if budget is None else autockpt.plan_of(wrapped)
        return said, [] if plan is None else [each.calls for each in plan.segments]

    plain, (told, segments) = run(None)[0], run(5_500_000)
    return {"same": told == plain, "segments": segments}


def sized(rank: int) -> dict[str, Any]:
    """Train a shared model on batches of other lengths, in turn, and on one that no plan holds to the budget."""

    def run(budget: int | None, *, lengths: list[int]) -> tuple[list[Any], Any]:
        wrapped = Shared(by="tp").wrap(writer(), [])
        if budget is not None:
            autockpt.apply(wrapped, budget)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        said: list[Any] = []
        try:
            for number, length in enumerate(lengths):
                said.append(step(wrapped, optimizer, [tokens(0, number, length=length)], 100 + number))
        except autockpt.Infeasible as error:
            return said, str(error)
        plan = None if budget is None else autockpt.plan_of(wrapped)
        return said, None if plan is None else [each.calls for each in plan.segments]

    lengths = [48, 64, 32, 48, 64, 128, 128, 64, 48]
    plain, (told, segments) = run(None, lengths=lengths)[0], run(5_500_000, lengths=lengths)
    infeasible = run(2_900_000, lengths=[64] * 4)
    return {"same": told == plain, "segments": segments, "steps": len(infeasible[0]), "infeasible": infeasible[1]}

"""Two ranks that are given bad input, or one of which fails: what each of them says, when, and what it trains.

Each returns, of this rank: the class of the error that was raised, its words, the seconds until it came, and how many
steps were taken; where it trains twice, whether losses, gradients and weights are the same bits without a budget; and
the highest of the steps, as a share of the budget.
"""

from __future__ import annotations

import datetime
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.join import Join

import autockpt
from tests.doors import Request, rank_group, torch_private, train_request

from .models import Shared, Writer, bits, standing_bytes, step, tokens, writer
from .quiet import group_of_all

BUDGETS = {"ddp": 8_000_000, "fsdp": 8_000_000, "tp": 5_500_000, "sp": 5_500_000}


def wait_for(seconds: float) -> None:
    """Have this rank wait for others through the store for so long."""
    torch_private.default_store().set_timeout(datetime.timedelta(seconds=seconds))


def meet(rank: int) -> None:
    """Wait until both ranks are here, however long that takes one of them."""
    store = torch_private.default_store()
    store.set(f"here {rank}", "")
    store.wait([f"here {1 - rank}"], datetime.timedelta(seconds=200))


def own_of(rank: int, shared: Shared) -> int:
    """Return whose batches a rank is given: ranks that share layers are given the same."""
    return 0 if shared.by in ("tp", "sp") else rank


def applied(shared: Shared, asked: dict[str, Any] | None, model: Writer | None = None) -> tuple[nn.Module, nn.Module]:
    """Share a model and apply what is asked; return it, and the module that has the plan."""
    model = writer() if model is None else model
    if asked is None or shared.by != "ddp":
        wrapped = shared.wrap(model, [])
        return wrapped, wrapped if asked is None else autockpt.apply(wrapped, **asked)
    return shared.wrap(autockpt.apply(model, **asked), []), model


def told_of(run: Callable[[], object]) -> dict[str, Any]:
    """Run something; tell what it raises, and after how many seconds."""
    began = time.perf_counter()
    kind = words = ""
    try:
        run()
    except BaseException as error:
        kind, words = type(error).__name__, str(error)
    return {"error": kind, "words": words, "seconds": time.perf_counter() - began}


def budget_for(shared: Shared) -> dict[str, Any]:
    return {"budget": BUDGETS[shared.by]}


def held_step(wrapped: nn.Module, optimizer: Any, batch: Tensor, seed: int, said: list[Any], peaks: list[int]) -> None:
    """Train one step; add what it tells, and how high it went."""
    gc.collect()
    stood = standing_bytes(wrapped, optimizer, [batch])
    found = autockpt.measure(lambda: said.append(step(wrapped, optimizer, [batch], seed)))
    peaks.append(stood + found.step_bytes)


def held_by(shared: Shared, peaks: list[int]) -> float:
    return max(peaks, default=0) / BUDGETS[shared.by]


def compared(plain: tuple[Any, ...], planned: tuple[Any, ...]) -> dict[str, Any]:
    """Compare what was told, what was raised, whether there was a plan and the highest step, without and with one."""
    more = {"same": plain[0] == planned[0], "planned": planned[2], "held": planned[3], "plain held": plain[3]}
    return {**planned[1], "plain": plain[1], **more}


def loop(rank: int, shared: Shared, wrapped: nn.Module, steps: int, said: list[Any]) -> None:
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    for number in range(steps):
        said.append(step(wrapped, optimizer, [tokens(own_of(rank, shared), number)], 100 + number))


ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "version": ({}, {}),
    "budget": ({}, {"budget": 8_000_001}),
    "solver": ({}, {"solver": "sqrt"}),
    "pins": ({}, {"keep": ["blocks.0"]}),
}


def unequal(rank: int, *, shared: Shared, what: str) -> dict[str, Any]:
    """Ask for other things on each rank, or have another version there."""
    said: list[Any] = []
    other = mock.patch.object(train_request, "__version__", "0.0.1") if what == "version" and rank else nullcontext()
    with other:
        wrapped, _ = applied(shared, {**budget_for(shared), **ASKED[what][rank]})
        found = told_of(lambda: loop(rank, shared, wrapped, 4, said))
    return {**found, "steps": len(said)}


def given_a_batch(rank: int, *, late: bool) -> dict[str, Any]:
    """Give one rank a batch to plan on and the other none, before the model is wrapped or after it (`late`)."""
    shared, said, model = Shared(by="ddp"), list[Any](), writer()

    def run() -> None:
        wrapped = shared.wrap(model, []) if late else model
        asked: dict[str, Any] = {} if rank else {"inputs": tokens(rank, 0)}
        autockpt.apply(wrapped, 8_000_000, **asked)
        loop(rank, shared, wrapped if late else shared.wrap(model, []), 5, said)

    return {**told_of(run), "steps": len(said)}


def interrupted(rank: int, *, shared: Shared, which: int) -> dict[str, Any]:
    """Have one rank alone get a KeyboardInterrupt as it makes a plan, or is to take another rank's."""
    said: list[Any] = []
    wrapped, _ = applied(shared, budget_for(shared))

    def solve(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    way = mock.patch.multiple(Request, solve=solve, restated=solve) if rank == which else nullcontext()
    with way:
        found = told_of(lambda: loop(rank, shared, wrapped, 5, said))
    return {**found, "steps": len(said)}


def interrupted_in_a_wait(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Send one rank the signal of Ctrl-C while it waits for the other, which does not come before that."""
    store, said = torch_private.default_store(), list[Any]()
    wrapped, _ = applied(shared, budget_for(shared))
    if rank == 0:
        store.wait(["interrupted"])
        found = told_of(lambda: loop(rank, shared, wrapped, 1, said))
        return {**found, "steps": len(said), "then": told_of(lambda: autockpt.measure(int))["words"]}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the run is in the background
    looks: Callable[..., bool] = rank_group.Group._is_over
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))

    def waits(group: Any, number: int, seconds: float) -> bool:
        if not timer.ident:  # it has begun to wait, and does so until it is interrupted
            timer.start()
        return looks(group, number, seconds)

    with mock.patch.object(rank_group.Group, "_is_over", waits):
        found = told_of(lambda: loop(rank, shared, wrapped, 1, said))
    timer.join()
    store.set("interrupted", "")
    return {**found, "steps": len(said)}


class Stumbles(Writer):
    """Raises in forward where it is told to, between two of its blocks."""

    stumbles = False

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens)
        for number, block in enumerate(self.blocks):
            if number == 2 and self.stumbles:
                raise ValueError("a bad sample")
            hidden = block(hidden)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


def raising(rank: int, *, shared: Shared, at: int, again: bool) -> dict[str, Any]:
    """Have one rank raise in the forward of one step: it goes on with another sample (`again`), or trains no more."""

    def run(asked: dict[str, Any] | None) -> tuple[list[Any], dict[str, Any], bool, float]:
        torch.manual_seed(0)
        model, said, peaks = Stumbles(), list[Any](), list[int]()
        wrapped, inner = applied(shared, asked, model)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)

        def train() -> None:
            for number in range(at + 5):
                batch = tokens(own_of(rank, shared), number)
                for model.stumbles in [True, False] if rank == 1 and number == at else [False]:
                    try:
                        held_step(wrapped, optimizer, batch, 100 + number, said, peaks)
                    except ValueError:  # whose frames hold what forward made, until this is over
                        if not again:
                            raise

        found = told_of(train)
        return said, found, asked is not None and autockpt.plan_of(inner) is not None, held_by(shared, peaks)

    with mock.patch.object(rank_group, "PATIENCE_SECONDS", 1.0):
        plain = run(None)
        meet(rank)
        planned = run(budget_for(shared))
    return {**compared(plain, planned), "steps": len(planned[0])}


def fewer(rank: int, *, shared: Shared, joins: bool) -> dict[str, Any]:
    """Give one rank two batches less than the other, at the end, when both have a plan."""

    def run(asked: dict[str, Any] | None) -> tuple[list[Any], dict[str, Any], bool, float]:
        said, peaks = list[Any](), list[int]()
        wrapped, inner = applied(shared, asked)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        wait_for(240 if asked is None or joins else 10)

        def train() -> None:
            with Join([wrapped]) if joins else nullcontext():  # type: ignore[list-item]
                for number in range(7 - 2 * rank):
                    batch = tokens(own_of(rank, shared), number)
                    held_step(wrapped, optimizer, batch, 100 + number, said, peaks)

        found = told_of(train)
        said += [bits(each) for each in wrapped.parameters()] if joins else []
        return said, found, asked is not None and autockpt.plan_of(inner) is not None, held_by(shared, peaks)

    plain = run(None)
    meet(rank)
    planned = run(budget_for(shared))
    return {**compared(plain, planned), "steps": 7 - 2 * rank}


def timed_out(rank: int, *, shared: Shared, at: int) -> dict[str, Any]:
    """Have a collective of the user's own, between two steps, wait in vain for the other rank."""
    group_of_all([], quiet=True)  # which is the first one of each work

    def run(asked: dict[str, Any] | None) -> tuple[list[Any], dict[str, Any], bool, float]:
        own = distributed.new_group(timeout=datetime.timedelta(seconds=1))
        said, peaks, found = list[Any](), list[int](), told_of(list)
        wrapped, inner = applied(shared, asked)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        for number in range(at + 4):
            held_step(wrapped, optimizer, tokens(own_of(rank, shared), number), 100 + number, said, peaks)
            if rank == 0 and number == at:
                found = told_of(lambda: distributed.all_reduce(torch.zeros(3), group=own))
        return said, found, asked is not None and autockpt.plan_of(inner) is not None, held_by(shared, peaks)

    plain, planned = run(None), run(budget_for(shared))
    return {**compared(plain, planned), "steps": at + 4}


def absent(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Apply on one rank alone; after what it says both train on."""
    wait_for(3)
    said: list[Any] = []
    wrapped, _ = applied(shared, None if rank else budget_for(shared))
    found = told_of(lambda: None if rank else loop(rank, shared, wrapped, 2, said))
    loop(rank, shared, wrapped, 2, said)
    return {**found, "steps": len(said)}


def random_sizes(rank: int, *, shared: Shared, steps: int, share: float) -> dict[str, Any]:
    """Train on batches of random sizes, other ones on each rank, without a budget and under one."""
    gc.freeze()
    own = own_of(rank, shared)
    draw = random.Random(f"{own} of {steps}")
    # Even lengths: quiet collectives want as much of each rank where sequences are shared.
    sizes = [(draw.randint(1, 8), 2 * draw.randint(1, 32)) for _ in range(steps)]
    batches = [tokens(own, number, rows=rows, length=length) for number, (rows, length) in enumerate(sizes)]

    def run(asked: dict[str, Any] | None) -> tuple[list[Any], list[int], list[int], bool]:
        said, starts, peaks = list[Any](), list[int](), list[int]()
        wrapped, inner = applied(shared, asked)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        for number, batch in enumerate(batches):
            starts.append(standing_bytes(wrapped, optimizer, [batch]))
            held_step(wrapped, optimizer, batch, 100 + number, said, peaks)
        said.append([bits(each) for each in wrapped.parameters()])
        return said, starts, peaks, asked is not None and autockpt.plan_of(inner) is not None

    plain, starts, peaks, _ = run(None)
    agreed = torch.tensor([int(max(starts) + share * (max(peaks) - max(starts)))])
    distributed.all_reduce(agreed, op=distributed.ReduceOp.MAX)
    began = time.perf_counter()
    told, _, held, planned = run({"budget": int(agreed), "seconds": 0.5})
    return {
        "error": "",
        "words": "",
        "seconds": time.perf_counter() - began,
        "same": told == plain,
        "held": max(held) / int(agreed),
        "plain held": max(peaks) / int(agreed),
        "steps": len(held),
        "planned": planned,
    }

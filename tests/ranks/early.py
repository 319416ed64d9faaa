"""Stages whose last replay begins before its gradient is there; see `pipelines`."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import nn

import autockpt
from tests.doors import governor_of, torch_private

from .pipelines import STEPS, Parts, trained

LIMIT = timedelta(seconds=60)
"""After that a rank stops waiting for a replay that does not come, and the test fails."""


@contextlib.contextmanager
def put_off(model: nn.Module) -> Iterator[None]:
    """Let all replays of a planned model wait for their gradients, inside the block."""
    governor: Any = governor_of(model)
    handle = governor.handle
    before, handle.table = handle.table, dataclasses.replace(handle.table, early=frozenset())
    try:
        yield
    finally:
        handle.table = before


class Events:
    """What one stage does in the last step: replays of its blocks, and gradients that arrive, each by microbatch.

    Args:
        rank: this one.
        waits: microbatches whose gradients the last stage sends only after the stage before has begun their replays.
    """

    def __init__(self, rank: int, waits: Sequence[int]) -> None:
        self.seen: list[tuple[str, int]] = []
        self._rank, self._waits, self._forwards = rank, waits, 0
        self._microbatches: dict[tuple[int, float], int] = {}  # by block, and what its layer was given in forward

    def __call__(self, number: int, model: Parts) -> None:
        if number == STEPS - 1:
            stage: Any = model.stages[0]
            stage.register_forward_hook(self._made)
            for block, each in enumerate(stage.blocks):
                each.up.register_forward_pre_hook(lambda _, given, block=block: self._begins(block, given[0]))

    def _begins(self, block: int, given: torch.Tensor) -> None:
        key = block, float(given.detach().double().sum())
        if not autockpt.is_recomputing():
            self._microbatches[key] = self._forwards
            return
        microbatch = self._microbatches[key]
        if ("replay", microbatch) not in self.seen:
            self.seen.append(("replay", microbatch))
            if self._rank == 0:
                torch_private.default_store().set(f"replayed {microbatch}", "")

    def _made(self, stage: nn.Module, given: Any, made: torch.Tensor) -> None:
        microbatch, self._forwards = self._forwards, self._forwards + 1
        made.register_hook(lambda _: self._arrives(microbatch))

    def _arrives(self, microbatch: int) -> None:
        if self._rank and microbatch in self._waits:
            torch_private.default_store().wait([f"replayed {microbatch}"], LIMIT)
        self.seen.append(("gradient", microbatch))


def events(
    rank: int, *, schedule: str, parts: int, share: float, waits: Sequence[int] = (), off: bool = False, **pins: Any
) -> dict[str, Any]:
    """Train plainly and under a budget, as `kept` does; return what the last step did as well.

    Args:
        rank: this one, of two.
        schedule, parts, share, pins: as `kept` has them.
        waits: as for `Events`.
        off: whether all replays of the last step wait for their gradients.
    """
    gc.freeze()
    plain, starts, peaks, _ = trained((rank, 0), schedule, parts, None)
    budget = int(starts[-1] + share * (peaks[-1] - starts[-1]))
    seen, last = Events(rank, waits), contextlib.ExitStack()

    def watch(number: int, model: Parts) -> None:
        seen(number, model)
        if off and number == STEPS - 1:
            last.enter_context(put_off(model.stages[0]))

    with last:
        said, _, held, plans = trained((rank, 0), schedule, parts, budget, watch=watch, **pins)
    return {
        "same": said == plain,
        "seen": seen.seen,
        "held": held,
        "predicted": plans[-1].peak_bytes,
        "budget": budget,
    }

"""How much any method would have to recompute, op by op: what the cost of a plan is held against. No torch."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

from .._data.profile import Profile
from ..solvers.bound import peak_bound
from ..solvers.dataflow import Dataflow, Item, Unit
from ..solvers.lives import Lives
from .candidates.book import Book
from .candidates.steps import base_steps

BOUND_SECONDS = 1.0


def least_recompute_seconds(profile: Profile, budget_bytes: int) -> float | None:
    """Bound from below what any method recomputes that keeps the step within a peak; see `PeakBound`.

    Args:
        profile: the recorded step.
        budget_bytes: the peak.

    Returns:
        The bound; None where nothing is known, since no operators were recorded or no method fits.
    """
    return PeakBound.of(profile).seconds(budget_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakBound:
    """A profile laid out for bounding from below what any method recomputes, under one peak or many.

    Every recorded operator is free to be kept, recomputed or skipped, as often as it takes; Python, host seconds
    and what is allocated while something is recomputed count nothing.

    Attributes:
        flow: the operators.
        lives: when what stands.
    """

    flow: Dataflow
    lives: Lives

    @classmethod
    def of(cls, profile: Profile) -> PeakBound:
        """Lay a profile out; O(operators and saves)."""
        book = Book(profile)
        flow, tensors, op_ticks = state_operators(book)
        saves = profile.saves
        cuts = {0, *saves.release, *(tick for tick in saves.unpack if tick < profile.ticks)}
        cuts.update(int(book.natural[tensor]) for tensor in tensors)
        edges = sorted(cut for cut in cuts if cut < profile.ticks)

        def step(tick: int) -> int:
            return bisect.bisect_right(edges, tick) - 1

        reads: dict[int, set[int]] = {tensor: set() for tensor in tensors}
        for tensor, unpack, release in zip(saves.tensor, saves.unpack, saves.release, strict=True):
            if tensor in reads and unpack < profile.ticks:
                reads[tensor].update(range(step(unpack), bisect.bisect_left(edges, release)))
        steps = base_steps(profile, book, edges)
        free_ticks = [int(book.natural[tensor]) for tensor in tensors]
        lives = Lives(
            base_bytes=tuple(each.base_bytes for each in steps),
            run_step=tuple(step(tick) for tick in op_ticks),
            free_step=tuple(bisect.bisect_left(edges, t) if t < profile.ticks else len(steps) for t in free_ticks),
            read_steps=tuple(tuple(sorted(reads[tensor])) for tensor in tensors),
        )
        return cls(flow=flow, lives=lives)

    def seconds(self, budget_bytes: int, *, time_limit_seconds: float = BOUND_SECONDS) -> float | None:
        """Bound the recompute seconds of a step that keeps within a peak.

        Args:
            budget_bytes: the peak.
            time_limit_seconds: after so long the bound reached is returned, which is weaker and as valid.

        Returns:
            The bound; None where nothing is known, since no operators were recorded or no method fits.

        Source: see `solvers.bound.peak_bound`.
        """
        if not self.flow.units:
            return None
        seconds = peak_bound(self.flow, self.lives, budget_bytes, seconds=time_limit_seconds).seconds
        return None if math.isinf(seconds) else seconds


def state_operators(book: Book) -> tuple[Dataflow, list[int], list[int]]:
    """State the whole model, every operator a unit.

    Args:
        book: the recorded step.

    Returns:
        The operators, the tensor that each item is, and the tick at which each operator ran.
    """
    ops, functions, saves, calls = book.profile.ops, book.profile.functions, book.profile.saves, book.profile.calls
    saved = {t for t, unpack in zip(saves.tensor, saves.unpack, strict=True) if unpack < book.profile.ticks}
    made = {tensor for makes in ops.makes for tensor in makes}
    tensors = sorted({t for reads in ops.reads for t in reads} | made | (saved - {-1}))
    number = {tensor: i for i, tensor in enumerate(tensors)}
    # What no operator made (code outside the model, or inside a kernel) costs nothing to hold: no method is asked to.
    items = [Item(bytes=int(book.bytes[t]), saved=t in saved, free=t not in made) for t in tensors]
    units, ticks = [], []
    for f, call, name, seconds, reads, makes, writes in zip(
        ops.function, ops.call, ops.name, ops.seconds, ops.reads, ops.makes, ops.writes, strict=True
    ):
        born = [int(book.birth[tensor]) for tensor in makes]
        ticks.append(max(born) if born else functions.enter[f] if f >= 0 else calls[call].enter)
        units.append(
            Unit(
                name=name,
                seconds=seconds,
                reads=tuple(dict.fromkeys(number[tensor] for tensor in reads)),
                makes=tuple(dict.fromkeys(number[tensor] for tensor in (*makes, *(t for t in writes if t in made)))),
            )
        )
    return Dataflow(units=tuple(units), items=tuple(items)), tensors, ticks

"""The judge: what a choice costs, and the level of memory in every step.

    once a problem    its arrays, in the order of the problem
    once a choice     which saves are covered ─▶ until when each tensor is held ─▶ what begins and ends ─▶ levels

Every figure of every plan comes from here. `tests/solvers/test_judge.py` defines it in plain Python, step by step and
tensor by tensor, and compares the arrays with that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .errors import InvalidProblem
from .problem import Candidate, Problem

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Numbers = TypeVar("Numbers", Ints, Floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Predicted memory over the step.

    Attributes:
        level_bytes: highest level in each step of the problem.
        recompute_seconds: extra forward seconds of the choice.
        saved_until: per tensor, the step until which it lives by itself (`free_step`), or a kept call holds it.
        needed_until: per tensor, the step until which it lives by itself, or a replay needs it.
    """

    level_bytes: tuple[int, ...]
    recompute_seconds: float
    saved_until: tuple[int, ...]
    needed_until: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """Highest level over the whole step."""
        return max(self.level_bytes)

    @property
    def peak_step(self) -> int:
        """Index of the first step that reaches the peak."""
        return self.level_bytes.index(self.peak_bytes)


def simulate(problem: Problem, chosen: Sequence[int]) -> Timeline:
    """Compute the memory timeline and the cost of recomputing `chosen`.

    Args:
        problem: the problem.
        chosen: indices into ``problem.candidates``, no two of which overlap.

    Returns:
        The level at every step, in bytes, and the recompute seconds.

    Raises:
        InvalidProblem: two chosen candidates overlap.

    Example:
        >>> from autockpt.solvers import Call, Problem, Save, Step, Tensor, simulate
        >>> problem = Problem(
        ...     steps=(Step(name="forward", base_bytes=10), Step(name="backward", base_bytes=4)),
        ...     calls=(Call(name="", parent=-1, stop=1),),
        ...     tensors=(Tensor(bytes=8, free_step=1, saves=(Save(call=0, until=2),)),),
        ... )
        >>> simulate(problem, ()).level_bytes
        (10, 12)

    Exact; O(steps + tensors + saves + what the chosen candidates hold and add).
    """
    candidates = [problem.candidates[i] for i in sorted(chosen, key=lambda i: problem.candidates[i].start)]
    for before, after in pairwise(candidates):
        if after.start < before.stop:
            raise InvalidProblem(f"candidates {before.name!r} and {after.name!r} overlap")
    judge, every = Judge(problem, candidates), range(len(candidates))
    return Timeline(
        level_bytes=tuple(judge.levels(every).tolist()),
        recompute_seconds=judge.seconds(every),
        saved_until=tuple(judge.saved_until(every).tolist()),
        needed_until=tuple(judge.needed_until(every).tolist()),
    )


class Judge:
    """A problem as arrays: per step, tensor, save, hold and addition, each in the order of the problem.

    Its candidates may be some of the problem's. Candidate ``c`` owns holds ``hold_offset[c]:hold_offset[c + 1]``, and
    additions in the same manner.
    """

    def __init__(self, problem: Problem, candidates: Sequence[Candidate] | None = None) -> None:
        """Make the arrays; O(problem). Holds and additions are those of `candidates` only."""
        tensors, candidates = problem.tensors, problem.candidates if candidates is None else candidates
        saves = [save for tensor in tensors for save in tensor.saves]
        holds = [hold for candidate in candidates for hold in candidate.holds]
        additions = [addition for candidate in candidates for addition in candidate.additions]
        self.problem, self.candidates = problem, candidates
        self.base_bytes = _column(problem.steps, "base_bytes")
        self.tensor_bytes, self.free_step = _column(tensors, "bytes"), _column(tensors, "free_step")
        counts = _ints([len(tensor.saves) for tensor in tensors])
        self.save_tensor: Ints = np.repeat(np.arange(len(tensors), dtype=np.int64), counts)
        self.save_call, self.save_until = _column(saves, "call"), _column(saves, "until")
        self.hold_tensor, self.hold_until = _column(holds, "tensor"), _column(holds, "until")
        self.hold_offset = _ints([0, *accumulate(len(candidate.holds) for candidate in candidates)])
        self.addition_bytes = _column(additions, "bytes")
        self.addition_start, self.addition_until = _column(additions, "start"), _column(additions, "until")
        self.addition_offset = _ints([0, *accumulate(len(candidate.additions) for candidate in candidates)])

    @property
    def size(self) -> int:
        """How many saves, holds and additions it goes through for a choice, at most."""
        return len(self.save_call) + len(self.hold_tensor) + len(self.addition_bytes)

    def saved_until(self, chosen: Sequence[int]) -> Ints:
        """Step until which each tensor lives by itself, or a call that is not recomputed holds it."""
        covered = np.zeros(len(self.problem.calls), dtype=np.bool_)
        for c in chosen:
            covered[self.candidates[c].start : self.candidates[c].stop] = True
        kept = ~covered[self.save_call]
        return _latest(self.free_step, self.save_tensor[kept], self.save_until[kept])

    def needed_until(self, chosen: Sequence[int]) -> Ints:
        """Step until which each tensor lives by itself, or a replay needs it."""
        holds = _owned(self.hold_offset, chosen)
        return _latest(self.free_step, self.hold_tensor[holds], self.hold_until[holds])

    def levels(self, chosen: Sequence[int]) -> Ints:
        """Level in every step if the candidates `chosen`, which must not overlap, are recomputed."""
        held_until = np.maximum(self.saved_until(chosen), self.needed_until(chosen))
        more, n_steps = _owned(self.addition_offset, chosen), len(self.base_bytes)
        levels: Ints = self.base_bytes + course(n_steps, self.free_step, held_until, self.tensor_bytes)
        levels += course(n_steps, self.addition_start[more], self.addition_until[more], self.addition_bytes[more])
        return levels

    def freed_at(self, step: int) -> list[int]:
        """By how much each candidate, chosen alone, lowers the level in a step; O(candidates, and what they hold)."""
        over = self.free_step <= step
        live = np.flatnonzero(over[self.save_tensor] & (self.save_until > step))
        tensor, first = np.unique(self.save_tensor[live], return_index=True)  # saves are sorted by tensor
        low = np.minimum.reduceat(self.save_call[live], first) if len(live) else _ints([])
        high = np.maximum.reduceat(self.save_call[live], first) if len(live) else _ints([])
        order = np.argsort(low, kind="stable")
        tensor, low, high = tensor[order], low[order], high[order]
        saved = np.zeros(len(over), dtype=np.bool_)
        saved[tensor] = True
        holds = over[self.hold_tensor] & (self.hold_until > step)
        adds = (self.addition_start <= step) & (step < self.addition_until)
        found = []
        for c, candidate in enumerate(self.candidates):
            begin, end = np.searchsorted(low, (candidate.start, candidate.stop))
            dropped = tensor[begin:end][high[begin:end] < candidate.stop]
            own = slice(self.hold_offset[c], self.hold_offset[c + 1])
            held = np.unique(self.hold_tensor[own][holds[own]])
            held = held[~saved[held] | np.isin(held, dropped)]  # others are held by saves that stay
            more = slice(self.addition_offset[c], self.addition_offset[c + 1])
            freed = self.tensor_bytes[dropped].sum() - self.tensor_bytes[held].sum()
            found.append(int(freed - self.addition_bytes[more][adds[more]].sum()))
        return found

    def peak(self, chosen: Sequence[int]) -> int:
        """Highest level if the candidates `chosen` are recomputed."""
        return int(self.levels(chosen).max())

    def seconds(self, chosen: Sequence[int]) -> float:
        """Recompute seconds of the candidates `chosen`."""
        return sum(self.candidates[c].recompute_seconds for c in chosen)


def _column(rows: Sequence[object], name: str) -> Ints:
    """One attribute of many rows."""
    return _ints([*map(attrgetter(name), rows)])


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _latest(steps: Ints, tensors: Ints, untils: Ints) -> Ints:
    """Per tensor, the latest of its own step and of its `untils`."""
    latest: Ints = steps.copy()
    np.maximum.at(latest, tensors, untils)
    return latest


def _owned(offset: Ints, chosen: Sequence[int]) -> Ints:
    """Indices of everything that the candidates `chosen` own."""
    owners = _ints(chosen)
    starts = offset[owners]
    counts = offset[owners + 1] - starts
    before = np.cumsum(counts) - counts
    owned: Ints = np.arange(counts.sum(), dtype=np.int64) + np.repeat(starts - before, counts)
    return owned


def course(n_steps: int, starts: Ints, untils: Ints, sizes: Numbers) -> Numbers:
    """Level in each step, where each size is there in steps ``[start, until)``."""
    change = np.zeros(n_steps + 1, dtype=sizes.dtype)
    np.add.at(change, starts, sizes)
    np.subtract.at(change, untils, sizes)
    return np.cumsum(change[:-1])


def peaks(levels: Ints | Floats, limit_bytes: float) -> list[int]:
    """Steps where levels are a local maximum above a limit, the highest first."""
    before, after = np.append(-np.inf, levels[:-1]), np.append(levels[1:], -np.inf)
    found = np.flatnonzero((levels > limit_bytes) & (levels >= before) & (levels > after))
    steps: list[int] = found[np.argsort(-levels[found], kind="stable")].tolist()
    return steps

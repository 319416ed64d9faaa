"""The judge in arrays, for solvers that try many plans: the same levels, about twenty times faster once it is set up.

What a solver returns is judged by `simulate` all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .problem import Problem

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Numbers = TypeVar("Numbers", Ints, Floats)


class FastJudge:
    """A problem as arrays: per step, tensor, save, hold and addition, each in the order of the problem.

    Candidate ``c`` owns holds ``hold_offset[c]:hold_offset[c + 1]``, and additions in the same manner.
    """

    def __init__(self, problem: Problem) -> None:
        """Make the arrays; O(everything in the problem)."""
        tensors, candidates = problem.tensors, problem.candidates
        saves = [(i, save) for i, tensor in enumerate(tensors) for save in tensor.saves]
        holds = [hold for candidate in candidates for hold in candidate.holds]
        additions = [addition for candidate in candidates for addition in candidate.additions]
        self.problem = problem
        self.base_bytes = _ints([step.base_bytes for step in problem.steps])
        self.tensor_bytes = _ints([tensor.bytes for tensor in tensors])
        self.free_step = _ints([tensor.free_step for tensor in tensors])
        self.save_tensor = _ints([i for i, _ in saves])
        self.save_call = _ints([save.call for _, save in saves])
        self.save_until = _ints([save.until for _, save in saves])
        self.hold_tensor = _ints([hold.tensor for hold in holds])
        self.hold_until = _ints([hold.until for hold in holds])
        self.hold_offset = _ints([0, *accumulate(len(candidate.holds) for candidate in candidates)])
        self.addition_bytes = _ints([addition.bytes for addition in additions])
        self.addition_start = _ints([addition.start for addition in additions])
        self.addition_until = _ints([addition.until for addition in additions])
        self.addition_offset = _ints([0, *accumulate(len(candidate.additions) for candidate in candidates)])

    def levels(self, chosen: Sequence[int]) -> Ints:
        """Level in every step if the candidates `chosen`, which must not overlap, are recomputed."""
        covered = np.zeros(len(self.problem.calls), dtype=np.bool_)
        for c in chosen:
            covered[self.problem.candidates[c].start : self.problem.candidates[c].stop] = True
        held_until = self.free_step.copy()
        kept = ~covered[self.save_call]
        np.maximum.at(held_until, self.save_tensor[kept], self.save_until[kept])
        holds = _owned(self.hold_offset, chosen)
        np.maximum.at(held_until, self.hold_tensor[holds], self.hold_until[holds])

        more, n_steps = _owned(self.addition_offset, chosen), len(self.base_bytes)
        levels: Ints = self.base_bytes + course(n_steps, self.free_step, held_until, self.tensor_bytes)
        levels += course(n_steps, self.addition_start[more], self.addition_until[more], self.addition_bytes[more])
        return levels

    def peak(self, chosen: Sequence[int]) -> int:
        """Highest level if the candidates `chosen` are recomputed."""
        return int(self.levels(chosen).max())

    def seconds(self, chosen: Sequence[int]) -> float:
        """Recompute seconds of the candidates `chosen`."""
        return sum(self.problem.candidates[c].recompute_seconds for c in chosen)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _owned(offset: Ints, chosen: Sequence[int]) -> Ints:
    """Indices of everything that the candidates `chosen` own."""
    owners = _ints(chosen)
    starts = offset[owners]
    counts = offset[owners + 1] - starts
    before = np.cumsum(counts) - counts
    owned: Ints = np.arange(counts.sum(), dtype=np.int64) + np.repeat(starts - before, counts)
    return owned


def course(n_steps: int, starts: Ints, untils: Ints, sizes: Numbers) -> Numbers:
    """Add up in each step what stands in steps ``[start, until)``."""
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

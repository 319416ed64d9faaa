"""The judge: what a choice costs, and how high memory stands at every step.

Kept plain on purpose: solvers may be clever, and this is what they are held against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from .errors import InvalidProblem
from .problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Predicted memory over the step.

    Attributes:
        level_bytes: highest level in each step of the problem.
        recompute_seconds: extra forward seconds of the choice.
        saved_until: per tensor, the step until which it is there for itself, or a kept call holds it.
        needed_until: per tensor, the step until which it is there for itself, or a replay needs it.
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
        """Index of the first step at which the peak stands."""
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

    Exact; O(steps + saves + what the chosen candidates hold and add).
    """
    candidates = [problem.candidates[i] for i in sorted(chosen, key=lambda i: problem.candidates[i].start)]
    for before, after in pairwise(candidates):
        if after.start < before.stop:
            raise InvalidProblem(f"candidates {before.name!r} and {after.name!r} overlap")

    covered = [False] * len(problem.calls)
    for candidate in candidates:
        covered[candidate.start : candidate.stop] = [True] * (candidate.stop - candidate.start)
    saved_until = [
        max([tensor.free_step, *(save.until for save in tensor.saves if not covered[save.call])])
        for tensor in problem.tensors
    ]
    needed_until = [tensor.free_step for tensor in problem.tensors]
    for candidate in candidates:
        for hold in candidate.holds:
            needed_until[hold.tensor] = max(needed_until[hold.tensor], hold.until)

    change = [0] * (len(problem.steps) + 1)  # what begins or ends at each step
    for tensor, saved, needed in zip(problem.tensors, saved_until, needed_until, strict=True):
        change[tensor.free_step] += tensor.bytes
        change[max(saved, needed)] -= tensor.bytes
    for candidate in candidates:
        for addition in candidate.additions:
            change[addition.start] += addition.bytes
            change[addition.until] -= addition.bytes

    levels = [step.base_bytes + held for step, held in zip(problem.steps, accumulate(change), strict=False)]
    seconds = sum(candidate.recompute_seconds for candidate in candidates)
    return Timeline(
        level_bytes=tuple(levels),
        recompute_seconds=seconds,
        saved_until=tuple(saved_until),
        needed_until=tuple(needed_until),
    )

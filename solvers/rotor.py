"""The exact dynamic programme over an explicit chain, with several ways to run each stage, flat or nested.

    stage       0       1       2       3
    input  a₀ ─▶─ a₁ ─▶── a₂ ──▶── a₃ ──▶ a₄

    keep        run a stage in one of its ways and hold what that way saves until its backward
    restart     hold the input of stage s, run on to stage j without saving, treat j … t, then s … j−1 again

Nested, the stages s … j−1 may again be cut anew; flat, each of them then runs once more and is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import Infeasible, InvalidProblem
from .rotor_table import MOST_SLOTS, Table
from .stages import ChainStage, ChainStep

__all__ = ["ChainSchedule", "solve_chain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSchedule:
    """A schedule of the whole step.

    Attributes:
        steps: in order.
        seconds: of all forwards and backwards.
        recompute_seconds: beyond one forward and one backward of each stage's first option.
    """

    steps: tuple[ChainStep, ...]
    seconds: float
    recompute_seconds: float


def solve_chain(
    stages: Sequence[ChainStage], budget_bytes: int, *, input_bytes: int = 0, nested: bool = True
) -> ChainSchedule:
    """Find the fastest schedule of a chain whose memory stays within the budget.

    What is held stays held until its backward ("persistent" schedules). The gradient of the last output stands from
    the start. (Where the paper counts the gradient of a stage's own output while the stage runs forward, this counts
    the one that stands then.)

    Args:
        stages: in forward order; the last is the loss.
        budget_bytes: highest level, the chain's input included.
        input_bytes: size of that input.
        nested: whether what is run again may be cut into stretches once more.

    Returns:
        The schedule.

    Raises:
        Infeasible: no such schedule fits.
        InvalidProblem: a stage has no option.

    Example:
        >>> from autockpt.solvers import ChainStage, StageOption, solve_chain
        >>> option = StageOption(forward_seconds=1.0, backward_seconds=2.0, saved_bytes=3)
        >>> stages = [ChainStage(options=(option,), output_bytes=1)] * 4
        >>> [solve_chain(stages, n, input_bytes=1).recompute_seconds for n in (15, 13, 10)]
        [0.0, 1.0, 2.0]

    Source: Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains: how to train deep neural networks
    with limited memory" (the programme); Zhao et al. 2023, "Rockmate", section 3 (several options a stage).
    Exact among persistent schedules, with bytes rounded up to 1/500 of the budget where it has more;
    O(stages² × (stages + options) × slots), flat and nested.
    """
    if any(not stage.options for stage in stages):
        raise InvalidProblem("a stage of a chain needs at least one option")
    if not stages:
        return ChainSchedule(steps=(), seconds=0.0, recompute_seconds=0.0)
    table = Table(tuple(stages), budget_bytes, input_bytes, nested)
    room = table.slots_of_budget - table.input[0]
    seconds = table.seconds(0, len(stages) - 1, room)
    if seconds == math.inf:
        raise Infeasible(
            budget_bytes=budget_bytes,
            minimum_bytes=_minimum_bytes(stages, budget_bytes, input_bytes, nested),
            solver="chain",
            dominated_by="the chain",
        )
    plain = sum(stage.options[0].forward_seconds + stage.options[0].backward_seconds for stage in stages)
    return ChainSchedule(
        steps=tuple(table.steps(0, len(stages) - 1, room)), seconds=seconds, recompute_seconds=seconds - plain
    )


def _minimum_bytes(stages: Sequence[ChainStage], budget_bytes: int, input_bytes: int, nested: bool) -> int:
    """A budget near the least for which there is a schedule, and for which there is one."""
    enough = input_bytes + sum(
        2 * stage.output_bytes
        + max(o.saved_bytes + o.forward_transient_bytes + o.backward_transient_bytes for o in stage.options)
        for stage in stages
    )
    low, high = budget_bytes, max(enough + len(stages), budget_bytes + 1) * 2
    while high - low > max(1, high // (2 * MOST_SLOTS)):
        middle = (low + high) // 2
        table = Table(tuple(stages), middle, input_bytes, nested)
        fits = table.seconds(0, len(stages) - 1, table.slots_of_budget - table.input[0]) < math.inf
        low, high = (low, middle) if fits else (middle, high)
    return high

"""A chain written down stage by stage, and the operations of a schedule. The programme over it is in `rotor`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ChainStage", "ChainStep", "StageOption"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOption:
    """One way to run a stage so that its backward can follow.

    Attributes:
        forward_seconds: its forward.
        backward_seconds: its backward, with whatever that recomputes inside the stage.
        saved_bytes: held from this forward to this backward, the stage's output included, its input not.
        forward_transient_bytes: beyond input, output and saved bytes, while forward runs.
        backward_transient_bytes: beyond input, output, saved bytes, while backward runs; the gradient of the output
            is as large as the output, and counts by itself.
    """

    forward_seconds: float
    backward_seconds: float
    saved_bytes: int
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStage:
    """One stage of a chain.

    Attributes:
        options: ways to run it; at least one. The first is also how it runs when nothing is saved.
        output_bytes: what it passes on: the boundary of the next stage.
    """

    options: tuple[StageOption, ...]
    output_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStep:
    """One operation of a schedule.

    Attributes:
        kind: ``keep`` (forward that saves), ``hold`` (forward that saves nothing and holds its input), ``pass``
            (forward that saves nothing and drops its input) or ``backward``.
        stage: index of the stage.
        option: way in which it runs.
    """

    kind: str
    stage: int
    option: int = 0

"""Unplanned calls: no recorded step made them. A model makes such calls if random numbers or data decide its depth.

A plan has no memory for what they save. So their saved tensors wait in a stash, as all do in a spilled step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..._calls.unrepeatable import why_unrepeatable
from ..._calls.values import tensors
from ..._stash.spilled_step import SpilledStep


@dataclass(slots=True)
class UnplannedCalls:
    """Tells which calls a plan does not know.

    Attributes:
        calls: by name of a module, how often it is called in the step that the plan is for. Empty if not known.
        met: whether an unplanned call was made, or a planned one did not fit its place.
    """

    calls: Mapping[str, int] = field(default_factory=dict)
    met: bool = False

    def has(self, name: str, occurrence: int) -> bool:
        """Whether a module's call is unplanned: the call number `occurrence` of a step, counted from 0."""
        return bool(self.calls) and occurrence >= self.calls.get(name, 0)

    def take_met(self) -> bool:
        """Return whether `met` was set since the last time."""
        met, self.met = self.met, False
        return met

    def run(self, forward: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an unplanned call; `forward` is the module's own."""
        self.met = True
        call = functools.partial(forward, *args, **kwargs)
        state = (*module.parameters(), *tensors((args, kwargs)))
        if not state or why_unrepeatable(module):  # a tensor that is written after it was saved cannot wait in a stash
            return call()
        return SpilledStep(module, state[0].device, ()).forward((), call)

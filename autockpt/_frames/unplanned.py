"""Unplanned calls: no recorded step made them, as where the depth is drawn or the data decides it.

A plan counts on nothing that they hold. So what they save waits elsewhere, as all does in a step that is recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .._calls.unrepeatable import why_unrepeatable
from .._calls.values import tensors
from .._stash.spilled_step import SpilledStep


@dataclass(slots=True)
class UnplannedCalls:
    """Tells the calls that a plan does not know.

    Attributes:
        calls: how often each module is called in the step that the plan is for, by name; empty where nobody can tell.
        met: whether another call was made, or a known one at another place.
    """

    calls: Mapping[str, int] = field(default_factory=dict)
    met: bool = False

    def has(self, name: str, occurrence: int) -> bool:
        """Whether it is such a call: the module's number `occurrence` of a step, counted from 0."""
        return bool(self.calls) and occurrence >= self.calls.get(name, 0)

    def take_met(self) -> bool:
        """Return whether a call was made since the last time that the plan does not know so."""
        met, self.met = self.met, False
        return met

    def run(self, forward: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run such a call: `forward` is the module's own."""
        self.met = True
        call = functools.partial(forward, *args, **kwargs)
        state = (*module.parameters(), *tensors((args, kwargs)))
        if not state or why_unrepeatable(module):  # a tensor that is written after it was saved cannot wait elsewhere
            return call()
        return SpilledStep(module, state[0].device, ()).forward((), call)

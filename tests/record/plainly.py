"""Steps recorded the plain way, as an oracle: what autograd saves stays where it is, or is dropped."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import nn

import autockpt
from autockpt import Profile
from tests.doors import (
    HostClock,
    LateWrites,
    Lifetimes,
    Observer,
    OwnErrors,
    Spill,
    Waiting,
    Written,
    attribute,
    events_of,
    lifetimes,
    recorder,
    training_step,
)

__all__ = ["dropping", "held"]


class _Held(Spill):
    """Takes nothing."""

    def __init__(self) -> None:
        self.errors = OwnErrors()
        self.late = LateWrites(Waiting(), ())

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class _Dropped(_Held):
    """Lets go of everything, so that no backward can follow."""

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(0)


def held(model: nn.Module, inputs: Any, **options: Any) -> Profile:
    """Record a step that holds all that it saves: births and deaths are those of the plain step as they happen."""
    with mock.patch.object(recorder, "Spill", lambda *_: _Held()):
        return autockpt.profile(model, inputs, **options)


def dropping(model: nn.Module, inputs: Any) -> Lifetimes:
    """Record a forward that saves nothing: deaths are natural ones as they happen."""
    step = training_step(model, inputs, None)
    tape = vars(recorder)["device_of"](step.device).tape()
    observer = Observer(model, tape, HostClock(), _Dropped())
    with tape:
        with observer.watching():
            kept = step.forward()
        observer.begin_backward()
        observer.end()
        del kept
    written = Written(events=tape.events(), marks=observer.run.marks, put_back=True)
    observer.run.events = events_of(written, attribute(written))
    return lifetimes(observer.run)

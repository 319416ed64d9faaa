"""A kind of hidden state trained under a plan, beside a twin that no plan touches."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import autockpt
from tests.nets.kind import BLOCKS, EVERY_WAY, Kind, Outcome
from tests.twin import counting_replays, differing, digest, generators, listening, standing

__all__ = ["WAYS", "expected", "outcome"]


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a model is held to a plan.

    Attributes:
        apply: does it.
        rehearsed: number of steps until every segment was rehearsed.
    """

    apply: Callable[[nn.Module], object]
    rehearsed: int


def _given(*segments: str | list[str]) -> Callable[[nn.Module], object]:
    return lambda model: autockpt.apply(model, plan=autockpt.Plan.of(segments), check="always")


def _planned(model: nn.Module) -> None:
    autockpt.apply(model, "lowest", check="always")


_PLANNED = Way(apply=_planned, rehearsed=5)  # recorded, timed, rehearsed; once more for a plan that refuses
_EACH, _ALL = (Way(apply=_given(*segments), rehearsed=1) for segments in (BLOCKS, [[*BLOCKS]]))

WAYS: Mapping[str, Way] = MappingProxyType(dict(zip(EVERY_WAY, (_EACH, _ALL, _PLANNED), strict=True)))

AFTER = 4
"""Steps after the rehearsal."""


@dataclass
class _Training:
    """One training: what it left behind, step by step.

    Attributes:
        noted: digests by name.
        error: of the step that raised.
        said: what the library warned of.
        refused: calls that the last plan refuses.
    """

    noted: dict[str, object] = field(default_factory=dict)
    error: autockpt.ReplayError | None = None
    said: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def outcome(kind: Kind, way: str) -> Outcome:
    """Train plain and planned, and say what became of it.

    Raises:
        AssertionError: it is none of the outcomes, or nothing was recomputed.
        Exception: a step raises something else than a ReplayError.
    """
    plain = _plain(kind, WAYS[way].rehearsed)
    with counting_replays() as replays:
        planned = _train(kind, WAYS[way].rehearsed, WAYS[way].apply)
    different = differing({name: plain[name] for name in planned.noted}, planned.noted)
    if different:
        again = _train(kind, WAYS[way].rehearsed, None).noted
        assert differing(plain, again) == [], "the plain training does not repeat itself"
    if planned.error is not None:
        assert "keep='layers" in str(planned.error), planned.error
        assert not different, f"raised after a step that differs in {different[:3]}"
        return Outcome.RAISES
    named = [each for each in [*planned.refused, *planned.said] if "layers." in each]
    assert not different, f"{len(different)} differ, such as {different[:3]}; named: {named}"
    assert named or replays, "nothing was recomputed, and nobody said why"
    return Outcome.REFUSED if named else Outcome.EXACT


def expected(kind: Kind, way: str) -> tuple[Outcome, ...]:
    """Return what may become of a kind."""
    return (kind.given,) if way.startswith("given") else kind.planned


@lru_cache(maxsize=1)  # two ways come one after the other that are rehearsed alike
def _plain(kind: Kind, rehearsed: int) -> dict[str, object]:
    """What the plain training notes."""
    return _train(kind, rehearsed, None).noted


def _train(kind: Kind, rehearsed: int, apply: Callable[[nn.Module], object] | None) -> _Training:
    kind.begin()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    found = _Training()
    with listening() as found.said:
        model = kind.network(kind.block).train()
        if apply is not None:
            try:
                apply(model)
            except autockpt.NotApplicable as error:
                found.refused = [str(error)]
                return found
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for number in range(rehearsed + AFTER):
            late = number >= rehearsed + 1
            try:
                loss = kind.step(model, number, late)
            except autockpt.ReplayError as error:
                found.error = error
                _goes_on(kind, model, number)
                return found
            found.noted |= _left(model, kind, number, loss)
            optimizer.step()
            optimizer.zero_grad()
        plan = autockpt.plan_of(model) if apply is not None else None
        found.refused = [each.call for each in plan.refused] if plan is not None else []
    return found


def _goes_on(kind: Kind, model: nn.Module, number: int) -> None:
    """After the error the call is kept: the next steps raise no other, one for each of the other blocks apart."""
    for _ in range(4):
        model.zero_grad()
        try:
            kind.step(model, number + 1, True)
        except autockpt.ReplayError:
            continue
        return
    raise AssertionError("a step raises however often calls were refused")


def _left(model: nn.Module, kind: Kind, number: int, loss: Tensor) -> dict[str, object]:
    """All that a step leaves behind, as it begins to be another training if it differs."""
    tensors = standing(model) | {f"parameter {name}": each for name, each in model.named_parameters()} | {"loss": loss}
    left: dict[str, object] = {name: None if each is None else digest(each) for name, each in tensors.items()}
    left |= generators()
    for name, module in model.named_modules():
        own = {key: value for key, value in vars(module).items() if not key.startswith("_") and key != "compile"}
        left[f"attributes of {name}"] = told(own)
    left |= {"outside": told(kind.outside())}
    return {f"step {number}, {name}": each for name, each in left.items()}


def told(value: Any) -> object:
    """What a Python object says of itself, down to numbers; the same for a twin's."""
    if isinstance(value, Tensor):
        return digest(value)
    if isinstance(value, torch.Generator):
        return digest(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, types.GeneratorType):
        return dict(value.gi_frame.f_locals) if value.gi_frame is not None else None
    if isinstance(value, Mapping):
        return [(key, told(each)) for key, each in value.items() if key != "forward"]
    if isinstance(value, (list, tuple, set)) or type(value).__name__ == "deque":
        return [told(each) for each in value]
    if isinstance(value, (nn.Module, type)) or (callable(value) and not hasattr(value, "__dict__")):
        return type(value).__name__
    slots = {name: getattr(value, name) for name in getattr(type(value), "__slots__", ())}
    if slots or hasattr(value, "__dict__"):
        return told({**slots, **getattr(value, "__dict__", {})})
    return repr(value)

"""Finds the larger model that contains a module. A module does not know its parents, so live governors are asked."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from torch import nn

from .._calls.roots import roots
from .._data.errors import NotApplicable
from .._record.alive import alive
from .governor import Governor


def refuse_part(model: nn.Module) -> None:
    """Refuse a model, or several, if one is a part of a larger model that is held to a budget.

    Raises:
        NotApplicable: one is such a part; the message names the larger model.
    """
    if next(_wholes(model), None) is None:
        return
    gc.collect()  # the larger model may be garbage already
    for name, whole in _wholes(model):
        raise NotApplicable(
            f"the model is {name!r} in a {type(whole).__name__} that is held to a budget, and is planned with it. Take "
            "that budget off first, autockpt.remove(whole); or say there what its calls shall do: apply(whole, budget, "
            f"keep='{name}.*')."
        )


def _wholes(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each model with a budget that contains one of the given models, with the name that it has there."""
    own = roots(model).values()
    for whole in (each for governor in alive(Governor) for each in _held_by(governor)):
        inside = () if any(whole is root for root in own) else whole.named_modules()
        yield from ((name, whole) for name, inner in inside if any(inner is root for root in own))


def _held_by(governor: Governor) -> list[nn.Module]:
    """Return the models that a governor holds to a budget; none for a copy that has not trained yet."""
    model = governor.model
    return [] if model is None or not governor.handle.patched else [*roots(model).values()]

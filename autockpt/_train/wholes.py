"""Finding the larger model that a part lies in: a module does not know, so the governors that are alive are asked."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from torch import nn

from .._calls.roots import roots
from .._data.errors import NotApplicable
from .._record.alive import alive
from .governor import Governor


def refuse_part(model: nn.Module) -> None:
    """Refuse a model, or several, one of which is a part of another that is held to a budget.

    Raises:
        NotApplicable: it is one, and says of what.
    """
    if next(_wholes(model), None) is None:
        return
    gc.collect()  # it may be nobody's any more
    for name, whole in _wholes(model):
        raise NotApplicable(
            f"the model is {name!r} in a {type(whole).__name__} that is held to a budget, and is planned with it. Take "
            "that budget off first, autockpt.remove(whole); or say there what its calls shall do: apply(whole, budget, "
            f"keep='{name}.*')."
        )


def _wholes(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the models held to a budget in which one of those given lies, with its name there."""
    own = roots(model).values()
    for whole in (each for governor in alive(Governor) for each in _held_by(governor)):
        inside = () if any(whole is root for root in own) else whole.named_modules()
        yield from ((name, whole) for name, inner in inside if any(inner is root for root in own))


def _held_by(governor: Governor) -> list[nn.Module]:
    """Return the models that a governor holds to a budget; those of a copy once it has trained."""
    model = governor.model
    return [] if model is None or not governor.handle.patched else [*roots(model).values()]

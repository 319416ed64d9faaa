"""The models of a step: one, or several that train together. With several, names begin with the name of the model.

one         root ""            h.0.mlp          the model's own names
several     root unet          unet.down.0      no module calls them: the user's loop does
one step    root ""            unet.down.0      the same names; a module that stands for the loop calls them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import nn

from .._data.errors import NotApplicable
from ..solvers.units import shown

Models: TypeAlias = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]
"""One model, or several."""

WHOLE = ""
"""The name of the root, where all other names are relative to it."""


class Together(nn.Module):
    """Several models that one loop trains. It has no forward: the user's loop calls each of them.

    Args:
        members: the models, by the names that they are to have in plans.
    """

    def __init__(self, members: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, module in members.items():
            self.add_module(name, module)


class OneStep(nn.Module):
    """Several models and what a loop does with them in one step, as one module that calls them.

    Args:
        members: the models, by the names that they have in plans.
        step: is given the batch, calls the models, and returns the loss.
    """

    def __init__(self, members: Mapping[str, nn.Module], step: Callable[..., Any]) -> None:
        super().__init__()
        for name, module in members.items():
            self.add_module(name, module)
        self.training = any(module.training for module in members.values())
        self._step = step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step up to the loss."""
        return self._step(*args, **kwargs)


def roots(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules whose forwards the user's loop calls, by name."""
    return dict(model.named_children()) if isinstance(model, Together) else {WHOLE: model}


def called_by_loops(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that the loop calls, also if a `OneStep` stands for it: the loop's own code is in no plan."""
    return dict(model.named_children()) if isinstance(model, OneStep) else roots(model)


def title(model: nn.Module) -> str:
    """Name a model, or several, by class."""
    return " + ".join(type(module).__name__ for module in called_by_loops(model).values())


def as_one(models: Any) -> nn.Module:
    """Return what is planned together as one module: a model as it is, several as `Together`.

    Args:
        models: a module; or several, in a list, which names them by their numbers, or in a mapping from names. A
            ``ModuleList`` and a ``ModuleDict`` have no forward, and stand for their members.

    Raises:
        NotApplicable: there is none, one of them is no module, comes twice or lies in another one, or a name cannot be
            that of a module.
    """
    if isinstance(models, (nn.ModuleList, nn.ModuleDict)) and type(models).forward is nn.Module.forward:
        models = dict(models.named_children())
    if isinstance(models, nn.Module):
        return models
    if not isinstance(models, (Mapping, list, tuple)):
        raise NotApplicable(f"a model is a torch.nn.Module, or several are in a list; this is {shown(models)}.")
    members = dict(models) if isinstance(models, Mapping) else {str(i): each for i, each in enumerate(models)}
    if not members:
        raise NotApplicable("there is no model to plan for: the list is empty. Give apply([encoder, unet], budget).")
    for name, module in members.items():
        if not isinstance(module, nn.Module):
            raise NotApplicable(f"a model is a torch.nn.Module, and {name!r} of those given is {shown(module)}.")
    _refuse_shared(members)
    try:
        return Together(members)
    except (KeyError, TypeError) as error:
        raise NotApplicable(f"no module can have this name: {error.args[0]}. Give another in the mapping.") from error


def _refuse_shared(members: Mapping[str, nn.Module]) -> None:
    """Refuse a model that comes twice, or inside another."""
    for name, module in members.items():
        inside = set(module.modules())
        for other, held in members.items():
            if other == name or held not in inside:
                continue
            if held is module:
                raise NotApplicable(f"{name!r} and {other!r} are the same model. Give it once.")
            raise NotApplicable(f"{other!r} lies inside {name!r}, and is planned with it. Give {name!r} alone.")

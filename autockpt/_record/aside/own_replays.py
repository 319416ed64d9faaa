"""What a model recomputes itself in its own forwards, and what switches that off.

It does so with `torch.utils.checkpoint`, or with `autockpt.recompute`, which is asked for and needs no warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import nn

from ..watch.marks import Region

RECOMPUTES = (
    "the model recomputes {0} itself, with torch.utils.checkpoint in the forward of {1}. Plans choose nothing inside. "
    "The seconds of those replays count as seconds of the plain step. {2}"
)

ASKED_FOR = (
    "the model recomputes {0} itself, with autockpt.recompute in the forward of {1}. Plans choose nothing inside. "
    "The seconds of those replays count as seconds of the plain step. A plan without them may need less."
)

SWITCH = "A plan without them may need less: set {0} = False on {1}, where it is True."

TAKE_OUT = "A plan without them may need less. No attribute was found that switches them off: take the call out."

SAYS = ("checkpoint", "ckpt")
"""An attribute that is True is taken for the switch if its name has one of these in it."""

MOST_NAMED = 2


def own_replays(model: nn.Module, regions: Collection[Region]) -> str | None:
    """Say what a model was seen to recompute itself, where, and what switches it off; None if nothing.

    Args:
        model: the model, or several as one.
        regions: what it recomputed in a step.
    """
    asked = [region for region in regions if region.function]
    theirs = [region for region in regions if not region.function]
    said = [*([_asked_for(asked)] if asked else []), *([_unasked(model, theirs)] if theirs else [])]
    return " ".join(said) or None


def is_unasked(said: str) -> bool:
    """Whether some of it is done by `torch.utils.checkpoint`, given what `own_replays` says."""
    return "with torch.utils.checkpoint in" in said


def _asked_for(regions: Sequence[Region]) -> str:
    """Say what the model recomputes since its code asks for it."""
    functions = list(dict.fromkeys(region.function for region in regions))
    callers = list(dict.fromkeys(region.caller for region in regions))
    return ASKED_FOR.format(_names(functions, "functions"), _names(callers))


def _unasked(model: nn.Module, regions: Sequence[Region]) -> str:
    """Say what the model recomputes with torch's checkpoint."""
    callers = list(dict.fromkeys(region.caller for region in regions))
    modules = {region.inside for region in regions if region.inside != region.caller}
    outermost = [name for name in dict.fromkeys(each.inside for each in regions) if modules.isdisjoint(_around(name))]
    parts = [name for name in outermost if name in modules]
    said = _names(parts) if parts else f"part of {_names(callers)}"
    switches: dict[str, list[str]] = {}  # modules by the name of the switch on them
    for caller in callers:
        for name, switch in _switches(model, caller):
            switches.setdefault(switch, []).append(name)
    off = (SWITCH.format(switch, _names(list(dict.fromkeys(names)))) for switch, names in switches.items())
    return RECOMPUTES.format(said, _names(callers), next(off, TAKE_OUT))


def _switches(model: nn.Module, caller: str) -> Iterator[tuple[str, str]]:
    """Yield the nearest module with a switch, the caller or one around it, and each switch on it."""
    for name in (caller, *_around(caller)):
        found = list(_switches_of(vars(model.get_submodule(name))))
        yield from ((name, switch) for switch in found)
        if found:
            return


def _switches_of(attributes: Mapping[str, object]) -> Iterator[str]:
    """Yield the attributes that are switches, and those of plain objects in attributes, such as configurations."""
    for name, value in attributes.items():
        if _is_switch(name, value):
            yield name
        elif not isinstance(value, (nn.Module, torch.Tensor)) and not callable(value):
            inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
            yield from (f"{name}.{inner}" for inner, each in inside.items() if _is_switch(inner, each))


def _is_switch(name: object, value: object) -> bool:
    return value is True and isinstance(name, str) and any(each in name.lower() for each in SAYS)


def _around(name: str) -> Iterator[str]:
    """Yield the names of the modules around one, innermost first."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _names(modules: Sequence[str], what: str = "modules") -> str:
    """Name modules, or something else: the first and the last of many."""
    named = [name or "the model" for name in modules]
    if len(named) <= MOST_NAMED:
        return " and ".join(named)
    return f"{named[0]} … {named[-1]} ({len(named)} {what})"

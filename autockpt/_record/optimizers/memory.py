"""The optimizer in the training step: which one is meant, what its state holds, and what its step allocates on top."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer

from ..._data.errors import ProfilingError
from ..._ranks.fsdp import parameters_at_rest
from ..._torch import private
from ..._torch.devices import Device, rounded
from ...solvers.units import shown
from .shadow import shadow_step, state_tensors, twin_of

Optimizers: TypeAlias = Optimizer | Sequence[Optimizer] | str
"""One optimizer, several that take their steps one after the other, or the name of a class in ``torch.optim``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An optimizer whose step belongs to the training step.

    Attributes:
        optimizer: the user's, or one built by name over parameters without memory.
        asked: the name that it was built by; empty if it is the user's.
        leaves: by id of a parameter of the optimizer, the index of the model's trainable parameter that it stands for.
        aside: parameters that it trains and that the model does not have now: other tensors stand in for them.
        notes: what is odd about it.
    """

    optimizer: Optimizer
    asked: str = ""
    leaves: Mapping[int, int]
    aside: tuple[torch.Tensor, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerMemory:
    """What optimizers need.

    Attributes:
        state_bytes: their state, after a step, and parameters for which others stand in.
        step_bytes: what a step allocates for a moment on top: the next step or one far into training, whichever needs
            more. Added to `state_bytes` and everything else alive at the end of backward, it gives the peak of the
            step.
        closure_bytes: the part of `state_bytes` that exists only while a step runs forward and backward by itself
            (LBFGS).
        source: where the figures come from, in words; empty where there is no optimizer.
        notes: what is not exact about them.
    """

    state_bytes: int = 0
    step_bytes: int = 0
    closure_bytes: int = 0
    source: str = ""
    notes: tuple[str, ...] = ()


def choose_optimizers(
    optimizer: Optimizers | None, model: torch.nn.Module, *, seen: bool = False
) -> tuple[Chosen, ...]:
    """Find the optimizers that the user means.

    Args:
        optimizer: as a user gives it.
        model: the model that they train.
        seen: whether they were seen to train it. In `torch.func.functional_call` it has other parameters meanwhile.

    Returns:
        One for each optimizer; none for None.

    Raises:
        ProfilingError: there is no optimizer of that name, it cannot be built with its defaults, what is given is no
            optimizer, or one trains none of the model's parameters.
    """
    refuse_no_optimizer(optimizer)
    if optimizer is None:
        return ()
    if isinstance(optimizer, str):
        return (_by_name(optimizer, model),)
    given = optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)
    return tuple(_given(each, model, seen=seen) for each in given)


def refuse_no_optimizer(optimizer: object) -> None:
    """Refuse what is neither an optimizer, several of them, None, nor the name of a class.

    Raises:
        ProfilingError: it is none of these.
    """
    if isinstance(optimizer, str):
        _class_named(optimizer)
    elif optimizer is not None:
        given = optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)
        other = next((each for each in given if not isinstance(each, Optimizer)), None)
        if other is not None or not given:
            raise ProfilingError(
                "optimizer= takes a torch.optim.Optimizer, several of them, or a name such as 'adamw'; found "
                + (f"a {type(other).__name__}" if given else f"an empty {type(optimizer).__name__}")
            )


def optimizer_memory(chosen: Sequence[Chosen], reached: Collection[int], device: Device) -> OptimizerMemory:
    """Return what optimizers hold, and what their steps allocate on top.

    The optimizers are not changed and nothing is computed: their shadows take the steps. Exact except for buffers
    inside kernels; O(operators of two steps).

    Args:
        chosen: the optimizers.
        reached: which of the model's trainable parameters get a gradient in the training step.
        device: where they train.

    Returns:
        The sum of what they hold, and the most that one of their steps needs, since they step one after the other.
    """
    each = [_memory(one, frozenset(reached), device) for one in chosen]
    aside_bytes = _held_bytes((parameter for one in chosen for parameter in one.aside), device)
    return OptimizerMemory(
        state_bytes=sum(memory.state_bytes for memory in each) + aside_bytes,
        step_bytes=max((memory.step_bytes for memory in each), default=0),
        closure_bytes=sum(memory.closure_bytes for memory in each),
        source="; ".join(memory.source for memory in each),
        notes=tuple(note for memory in each for note in memory.notes),
    )


def _by_name(name: str, model: torch.nn.Module) -> Chosen:
    """Build the optimizer of that name with its defaults, over twins of the trainable parameters."""
    kind = _class_named(name)
    twins = [twin_of(parameter) for parameter in parameters_at_rest(model) if parameter.requires_grad]
    try:
        optimizer = kind(twins)
    except Exception as error:
        raise ProfilingError(
            f"{kind.__name__} cannot be built with its defaults over these parameters ({_said(error)}). "
            "Give the optimizer itself: optimizer=my_optimizer."
        ) from error
    return Chosen(optimizer=optimizer, asked=name, leaves={id(twin): i for i, twin in enumerate(twins)})


def _class_named(name: str) -> Any:
    """Return the class of ``torch.optim`` that has that name."""
    kinds = {
        known.lower(): kind
        for known, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    kind = kinds.get(name.lower())
    if kind is None:
        nearest = difflib.get_close_matches(name.lower(), kinds, n=1, cutoff=0.0)[0]
        raise ProfilingError(
            f"torch.optim has no optimizer {shown(name)}; did you mean {nearest!r}? There are "
            f"{', '.join(sorted(kinds))}. Any other can be given itself: optimizer=my_optimizer."
        )
    return kind


def _given(optimizer: Optimizer, model: torch.nn.Module, *, seen: bool) -> Chosen:
    """Check an optimizer that was given, or seen."""
    inner = [value for value in vars(optimizer).values() if isinstance(value, Optimizer)]
    if "param_groups" not in vars(optimizer) and inner:  # a wrapper that passes on another's groups
        return _given(inner[0], model, seen=seen)
    name, owned = type(optimizer).__name__, {id(parameter) for parameter in parameters_at_rest(model)}
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in owned for parameter in trained)
    if foreign == len(trained) and not seen:
        raise ProfilingError(
            f"{name} trains {foreign} parameters, and none of them is one of the {len(owned)} of "
            f"{type(model).__name__}. Give the optimizer that trains this model."
        )
    leaves = {id(p): i for i, p in enumerate(p for p in parameters_at_rest(model) if p.requires_grad)}
    if foreign == len(trained):
        note = f"forward runs with other parameters than those that {name} trains; these count as its state"
        return Chosen(optimizer=optimizer, leaves=leaves, aside=tuple(trained), notes=(note,))
    note = f"{foreign} of the {len(trained)} parameters that {name} trains are not the model's; its state counts whole"
    return Chosen(optimizer=optimizer, leaves=leaves, notes=(note,) if foreign else ())


def _memory(chosen: Chosen, reached: frozenset[int], device: Device) -> OptimizerMemory:
    """What one optimizer needs."""
    optimizer, name = chosen.optimizer, type(chosen.optimizer).__name__
    existed = bool(optimizer.state)

    def gets_gradient(parameter: torch.Tensor) -> bool:
        leaf = chosen.leaves.get(id(parameter))
        return parameter.grad is not None or (parameter.requires_grad and (leaf is None or leaf in reached))

    state_bytes = step_bytes = 0
    try:
        for fused in (False, True):
            groups = [group for group in optimizer.param_groups if bool(group.get("fused")) is fused]
            held, needed = shadow_step(optimizer, groups, gets_gradient, device) if groups else (0, 0)
            state_bytes += held
            step_bytes = max(step_bytes, 0 if fused else needed)  # fused kernels allocate nothing more
    except Exception as error:  # whatever somebody's optimizer does with tensors that have no values
        known = "state" if existed else "options"
        return OptimizerMemory(
            state_bytes=_known_bytes(optimizer, device),
            closure_bytes=_closure_bytes(optimizer, device),
            source=f"{chosen.asked or name}, by its {known}: an estimate",
            notes=(
                *chosen.notes,
                f"the step of {name} could not be followed ({_said(error)}): its state is counted by its {known}, and "
                "what its step needs besides is not",
            ),
        )
    source = f"{name}, {'as it is' if existed or not state_bytes else 'before its first step'}"
    if chosen.asked:
        source = f"{chosen.asked}, by its defaults: an estimate"
    return OptimizerMemory(state_bytes=state_bytes, step_bytes=step_bytes, source=source, notes=chosen.notes)


def _known_bytes(optimizer: Optimizer, device: Device) -> int:
    """Bytes of the state: where it exists, by its tensors; before the first step, and for a history, by the options."""
    exists = {id(parameter) for parameter, values in optimizer.state.items() if values}
    total = 0
    for group in optimizer.param_groups:
        moments = sum(bool(group.get(option)) for option in ("amsgrad", "centered", "momentum"))
        moments += 2 * ("betas" in group) + 2 * ("rho" in group) + ("alpha" in group and "centered" in group)
        moments += 2 * int(group["history_size"]) + _in_closures(group) if "history_size" in group else 0
        coming = [each for each in group["params"] if each.requires_grad]
        if "history_size" not in group:  # state that exists may be smaller, of eight bits, say, than options imply
            coming = [each for each in coming if id(each) not in exists]
        total += moments * sum(rounded(device, each.nbytes) for each in private.parts(coming))
    found = _held_bytes(state_tensors(optimizer), device)
    return max(total, found) if any("history_size" in group for group in optimizer.param_groups) else total + found


def _held_bytes(tensors: Iterable[torch.Tensor], device: Device) -> int:
    """Bytes of the storages of tensors on a device."""
    held = [each for each in tensors if each.layout == torch.strided and each.device == device.at]
    storages = {private.storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in held}
    return sum(rounded(device, size) for size in storages.values())


def _in_closures(group: Mapping[str, Any]) -> int:
    """Return how many copies of all parameters LBFGS holds while its closure runs, at most, besides its history.

    A direction and a gradient. If it iterates, three more: the gradient before, and two that the direction is made of.
    If it searches a line, seven more: the parameters, and gradients along the line. A pair that is left out of the
    history for its curvature is not counted.
    """
    iterates, searches = group.get("max_iter", 2) > 1, group.get("line_search_fn") is not None
    return (5 if iterates else 2) + (7 if searches else 0)


def _closure_bytes(optimizer: Optimizer, device: Device) -> int:
    """Bytes that are held only while a closure runs."""
    groups = [group for group in optimizer.param_groups if "history_size" in group]
    coming = ((each, _in_closures(group)) for group in groups for each in group["params"] if each.requires_grad)
    return sum(times * rounded(device, parameter.nbytes) for parameter, times in coming)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"

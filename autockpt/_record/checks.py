"""What objects tell of a call or a function while it runs: generators, containers, bound parameters and buffers.

Each check compares what was there at the begin with what is there at the end, and gives a reason where a replay would
not do the same. What storages tell is found when the run is over (`refusals.py`).
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves

from .. import _torch_private as private
from .._calls.unrepeatable import why_unrepeatable
from .._calls.values import tensors
from .._data.errors import ProfilingError
from . import refusals
from .fingerprint import PLAIN, attributes_of
from .marks import SeenCall, SeenFunction

States = list[tuple[torch.Generator, torch.Tensor]]


@dataclass(slots=True)
class _Open:
    """A call while it runs, with what has to be compared when it ends."""

    call: SeenCall
    module: torch.nn.Module
    given: object
    leaves: list[torch.Tensor]
    states: States
    devices: set[torch.device]
    parameters: list[int]
    buffers: dict[tuple[str, str], weakref.ref[torch.Tensor] | None]


class Checks:
    """The checks of calls, which stand on a stack while they are open, and of functions, of which one runs at a time.

    Args:
        model: the model.
        fake: whether tensors have no values, so that no generator moves.
    """

    def __init__(self, model: torch.nn.Module, *, fake: bool) -> None:
        self._generators = [] if fake else default_generators()
        self._devices: set[torch.device] = set()  # of what the function was given
        self._attributes = {module: attributes_of(module) for module in model.modules()}
        self._reasons: dict[torch.nn.Module, str] = {}

    def opened(self, call: SeenCall, module: torch.nn.Module, arguments: object) -> _Open:
        """Note what is there as a call begins."""
        leaves = tensors((arguments,))
        shapes = [_shape(tensor) for tensor in (*leaves, *module._parameters.values()) if tensor is not None]
        call.shapes = f"{type(module).__qualname__}{shapes}"
        call.checkpointed = private.foreign_checkpoint_active()
        return _Open(
            call=call,
            module=module,
            given=arguments,
            leaves=leaves,
            states=self._states(),
            devices={tensor.device for tensor in (*leaves, *module.parameters(), *module.buffers())},
            parameters=[*map(private.storage_key, module.parameters())],
            buffers={place: weakref.ref(tensor) if tensor is not None else None for place, tensor in _buffers(module)},
        )

    def closed(self, opened: _Open) -> None:
        """Compare, as a call ends."""
        call = opened.call
        call.reasons += [reason for reason in self._reasons_of(opened) if reason]
        call.bound = [*_bound(opened)]
        leaves = tensors(opened.given)
        call.refilled = len(leaves) != len(opened.leaves) or not all(map(operator.is_, leaves, opened.leaves))

    def sets_itself_up(self) -> bool:
        """Whether modules changed their attributes, as many do in a first forward and never again."""
        return any(attributes_of(module) != before for module, before in self._attributes.items())

    def _reasons_of(self, opened: _Open) -> Iterator[str]:
        opened.call.draws, elsewhere = _drawn(opened.states, opened.devices)
        yield elsewhere
        bound = [*map(private.storage_key, opened.module.parameters())] != opened.parameters
        yield refusals.CHANGES_PARAMETER if bound else ""
        made = opened.call.nested and not any(leaf.is_nested for leaf in opened.leaves)
        yield refusals.MAKES_NESTED if made else ""
        if opened.module not in self._reasons:
            self._reasons[opened.module] = why_unrepeatable(opened.module)
        yield self._reasons[opened.module]

    def _states(self) -> States:
        return [(generator, generator.get_state()) for generator in self._generators]

    def began(self, function: SeenFunction, arguments: object) -> States:
        """Note what is there as a function begins."""
        given = tensors(arguments)
        self._devices = {tensor.device for tensor in given}
        function.unrepeatable = _why_not_alone(arguments, given)
        function.cached_casts = private.any_autocast_enabled() and torch.is_autocast_cache_enabled()
        return self._states()

    def ended(self, function: SeenFunction, states: States, output: object, *, untraced: bool) -> None:
        """Compare, as a function ends.

        Args:
            function: the function.
            states: what `began` returned.
            output: what it returned.
            untraced: whether some tensor of that has no storage.
        """
        function.draws, elsewhere = _drawn(states, self._devices)
        function.unrepeatable = function.unrepeatable or elsewhere
        others = [leaf for leaf in tree_leaves(output) if leaf is not None and not isinstance(leaf, torch.Tensor)]
        function.plain = all(isinstance(each, PLAIN) for each in others)
        function.untraced = untraced
        if others:
            function.unreadable = f"returns something that is no tensor ({type(others[0]).__name__})"


def _why_not_alone(arguments: object, given: list[torch.Tensor]) -> str:
    """Why a function that is given this cannot run again by itself; empty where nothing is known against it."""
    if not torch.is_grad_enabled():
        return "runs while gradients are off"
    if not any(tensor.requires_grad for tensor in given):
        return "is given nothing that requires a gradient"  # and saves nothing, so that no frame records it
    if private.foreign_checkpoint_active():
        return "runs in a torch.utils.checkpoint region of the model's own"
    opaque = [leaf for leaf in tree_leaves(arguments) if not isinstance(leaf, (torch.Tensor, *PLAIN))]
    return f"is given an object whose state a replay does not know ({type(opaque[0]).__name__})" if opaque else ""


def _shape(tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
    if tensor.is_nested and tensor.layout == torch.strided:
        raise ProfilingError(
            "forward passes a nested tensor of layout torch.strided from module to module, which has no shape and "
            "cannot be recorded. Use layout=torch.jagged."
        )
    return tuple(tensor.shape), str(tensor.dtype)


def _buffers(module: torch.nn.Module) -> Iterator[tuple[tuple[str, str], torch.Tensor | None]]:
    """The buffers inside a module, by path and name."""
    for path, member in module.named_modules():
        for name, buffer in member._buffers.items():
            yield (path, name), buffer


def _bound(opened: _Open) -> Iterator[str]:
    """Qualified names of the buffers that a call bound to other tensors, to None, or for the first time."""
    now = dict(_buffers(opened.module))
    for place in dict.fromkeys((*opened.buffers, *now)):
        reference, tensor = opened.buffers.get(place), now.get(place)
        before = reference() if reference is not None else None
        if before is tensor and (reference is not None) == (tensor is not None):
            continue
        if before is not None and tensor is not None and _equal(before, tensor):
            continue
        yield ".".join(part for part in (opened.call.name, *place) if part)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    plain = one.layout == other.layout == torch.strided and private.fake_mode_of(one) is None
    return plain and one.dtype == other.dtype and torch.equal(one, other)


def default_generators() -> list[torch.Generator]:
    """Those of the devices in use, whose states a replay puts back."""
    cuda = torch.cuda.is_available() and private.cuda_in_use()
    return [torch.default_generator, *(torch.cuda.default_generators if cuda else ())]


def _drawn(states: States, devices: set[torch.device]) -> tuple[bool, str]:
    """Whether a generator has moved, and a reason where it is one of a device on which no tensor was given."""
    moved = [generator.device for generator, before in states if not torch.equal(generator.get_state(), before)]
    elsewhere = [device for device in moved if device.type != "cpu" and device not in devices]
    return bool(moved), refusals.DRAWS_ELSEWHERE.format(elsewhere[0]) if elsewhere else ""

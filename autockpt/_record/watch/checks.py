"""Checks on Python objects around each call or function: generators, containers, replaced parameters and buffers.

Each check compares the state at the begin with that at the end, and gives a reason if a replay would not do the same.
Checks on storages come after the run (`_record/refusals.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch.utils._pytree import tree_leaves

from ..._calls.found.around import state_of
from ..._calls.unrepeatable import why_unrepeatable
from ..._calls.values import tensors
from ..._ranks.refuse import ON_SEVERAL_RANKS
from ..._torch import private
from ..._torch.devices.present import generators
from .marks import SeenCall, SeenFunction

TorchStates: TypeAlias = list[tuple[torch.Generator, bytearray]]
_Place: TypeAlias = tuple[str, str]

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.Size, type)
"""Types whose values cannot change."""

CHANGES_PARAMETER = "changes a parameter in place, which a replay would do again"

MAKES_NESTED = "makes a nested tensor, and torch would take the lengths of a replayed one for other lengths"
"""Torch identifies the lengths of a nested tensor by the offsets tensor object, and a replay makes another object."""

RETURNS = "returns something that is no tensor ({})"

RETURNS_NESTED = "returns a nested tensor, and none without values can stand for it"

CHANGES_OBJECTS = "changes an attribute, or something that it is given"

DRAWS = "draws random numbers on a device"
DRAWS_ELSEWHERE = DRAWS + " ({}) on which it is given no tensor"

_COMPARED_ELSEWHERE = frozenset(
    {
        *("_parameters", "_buffers", "_modules", "forward", "_compiled_call_impl"),
        *("__reduce_ex__", "__deepcopy__", "compile"),
    }
)
"""Keys of a module's ``__dict__`` that are no plain attributes. ``forward`` there, or what stands in its place in a
compiled module, is the recorder's own patch; the last three lie beside the patches of a plan."""


class Checks:
    """Checks calls and functions. Each method is called at the begin, and returns what to call at the end.

    Args:
        model: the model.
        fake: whether tensors are fake, so that no generator advances.
    """

    def __init__(self, model: torch.nn.Module, *, fake: bool) -> None:
        self._generators = [] if fake else generators()
        self._attributes = {module: _attributes_of(module) for module in model.modules()}
        self._reasons: dict[torch.nn.Module, str] = {}

    def sets_itself_up(self) -> bool:
        """Whether modules changed their attributes. Many do so in their first forward only."""
        return any(_attributes_of(module) != before for module, before in self._attributes.items())

    def of_call(
        self, call: SeenCall, around: SeenCall, module: torch.nn.Module, arguments: object
    ) -> Callable[[object], None]:
        """Note the state as a call begins, inside another; return what to call with its output as it ends."""
        leaves, states = tensors((arguments,)), self._states()
        devices = {tensor.device for tensor in (*leaves, *module.parameters(), *module.buffers())}
        parameters = [*map(private.storage_key, module.parameters())]
        buffers = {place: weakref.ref(tensor) if tensor is not None else None for place, tensor in _buffers(module)}
        shapes = [_shape(tensor) for tensor in (*leaves, *module._parameters.values()) if tensor is not None]
        call.shapes = f"{type(module).__qualname__}{shapes}"
        call.checkpointed = private.foreign_checkpoint_active()
        if module not in self._reasons:
            self._reasons[module] = why_unrepeatable(module)

        objects = _around(module, arguments)

        def ended(output: object) -> None:
            # What it leaves behind, beside its result, is left behind by the call around it too.
            call.traces = call.traces or _traces(objects, module, arguments, output)
            around.traces = around.traces or call.traces
            call.draws, elsewhere = _drawn(states, devices)
            changes = [*map(private.storage_key, module.parameters())] != parameters
            nests = call.nested and not any(leaf.is_nested for leaf in leaves)
            reasons = [elsewhere, CHANGES_PARAMETER if changes else "", MAKES_NESTED if nests else ""]
            call.reasons += filter(None, [*reasons, self._reasons[module]])
            call.bound = [".".join(part for part in (call.name, *place) if part) for place in _bound(module, buffers)]

        return ended

    def of_function(self, function: SeenFunction, arguments: object) -> Callable[[object], None]:
        """Note the state as a function begins; return what to call with its output as it ends."""
        given, states = tensors(arguments), self._states()
        devices = {tensor.device for tensor in given}
        function.unrepeatable = _why_not_alone(arguments, given)
        if private.process_group() and any(map(private.is_distributed, given)):
            function.unrepeatable = function.unreadable = ON_SEVERAL_RANKS
        function.cached_casts = private.any_autocast_enabled() and torch.is_autocast_cache_enabled()

        def ended(output: object) -> None:
            function.draws, elsewhere = _drawn(states, devices)
            function.unrepeatable = function.unrepeatable or elsewhere
            others = _no_tensors(output)
            function.plain = all(isinstance(each, PLAIN) for each in others)
            if others and not function.unreadable:
                function.unreadable = RETURNS.format(type(others[0]).__name__)

        return ended

    def _states(self) -> TorchStates:
        return [(generator, state_of(generator)) for generator in self._generators]


def _no_tensors(output: object) -> list[object]:
    return [leaf for leaf in tree_leaves(output) if leaf is not None and not isinstance(leaf, torch.Tensor)]


def _around(module: torch.nn.Module, arguments: object) -> object:
    """Return what differs if a call's own code changes attributes of its module and those in it, or its arguments.

    Modules further inside are looked at around their own calls: else the time would grow with depth.
    """
    return [_attributes_of(each) for each in (module, *module.children())], _fingerprint(arguments, 4)


def _traces(before: object, module: torch.nn.Module, arguments: object, output: object) -> str:
    """Why more than its result may tell that a call ran; empty if no reason is known."""
    others = [each for each in _no_tensors(output) if not isinstance(each, PLAIN)]
    if others:
        return RETURNS.format(type(others[0]).__name__)
    if any(each.is_nested for each in tensors(output)):
        return RETURNS_NESTED
    return "" if before == _around(module, arguments) else CHANGES_OBJECTS


def _why_not_alone(arguments: object, given: list[torch.Tensor]) -> str:
    """Why a function with these arguments cannot be run again by itself; empty if no reason is known."""
    if not torch.is_grad_enabled():
        return "runs while gradients are off"
    if not any(tensor.requires_grad for tensor in given):
        return "is given nothing that requires a gradient"  # it saves nothing, so no frame records it
    if private.foreign_checkpoint_active():
        return "runs in what the model recomputes itself"
    opaque = [leaf for leaf in tree_leaves(arguments) if not isinstance(leaf, (torch.Tensor, *PLAIN))]
    return f"is given an object whose state a replay does not know ({type(opaque[0]).__name__})" if opaque else ""


def _shape(tensor: torch.Tensor) -> tuple[tuple[object, ...], str]:
    return private.sizes(tensor), str(tensor.dtype)


def _buffers(module: torch.nn.Module) -> Iterator[tuple[_Place, torch.Tensor | None]]:
    """Yield the buffers inside a module, each with its submodule's path and its own name."""
    for path, member in module.named_modules():
        for name, buffer in member._buffers.items():
            yield (path, name), buffer


def _bound(module: torch.nn.Module, buffers: Mapping[_Place, weakref.ref[torch.Tensor] | None]) -> Iterator[_Place]:
    """Yield where a call replaced a buffer: by a tensor with other values, by None, or None by a tensor.

    Args:
        module: the module that was called.
        buffers: its buffers before the call.
    """
    now = dict(_buffers(module))
    for place in dict.fromkeys((*buffers, *now)):
        reference, tensor = buffers.get(place), now.get(place)
        before = reference() if reference is not None else None
        if before is tensor and (reference is not None) == (tensor is not None):
            continue
        if before is None or tensor is None or not _equal(before, tensor):
            yield place


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    plain = one.layout == other.layout == torch.strided and private.fake_mode_of(one) is None
    return plain and one.dtype == other.dtype and torch.equal(one, other)


def _drawn(states: TorchStates, devices: set[torch.device]) -> tuple[bool, str]:
    """Whether a generator advanced; and a reason, if that was on a device on which no tensor was given."""
    moved = [generator.device for generator, before in states if state_of(generator) != before]
    elsewhere = [device for device in moved if device.type != "cpu" and device not in devices]
    return bool(moved), DRAWS_ELSEWHERE.format(elsewhere[0]) if elsewhere else ""


def _attributes_of(module: torch.nn.Module) -> object:
    """Return what differs if forward rebinds or changes an attribute of a module; children are left out."""
    return [(key, _fingerprint(value, 2)) for key, value in vars(module).items() if key not in _COMPARED_ELSEWHERE]


def _fingerprint(value: object, depth: int) -> object:
    """Return tensors as identity and version, and containers and objects as their contents, `depth` levels deep."""
    if isinstance(value, torch.Tensor):
        return id(value), private.version(value)
    if isinstance(value, PLAIN):
        return value
    if depth == 0 or isinstance(value, (torch.nn.Module, torch.Generator)) or callable(value):
        return id(value)
    if isinstance(value, (list, tuple)):
        return tuple(_fingerprint(item, depth - 1) for item in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(map(id, value))
    items = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return tuple((str(key), _fingerprint(item, depth - 1)) for key, item in items.items())

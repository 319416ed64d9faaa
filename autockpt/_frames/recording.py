"""A frame in the making: members join it while their parent's forward runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from .. import _torch_private
from .._calls.values import encode, not_simple, tensors
from .around import Around, Generator, generators_of, needed, states_of
from .frame import Call, Frame, unpack
from .leaves import Recorded, called, source_of
from .saved import BOUNDARY, Detached, OwnedSlot, Packed, Ref, Slot
from .state import ModuleState
from .thread import Place, Scope, mismatch, thread

if TYPE_CHECKING:
    from .nets import Nets

_State: TypeAlias = tuple[int, bool, list[tuple[str, int]]]


class Recording:
    """An open frame, with what is needed only while it is open.

    Args:
        segment: number of the plan's segment.
        nets: what compares its replay; None where nothing does.

    Attributes:
        frame: the frame.
        segment: the same.
        position: position in it of the last member that joined.
    """

    __slots__ = ("_known", "_reached", "frame", "position", "segment")

    def __init__(self, segment: int, nets: Nets | None) -> None:
        self.segment = segment
        self.position = -1
        self.frame = Frame(None if nets is None else nets.trial(segment))
        self._reached: dict[Generator, Any] = {}  # where a replay's generators would stand after the calls so far
        self._known: dict[int, tuple[weakref.ref[Tensor], _State, Ref]] = {}

    def takes(self, place: Place) -> bool:
        """Whether the member at `place` may join."""
        return place.segment == self.segment and place.position > self.position

    def run(
        self,
        key: str,
        forward: Callable[..., Any],
        state: ModuleState,
        place: Place,
        scope: Scope,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a member's `forward` so that the frame can run it again; its `state` has just been taken."""
        self.position = place.position
        frame, number = self.frame, len(self.frame.calls)
        call = self._begun(key, forward, state, args, kwargs)
        if place.linked and number and all(ref.call == BOUNDARY for ref in call.refs):
            mismatch(scope.table, key, "takes no result of the calls before it in its segment any more")
        frame.calls.append(call)
        pack, before, outer = Pack(frame, state.owners), call.random, thread.leaves
        if place.selective:
            call.leaves = Recorded(scope, pack, call.generators)
        try:
            # Pushed as the first of this block, and popped as the first of the last: no interrupt falls in between.
            _torch_private.push_hooks(pack.hook, unpack)
            if call.leaves is None:
                result = forward(*args, **kwargs)
            else:
                thread.leaves = call.leaves
                result = called(call.leaves, key, forward, args, kwargs)
        finally:
            thread.leaves = outer
            try:
                _torch_private.pop_hooks()
            finally:
                pack.close()
        state.settle()
        call.end = len(frame.slots)
        call.random = needed(before, self._reached)
        results = tensors(result)
        if frame.trial is not None:
            frame.trial.ends(call, results)
        for index, tensor in enumerate(results):
            self._know(tensor, Ref(number, index))
        return result

    def _begun(
        self, key: str, forward: Callable[..., Any], state: ModuleState, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """Return a call that begins, with the state of every generator that it may draw from."""
        leaves: list[Tensor] = []
        templates = encode((*args, *kwargs.values()) if kwargs else args, leaves)
        devices = state.devices
        devices.update([leaf.device for leaf in leaves if not leaf.is_cpu])
        refs = [self._refer(leaf) for leaf in leaves]
        call = Call(key, forward, templates, tuple(kwargs), refs, state, Around(devices))
        call.generators = generators_of(devices, not_simple(templates))
        if self.frame.trial is not None and (others := self.frame.trial.begins(call, leaves)):
            call.generators = list(dict.fromkeys([*call.generators, *others]))
        call.random = states_of(call.generators)
        return call

    def _refer(self, tensor: Tensor) -> Ref:
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == _state_of(tensor):
            return known[2]
        ref, hooks = Ref(BOUNDARY, len(self.frame.boundary)), _torch_private.outer_hooks()
        # Hooks around the model, such as save_on_cpu, decide where the boundary waits.
        held = Detached(tensor, "a tensor that it reads") if hooks is None else Packed(tensor, hooks)
        self.frame.boundary.append(held)
        self._know(tensor, ref)
        return ref

    def _know(self, tensor: Tensor, ref: Ref) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), _state_of(tensor), ref)


def _state_of(tensor: Tensor) -> _State:
    """Return what the caller's own code may change of a result before the next call, what it puts on it included."""
    tags = [(name, id(value)) for name, value in tensor.__dict__.items()]
    return _torch_private.version(tensor), tensor.requires_grad, tags


class Pack:
    """The pack hook of one member's forward. Autograd keeps it as long as what it packed, so it must hold nothing.

    Attributes:
        inputs: arguments of the leaf that is running.
        sources: what it saved of them, by slot.
        slots: those of the frame.
    """

    __slots__ = ("_frame", "_owners", "inputs", "slots", "sources")

    def __init__(self, frame: Frame, owners: dict[int, Tensor]) -> None:
        self.inputs: list[Tensor] | None = None
        self.sources: list[tuple[int, int]] = []
        self._frame: Frame | None = frame
        self.slots = frame.slots
        self._owners = owners

    @_torch_private.never_compiled
    def hook(self, tensor: Tensor) -> Slot | OwnedSlot | Detached:
        """Return what autograd is to hold for `tensor`: only a `Slot` lets go of it."""
        frame = self._frame
        assert frame is not None
        storage = _torch_private.storage_key(tensor)
        owner = self._owners.get(storage)
        if owner is not None:
            if self.inputs is None:
                self.slots.append(None)
            return OwnedSlot(owner, tensor)
        if self.inputs is not None:  # in a leaf, whose replay packs nothing
            source = source_of(tensor, storage, self.inputs)
            if source is None:
                return Detached(tensor, "a tensor that a kept call saved")
            self.sources.append(source)
        slot = Slot(frame, tensor)
        self.slots.append(weakref.ref(slot))
        if frame.trial is not None and frame.trial.compares:
            frame.trial.saves(slot, tensor)
        return slot

    def close(self) -> None:
        """Let go of the frame and of the parameters."""
        self._frame, self._owners, self.slots = None, {}, []

"""An open frame: members join it while their parent's forward runs."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from ..._calls.found.around import Around, Generator, generators_of, needed, states_of
from ..._calls.found.held import BOUNDARY, READ, Detached, Packed, Ref
from ..._calls.found.state import ModuleState
from ..._calls.values import encode, not_simple, tensors
from ..._torch import private
from .frame import Frame, MemberCall, Replayer, Within, unpack
from .pack import Pack
from .table import Place
from .thread import Scope, mismatch, thread
from .units import UnitRecorder, called
from .waiting.moved import MovedBoundary, Moves

_is_on_cpu = operator.attrgetter("is_cpu")

_State: TypeAlias = tuple[int, bool, list[tuple[str, int]]]


class Recording:
    """An open frame, with what is needed only while it is open.

    Args:
        segment: number of the plan's segment.
        replayer: replays the frame.
        moves: moves the boundary off the device; None if it stays.

    Attributes:
        frame: the frame.
        segment: the same.
        position: position, in the segment, of the last member that joined; -1 before the first.
        packs: makes the pack hooks of members.
    """

    __slots__ = ("_known", "_moves", "_reached", "frame", "position", "segment")
    packs: ClassVar[type[Pack]] = Pack

    def __init__(self, segment: int, replayer: Replayer, moves: Moves | None = None) -> None:
        self.segment = segment
        self.position = -1
        self._moves = moves
        self.frame = Frame(replayer)
        self.frame.moves = moves is not None
        self._reached: dict[Generator, Any] = {}  # states that a replay's generators would have after the calls so far
        self._known: dict[int, tuple[weakref.ref[Tensor], _State, Ref]] = {}

    def takes(self, place: Place) -> bool:
        """Whether the member at `place` may join."""
        return place.segment == self.segment and place.position > self.position

    def close(self) -> None:
        """Let no further member join."""
        self.frame.closed = True

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
        frame, number, hooks = self.frame, len(self.frame.calls), _theirs()
        call = self._begun(key, forward, state, place, scope, args, kwargs, hooks)
        frame.calls.append(call)
        pack, before, outer, back = self.packs(frame, state.owners), call.random, thread.units, unpacked_by(hooks)
        recorder = UnitRecorder(scope, pack, call.generators, before) if place.selective else None
        try:
            # The push is the first call of this block, and the pop that of its own: no interrupt leaves one undone.
            private.push_hooks(pack.hook, back)
            if recorder is None:
                result = forward(*args, **kwargs)
            else:
                thread.units, call.units = recorder, recorder.units
                result = called(recorder, key, forward, args, kwargs)
        finally:
            thread.units = outer
            try:
                private.pop_hooks()
            finally:
                pack.close()
                state.forward_ends()
        if pack.error is not None:
            pack.tell(key)
        state.settle()
        call.end = len(frame.slots)
        call.random = needed(before, self._reached)
        if frame.replayer.compares:
            frame.replayer.ends(call, tensors(result))
        if not place.last:
            self._know(number, tensors(result))
        return result

    def _know(self, number: int, results: Sequence[Tensor]) -> None:
        """Remember the results of a call, which later calls may be given."""
        for index, tensor in enumerate(results):
            self._known[id(tensor)] = (weakref.ref(tensor), _state_of(tensor), Ref(number, index))

    def _begun(
        self,
        key: str,
        forward: Callable[..., Any],
        state: ModuleState,
        place: Place,
        scope: Scope,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        hooks: private.Hooks | None,
    ) -> MemberCall:
        """Return a call that begins, with the state of every generator that it may draw from.

        `hooks` are the saved-tensor hooks around the member.
        """
        given: list[Tensor] = []
        templates = encode((*args, *kwargs.values()) if kwargs else args, given)
        devices = state.devices
        if not all(map(_is_on_cpu, given)):
            devices.update([tensor.device for tensor in given if not tensor.is_cpu])
        alone = place.last and not self._known
        refs = self._only(given, hooks) if alone else [self._refer(tensor, hooks) for tensor in given]
        call = MemberCall(key, forward, templates, tuple(kwargs), refs, state, Around(devices))
        if place.linked and self.frame.calls and all(ref.call == BOUNDARY for ref in refs):
            mismatch(scope.table, key, "takes no result of the calls before it in its segment any more")
        if place.cut:
            call.cut, self._reached = place.cut, {}  # a part that begins here knows no generator's state
        if place.inner is not None:
            call.within = Within(scope.handle, place.inner, dict(scope.counts))
        if state.member is not None and (place.position or not place.last):
            call.fsdp_unit = private.unit_of(state.member)
        call.generators = generators_of(devices, not_simple(templates))
        if others := self.frame.replayer.begins(call, given):
            call.generators = list(dict.fromkeys([*call.generators, *others]))
        call.random = states_of(call.generators)
        return call

    def _only(self, given: Sequence[Tensor], hooks: private.Hooks | None) -> list[Ref]:
        """As `_refer` for all arguments of a frame's only call: no later call is given one of them again."""
        boundary, known = self.frame.boundary, dict[int, Ref]()
        for tensor in given:
            if id(tensor) not in known:
                known[id(tensor)] = Ref(BOUNDARY, len(boundary))
                boundary.append(self._held(tensor, hooks))
        return [*map(known.__getitem__, map(id, given))]

    def _refer(self, tensor: Tensor, hooks: private.Hooks | None) -> Ref:
        """Return where a replay finds an argument; `hooks` are those around the member."""
        known, state = self._known.get(id(tensor)), _state_of(tensor)
        if known is not None and known[0]() is tensor and known[1] == state:
            return known[2]
        if self._known and (before := private.given_to_unit(tensor)) is not None:
            for each, state, ref in self._known.values():
                made = each()
                if made is not None and (made.grad_fn, made.output_nr) == before and state == _state_of(made):
                    return ref
        ref = Ref(BOUNDARY, len(self.frame.boundary))
        self.frame.boundary.append(self._held(tensor, hooks))
        self._known[id(tensor)] = (weakref.ref(tensor), state, ref)
        return ref

    def _held(self, tensor: Tensor, hooks: private.Hooks | None) -> Detached:
        """Return what holds a tensor of the boundary."""
        if hooks is not None:  # such as save_on_cpu: they decide where the boundary waits
            return Packed(tensor, hooks)
        moved = None if self._moves is None else self._moved(tensor)
        return Detached(tensor, READ) if moved is None else moved

    def _moved(self, tensor: Tensor) -> MovedBoundary | None:
        """Move a tensor of the boundary off the device; return None if it stays."""
        if self._moves is None or tensor.grad_fn is None:
            return None
        storage = self._moves.storage_of(tensor)
        return None if storage is None else MovedBoundary(tensor, storage)


def _theirs() -> private.Hooks | None:
    """Return the saved-tensor hooks around the member; None in a replay, whose hooks are its own."""
    return None if thread.replays else private.outer_hooks()


def unpacked_by(hooks: private.Hooks | None) -> Callable[[Any], Tensor]:
    """Return what brings a saved tensor back where hooks of the user's are around: as these do, rounded for one."""
    if hooks is not None and isinstance(getattr(hooks[0], "__self__", None), Pack):
        return hooks[1]  # of a frame around this one: it rounds if hooks around that do
    if hooks is None or private.only_move(hooks):
        return unpack
    theirs, back = hooks

    def unpacked(held: Any) -> Tensor:
        with torch.no_grad():
            tensor: Tensor = back(theirs(unpack(held)))
        return tensor

    return unpacked


def _state_of(tensor: Tensor) -> _State:
    """Return what the caller's own code may change on a result before the next call, including its attributes."""
    every = tensor.__dict__
    tags = [(name, id(value)) for name, value in every.items()] if every else []
    try:  # as `version`
        return tensor._version, tensor.requires_grad, tags
    except RuntimeError:
        return -1, tensor.requires_grad, tags

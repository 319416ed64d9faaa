"""A frame in the making: members join it while their parent's forward runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _torch_private
from .frame import BOUNDARY, Call, Frame, Held, ParameterSlot, Slot, unpack
from .generators import GeneratorTrack, generators_of
from .state import Autocast, ModuleState
from .tree import Ref, encode, tensors

__all__ = ["Recording"]


class Recording:
    """An open frame, with what is needed only while it is open.

    Attributes:
        segment: number of the plan's segment.
        position: position in it of the last member that joined.
    """

    __slots__ = ("_frame", "_generators", "_known", "position", "segment")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.position = -1
        self._frame = Frame()
        self._generators = GeneratorTrack()
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Ref]] = {}

    def takes(self, segment: int, position: int) -> bool:
        """Whether the member at `position` of `segment` may join."""
        return segment == self.segment and position > self.position

    def run(
        self,
        key: str,
        forward: Callable[..., Any],
        state: ModuleState,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Tensor],
    ) -> Any:
        """Run a member's forward so that the frame can run it again.

        Args:
            key: the call's key.
            forward: the member's own forward.
            state: the member's state, just taken.
            args: its positional arguments.
            kwargs: its keyword arguments.
            leaves: the tensors in both.

        Returns:
            What `forward` returns.
        """
        frame = self._frame
        devices = state.devices
        for leaf in leaves:
            if not leaf.is_cpu:
                devices.add(leaf.device)
        refs: list[Ref] = []

        def refer(tensor: Tensor) -> Ref:
            refs.append(self._refer(tensor))
            return refs[-1]

        arguments = encode((args, kwargs), refer)
        passed = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
        before = [(generator, generator.get_state()) for generator in generators_of(devices, passed)]
        call = Call(key, forward, arguments, refs, state, Autocast(devices), before)
        number = len(frame.calls)
        frame.calls.append(call)
        _torch_private.push_hooks(_Pack(frame, state.owners), unpack)
        try:
            result = forward(*args, **kwargs)
        finally:
            _torch_private.pop_hooks()
        call.end = len(frame.slots)
        call.random = self._generators.needed(before)
        state.settle()
        for leaf, tensor in enumerate(tensors(result)):
            self._know(tensor, Ref(number, leaf))
        return result

    def _refer(self, tensor: Tensor) -> Ref:
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == _torch_private.version(tensor):
            return known[2]
        ref = Ref(BOUNDARY, len(self._frame.boundary))
        self._frame.boundary.append(Held(tensor))
        self._know(tensor, ref)
        return ref

    def _know(self, tensor: Tensor, ref: Ref) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), _torch_private.version(tensor), ref)


class _Pack:
    """The pack hook of one member's forward."""

    __slots__ = ("_frame", "_owners")

    def __init__(self, frame: Frame, owners: dict[int, Tensor]) -> None:
        self._frame = frame
        self._owners = owners

    def __call__(self, tensor: Tensor) -> Slot | ParameterSlot:
        owner = self._owners.get(_torch_private.storage_key(tensor))
        slot = Slot(self._frame, tensor) if owner is None else ParameterSlot(owner, tensor)
        self._frame.slots.append(weakref.ref(slot))
        return slot

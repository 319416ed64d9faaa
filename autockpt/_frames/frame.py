"""The frame: one execution of a segment, and how it is replayed.

    autograd's nodes ──▶ slots ──▶ frame ──▶ calls, boundary          (──▶ strong, ··▶ weak)
                           ▲·········┘

Slots hold their frame, the frame knows its slots weakly: when autograd has released the last slot, the frame and its
boundary die at once, by reference count alone. A replayed value lives on its slot and dies with it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _torch_private
from .._errors import ReplayError
from .generators import States, set_states, unmoved
from .state import Autocast, ModuleState
from .thread import thread
from .tree import Ref, decode, tensors

__all__ = ["Call", "Frame", "Held", "ParameterSlot", "Slot", "unpack"]

BOUNDARY = -1
"""`Ref.call` of what the boundary holds."""

_MODIFIED = (
    "a tensor that a recomputed segment needs has been modified by an inplace operation: {what} of shape {shape} is at "
    "version {now}; version {then} was expected. Keep the call that reads it, or do not change it before backward."
)


class Slot:
    """What autograd holds in the place of a saved tensor."""

    __slots__ = ("__weakref__", "device", "dtype", "frame", "node", "shape", "stride", "value")

    def __init__(self, frame: Frame, tensor: Tensor) -> None:
        self.frame = frame
        self.shape = tensor.shape
        self.stride = tensor.stride()
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.node = type(tensor.grad_fn)
        self.value: Tensor | None = None

    def difference(self, tensor: Tensor) -> str | None:
        """Say in what the replay's `tensor` differs from what forward saved here; None if in nothing."""
        for name, then, now in (
            ("shape", tuple(self.shape), tuple(tensor.shape)),
            ("stride", self.stride, tensor.stride()),
            ("dtype", self.dtype, tensor.dtype),
            ("device", self.device, tensor.device),
        ):
            if then != now:
                return f"{name} {now} instead of {then}"
        node = type(tensor.grad_fn)
        # A tensor of the boundary is a leaf in the replay, whatever it was in forward.
        if node is not self.node and node is not type(None) and self.node is not type(None):
            return f"a result of {node.__name__} instead of {self.node.__name__}"
        return None


class ParameterSlot:
    """A saved tensor whose storage is a parameter's or buffer's: that very object, seen through size and stride."""

    __slots__ = ("__weakref__", "_owner", "_stride", "_version", "offset", "shape")

    def __init__(self, owner: Tensor, tensor: Tensor) -> None:
        self._owner = owner
        self._version = _torch_private.version(owner)
        self.shape = tensor.shape
        self._stride = tensor.stride()
        self.offset = tensor.storage_offset()

    def tensor(self) -> Tensor:
        """Return the saved tensor.

        Raises:
            RuntimeError: the owner was changed in place since.
        """
        owner = self._owner
        now = _torch_private.version(owner)
        if now != self._version:
            raise RuntimeError(
                _MODIFIED.format(what="a parameter or buffer", shape=tuple(owner.shape), now=now, then=self._version)
            )
        with torch.no_grad():
            return owner.as_strided(self.shape, self._stride, self.offset)


class Held:
    """A tensor of the boundary, detached: with its own `grad_fn` it would lead back to the frame, a leak."""

    __slots__ = ("_packed", "_requires_grad", "_unpack", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._requires_grad = tensor.requires_grad
        self._unpack: Callable[[Any], Tensor] | None = None
        self._version = 0
        self._packed: Any = tensor.detach()
        hooks = _torch_private.outer_hooks()
        if hooks is not None:  # the user's own hooks, such as save_on_cpu, decide where the boundary waits
            pack, self._unpack = hooks
            with torch.no_grad():
                self._packed = pack(self._packed)
        else:
            self._version = _torch_private.version(self._packed)

    def tensor(self) -> Tensor:
        """Return the tensor as a leaf.

        Raises:
            RuntimeError: it was changed in place since.
        """
        if self._unpack is not None:
            tensor = self._unpack(self._packed)
        else:
            tensor = self._packed
            now = _torch_private.version(tensor)
            if now != self._version:
                raise RuntimeError(
                    _MODIFIED.format(what="a tensor", shape=tuple(tensor.shape), now=now, then=self._version)
                )
        return tensor.detach().requires_grad_(self._requires_grad)


class Call:
    """One member's call, with what a replay of it needs.

    Attributes:
        key: the call's key.
        forward: what to call.
        arguments: encoded (args, kwargs).
        refs: the references in `arguments`, in order.
        module: the module's state.
        autocast: autocast's settings.
        random: generator states to set before it.
        end: number of slots in the frame when it returned; None if it did not.
    """

    __slots__ = ("arguments", "autocast", "end", "forward", "key", "module", "random", "refs")

    def __init__(
        self,
        key: str,
        forward: Callable[..., Any],
        arguments: Any,
        refs: list[Ref],
        module: ModuleState,
        autocast: Autocast,
        random: States,
    ) -> None:
        self.key = key
        self.forward = forward
        self.arguments = arguments
        self.refs = refs
        self.module = module
        self.autocast = autocast
        self.random = random
        self.end: int | None = None


class Frame:
    """One execution of a segment.

    Attributes:
        calls: the calls so far, in order.
        boundary: the tensors from outside.
        slots: everything the calls packed, in order.
    """

    __slots__ = ("__weakref__", "boundary", "calls", "slots")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.boundary: list[Held] = []
        self.slots: list[weakref.ref[Slot | ParameterSlot]] = []

    def replay(self) -> None:
        """Run the calls again and fill every slot that is still alive and empty.

        Raises:
            ReplayError: the calls did not save the same tensors as before.
            RuntimeError: a tensor they need has been changed in place.
        """
        last = -1
        for number, ref in enumerate(self.slots):
            slot = ref()
            if type(slot) is Slot and slot.value is None:
                last = number
            del slot
        if last < 0:
            return
        calls, start = [], 0
        for call in self.calls:
            if start > last:
                break
            calls.append(call)
            start = len(self.slots) if call.end is None else call.end
        last_use = {ref: number for number, call in enumerate(calls) for ref in call.refs}
        values: dict[Ref, Tensor] = {}
        hooks = _ReplayHooks(self.slots, last)
        generators = {generator for call in calls for generator, _ in call.random}
        with thread.replay(), torch.enable_grad(), unmoved(generators):
            for number, call in enumerate(calls):
                hooks.call = call
                result = self._run(call, number, last_use, values, hooks)
                if hooks.stopped:
                    break
                for leaf, tensor in enumerate(tensors(result)):
                    if Ref(number, leaf) in last_use:
                        values[Ref(number, leaf)] = tensor
                    del tensor
                del result
        if hooks.problem is not None:
            raise ReplayError(hooks.problem)

    def _run(
        self, call: Call, number: int, last_use: dict[Ref, int], values: dict[Ref, Tensor], hooks: _ReplayHooks
    ) -> Any:
        """Run `call` and return its result, None if the replay ended in it."""

        def find(ref: Ref) -> Tensor:
            tensor = values.get(ref)
            if tensor is None:
                tensor = values[ref] = self.boundary[ref.index].tensor()
            return tensor

        set_states(call.random)
        args, kwargs = decode(call.arguments, find)
        for ref in call.refs:
            if last_use[ref] == number:
                values.pop(ref, None)
        with contextlib.ExitStack() as stack:
            stack.enter_context(call.module.restored())
            call.autocast.enter(stack)
            _torch_private.push_hooks(hooks.pack, _as_packed)
            try:
                result = call.forward(*args, **kwargs)
                hooks.returned()
                return result
            except _Stop:
                return None
            finally:
                _torch_private.pop_hooks()


class _Stop(BaseException):
    """Ends a replay from inside a module's forward; no `except Exception` there may catch it."""


class _ReplayHooks:
    """The pack hook of one replay."""

    __slots__ = ("_last", "_next", "_slots", "call", "problem", "stopped")

    def __init__(self, slots: list[weakref.ref[Slot | ParameterSlot]], last: int) -> None:
        self._slots = slots
        self._last = last
        self._next = 0
        self.call: Call | None = None
        self.stopped = False
        self.problem: str | None = None

    def pack(self, tensor: Tensor) -> Tensor:
        """Fill the next slot with `tensor`, and end the replay if it was the last."""
        if self.stopped:  # the module caught the signal and went on
            raise _Stop
        assert self.call is not None
        number = self._next
        self._next += 1
        if self.call.end is not None and number >= self.call.end:
            self._stop("saved more tensors than its forward did")
        slot = self._slots[number]()
        value = tensor.detach()  # undetached it would hold the replay's graph, and that the slots
        if type(slot) is Slot and slot.value is None:
            difference = slot.difference(tensor)
            if difference is not None:
                self._stop(f"saved {difference}")
            slot.value = value
        del slot
        if number == self._last:
            self._stop(None)
        return value

    def returned(self) -> None:
        """Check, when a call returns, that it saved as many tensors as in forward."""
        assert self.call is not None
        if not self.stopped and self.call.end not in (None, self._next):
            with contextlib.suppress(_Stop):
                self._stop("saved fewer tensors than its forward did")

    def _stop(self, problem: str | None) -> None:
        self.stopped = True
        if problem is not None:
            assert self.call is not None
            self.problem = (
                f"the replay of {self.call.key} {problem}. Something it reads is not as it was in forward; "
                "keep this call, or make its forward repeat itself."
            )
        raise _Stop


def unpack(slot: Slot | ParameterSlot) -> Tensor:
    """Return the saved tensor of `slot`, recomputing its frame if it has none."""
    if isinstance(slot, ParameterSlot):
        return slot.tensor()
    if slot.value is None:
        slot.frame.replay()
        if slot.value is None:
            raise ReplayError("the replay ended before it reached a tensor that backward needs")
    return slot.value


def _as_packed(tensor: Tensor) -> Tensor:
    return tensor

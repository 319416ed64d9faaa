"""One replay: the calls of a frame once more, until the last slot that is still needed is full."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import _torch_private
from ..._calls.values import decode, encode, not_simple, tensors
from ..._data.errors import ReplayError
from .call import Call, Ref
from .claims import Claim
from .generators import given_among, restore_states, set_states, states_of
from .hollow import Hollow
from .selection import Entry, Function, watched
from .slots import Changed
from .state import Autocast, Undo, take_back
from .thread import thread
from .units import Unit

if TYPE_CHECKING:
    from .frame import Frame
    from .members import Handle


class _Stop(BaseException):
    """Ends a replay from inside a module's forward; no `except Exception` there may catch it."""


class Replay:
    """One replay of a frame, up to and including slot number `last`.

    call 0 ──▶ call 1 ──▶ call 2 ─┤ last slot: stop
      │          ▲
      └─ values ─┘   results wait here for their last reader
    """

    __slots__ = (
        "_call",
        "_entry",
        "_frame",
        "_hollow",
        "_last",
        "_last_use",
        "_next",
        "_problem",
        "_slots",
        "_states",
        "_stopped",
        "_values",
    )

    def __init__(self, frame: Frame, last: int) -> None:
        self._frame = frame
        self._slots = frame.slots
        self._last = last
        self._last_use: dict[Ref, int] = {}
        self._values: dict[Ref, Tensor] = {}
        self._call = frame.calls[0]
        self._next = 0
        self._entry = 0
        self._hollow: list[str] = []
        self._stopped = False
        self._problem: str | None = None
        self._states: dict[torch.Generator, bytes] = {}  # as they were before it

    def run(self) -> None:
        """Run the calls.

        Raises:
            ReplayError: they did not save the same tensors as before.
            RuntimeError: a tensor that they read has been changed in place.
            Exception: whatever the calls themselves raise, with a note that names the call.
        """
        calls = []
        for call in self._frame.calls:
            calls.append(call)
            if call.end is None or call.end > self._last:
                break
        self._last_use = {ref: number for number, call in enumerate(calls) for ref in call.refs}
        # Forward may also seed a generator and put it back behind the last slot, where no replay comes.
        self._states = dict(states_of({generator for call in calls for generator in call.generators}))
        thread.replays += 1
        scope, thread.scope = thread.scope, None
        watch, thread.watch = thread.watch, None  # where a gradient is taken in the midst of a call's own code
        cached, grad = torch.is_autocast_cache_enabled(), torch.is_grad_enabled()
        # A cast that a replay left in the cache would be stale for a forward after the next update. But where it is
        # off, modules that are compiled are compiled once more.
        casts = _torch_private.any_autocast_enabled() or any(call.autocast is not None for call in calls)
        if casts or not any(call.module.compiled for call in calls):
            torch.set_autocast_cache_enabled(False)
        try:
            _torch_private.set_grad_enabled(True)
            for number, call in enumerate(calls):
                self._call = call
                self._keep(number, self._run(number))
                if self._stopped:
                    break
        except (Changed, ReplayError) as error:
            error.args = (f"in the replay of {self._call.key}: {error}{self._hint()}",)
            raise
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(
                    f"This was raised in the replay of {self._call.key}, which is recomputed in backward.{self._hint()}"
                )
            raise
        finally:
            self._values.clear()  # their graph holds this replay through its pack hook, a cycle that no collector sees
            thread.scope, thread.watch = scope, watch
            thread.replays -= 1
            restore_states(self._states)
            torch.set_autocast_cache_enabled(cached)
            _torch_private.set_grad_enabled(grad)  # last: a function mode around backward sees it, and may raise
        if self._problem is not None:
            raise ReplayError(
                f"the replay of {self._call.key} {self._problem}. Something that it reads is not as it was in "
                f"forward: keep this call, or make its forward repeat itself.{self._hint()}"
            )

    def _run(self, number: int) -> Any:
        """Run the current call and return its result; None if the replay ended in it."""
        call = self._call
        set_states(call.random)
        args = decode(call.arguments, [self._find(ref) for ref in call.refs])
        kwargs = {}
        if call.keywords:
            first = len(args) - len(call.keywords)
            kwargs = dict(zip(call.keywords, args[first:], strict=True))
            del args[first:]
        claim = Claim()
        with claim.running:
            return self._put_back_and_run(call, args, kwargs, claim)

    def _put_back_and_run(self, call: Call, args: list[Any], kwargs: dict[str, Any], claim: Claim) -> Any:
        undo: Undo = []
        outer = thread.selector
        thread.selector = None if call.selection is None else self
        self._entry = 0
        try:
            call.module.put_back(undo, claim)
            if call.selection is not None:
                call.selection.patches.put_on(undo)
            if call.autocast is not None:
                call.autocast.put_back(undo)
            elif _torch_private.any_autocast_enabled():
                Autocast(call.module.devices, enabled=False).put_back(undo)
            attention = _torch_private.attention_backends()
            if attention != call.attention:
                undo.append((_torch_private.set_attention_backends, (attention,)))
                _torch_private.set_attention_backends(call.attention)
            return self._hooked(call, args, kwargs)
        finally:
            thread.selector = outer
            take_back(undo)

    def _hooked(self, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
        _torch_private.push_hooks(self._pack, _given)
        try:
            result = call.forward(*args, **kwargs)
            if not self._stopped and call.end is not None and self._next < call.end:
                self._stop("saved fewer tensors than its forward did")
            return result
        except _Stop:
            return None
        finally:
            _torch_private.pop_hooks()

    def enter(self, handle: Handle, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a patched module inside the current call again, or hand out its result."""
        if not handle.selects or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        entry = self._take(handle.name)
        if isinstance(entry, Unit):
            return self._hand_out(entry, args, kwargs)
        return forward(*args, **kwargs) if entry is None else watched(self, handle.name, entry, forward, args, kwargs)

    def unit(self, key: str, kept: bool, run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hand out the result of a torch function; run it again where it raised in forward."""
        entry = self._take(key.rpartition("/")[2].partition("#")[0])
        return self._hand_out(entry, args, kwargs) if isinstance(entry, Unit) else run(*args, **kwargs)

    @property
    def token(self) -> str | None:
        """The plan's token."""
        return None if self._call.selection is None else self._call.selection.token

    def _take(self, name: str) -> Entry:
        """Return what forward noted at this place of the current call."""
        if self._stopped:  # the module caught the signal and went on
            raise _Stop
        assert self._call.selection is not None
        entries = self._call.selection.entries
        if self._entry >= len(entries):
            self._stop(f"runs {name!r} where its forward ran no more")
        entry = entries[self._entry]
        self._entry += 1
        if isinstance(entry, Unit) and entry.name != name:
            self._stop(f"runs {name!r} where its forward ran {entry.name!r}")
        return entry

    def _hand_out(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Fill the slots of a unit's arguments, and return its result without running it."""
        assert self._call.selection is not None
        leaves: list[Tensor] = []
        others = not_simple(encode((*args, *kwargs.values()) if kwargs else args, leaves))
        generators = self._call.selection.generators
        if others:
            generators = [*generators, *given_among(others)]
        if (self._next, len(leaves), len(generators)) != (unit.start, unit.arguments, unit.generators):
            self._stop(f"came to {unit.key} in another way than its forward did")
        for source, offset in unit.sources:
            reference = self._slots[self._next]
            slot = None if reference is None else reference()
            self._next += 1
            if slot is not None and slot.value is None:
                tensor = leaves[source]
                if not isinstance(tensor, Hollow):  # backward never reads some saved tensors: no plan makes them again
                    difference = slot.fill_from(tensor, offset)
                    if difference is not None:
                        self._stop(f"gave {unit.key} {difference}")
            if self._next > self._last:
                self._stop(None)
        for number, state in unit.random:
            if generators[number] not in self._states:  # one that only the unit was given
                self._states.update(states_of([generators[number]]))
            set_states([(generators[number], state)])
        if unit.hollow:
            self._hollow.append(unit.key)
        return unit.hand_out(leaves)

    def _hint(self) -> str:
        """Say which units were skipped: whatever reads their results fails, in one way or another."""
        return f" The plan skips {', '.join(self._hollow)}: nothing in the replay may need it." if self._hollow else ""

    def _find(self, ref: Ref) -> Tensor:
        """Return an argument; every tensor is made once, so that the replay's graph hangs together."""
        tensor = self._values.get(ref)
        if tensor is None:
            tensor = self._values[ref] = self._frame.boundary[ref.leaf].tensor()
        return tensor

    def _keep(self, number: int, result: Any) -> None:
        """Keep of a call's `result` what later calls read, and let go of what none reads any more."""
        for ref in [ref for ref in self._values if self._last_use[ref] <= number]:
            del self._values[ref]
        for leaf, tensor in enumerate(tensors(result)):
            if Ref(number, leaf) in self._last_use:
                self._values[Ref(number, leaf)] = tensor

    @_torch_private.never_compiled
    def _pack(self, tensor: Tensor) -> Tensor:
        """Fill the next slot with `tensor`, and end the replay if it was the last."""
        if self._stopped:  # the module caught the signal and went on
            raise _Stop
        number, self._next = self._next, self._next + 1
        if self._call.end is not None and number >= self._call.end:
            self._stop("saved more tensors than its forward did")
        value = tensor.detach()  # undetached it would hold the replay's graph, and that would hold the slots
        reference = self._slots[number]
        if reference is None:
            return value
        slot = reference()
        if slot is not None and slot.value is None:
            difference = slot.fill(tensor, value)
            if difference is not None:
                self._stop(f"saved {difference}")
        if number == self._last:
            self._stop(None)
        return value

    def _stop(self, problem: str | None) -> None:
        self._stopped = True
        self._problem = problem
        raise _Stop


@_torch_private.never_compiled
def _given(tensor: Tensor) -> Tensor:
    return tensor

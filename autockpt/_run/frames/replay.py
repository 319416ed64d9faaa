"""One replay: runs the calls of a frame again, until the last slot that is still needed is full."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._calls.found.around import Generator, Undo, given_among, set_states, take_back
from ..._calls.found.held import Changed, Ref
from ..._calls.found.hollow import Hollow
from ..._calls.found.turns import TURNS, draws_on_host
from ..._calls.values import decode, tensors
from ..._data.errors import ReplayError
from ..._torch import private
from ..._torch.devices.present import read_in
from .frame import Frame, MemberCall
from .thread import Function, thread
from .unit import Entry, PlannedUnits, UnitRun, name_in
from .units import arguments_of, as_given, called, run_alone
from .waiting.away import given_to, run_here


class _Stop(BaseException):
    """Ends a replay from inside a module's forward; no `except Exception` there may catch it."""


class Replay:
    """One replay of a frame, up to and including slot number `last`.

    call 0 ──▶ call 1 ──▶ call 2 ─┤ last slot: stop
      │          ▲
      └─ values ─┘   results wait here for their last reader

    Args:
        frame: the frame.
        last: number of the last slot to fill.
        backward: number of the backward; see `Frame`.
        skips: whether to leave out the units that the plan skips. If forward took another path than the recorded step
            did, something may read their results.

    Attributes:
        call: the call that is running, or that ran last.
        handle, planned: the model's handle and the plan's units when the frame was made; set only if calls have units.
    """

    handle: object
    planned: PlannedUnits
    _unpack = staticmethod(as_given)

    def __init__(self, frame: Frame, last: int, backward: int, *, skips: bool = True) -> None:
        self._frame, self._slots = frame, frame.slots
        self._last, self._backward, self._skips = last, backward, skips and not frame.whole
        self._begin()

    def _begin(self) -> None:
        self._calls = calls = self._frame.calls
        if len(calls) > 1:
            self._calls = calls[: calls.index(self._frame.call_at(self._last)) + 1]
        self._last_use: dict[Ref, int] = {}
        self._values: dict[Ref, Tensor] = {}
        self.call = calls[0]
        if self.call.units is not None:
            self.handle, self.planned = self.call.units.handle, self.call.units.planned
        self._next = self._entry = self._functions = 0
        self._limit = 0  # number of the first slot that the running call may not fill
        self._hollow: list[str] = []
        self._stopped = False
        self._problem: str | None = None
        self._states: dict[Generator, Any] = {}  # as they were before the replay

    def run(self, again: Callable[[], object] | None = None) -> None:
        """Run the calls.

        Args:
            again: called if something reads the result of a skipped unit. Then the replay runs once more and skips
                nothing. If None, such a read is an error.

        Raises:
            ReplayError: the calls did not save the same tensors as in forward.
            RuntimeError: a tensor that they read has been changed in place.
            Exception: whatever the calls themselves raise, with a note that names the call.
        """
        try:
            self._once()
        except (torch.OutOfMemoryError, Changed):
            raise
        except Exception:
            for _, slot in self._frame.alive():
                if isinstance(slot.value, Hollow):  # an operator saves its arguments before it reads them
                    slot.value = None
            if again is None or not self._hollow:
                raise
            again()
            self._skips = False
            self._begin()
            self._once()

    def _once(self) -> None:
        """Run the calls once; errors as for `run`."""
        if any(call.random and draws_on_host(call.random) for call in self._calls):
            TURNS.run(self._run_all)
        else:
            self._run_all()

    def _run_all(self) -> None:
        calls, casts, states = self._calls, private.any_autocast_enabled(), self._states
        for number, call in enumerate(calls):
            casts = casts or call.around.casts
            for ref in call.refs:
                self._last_use[ref] = number
            # Forward may also seed a generator, and restore it only after the last slot. The replay does not get there.
            found = [each for each in call.generators if each not in states and each not in call.unmoved]
            if found:
                states.update(TURNS.read(found))
        TURNS.begin(states)
        undo = self._undo()
        try:
            thread.replays += 1
            thread.scope = thread.watch = None  # a call's own code may take a gradient, and so start a replay
            if casts:
                # A cast that the replay left in the cache would be stale in a forward after the next optimizer step.
                undo.append((torch.set_autocast_cache_enabled, (torch.is_autocast_cache_enabled(),)))
                torch.set_autocast_cache_enabled(False)
            private.set_grad_enabled(True)
            for number, call in enumerate(calls):
                self.call = call  # and no variable for its result: that would hold it through the next call
                self._keep(number, self._run(call, undo) if call.fsdp_unit is None else run_here(self._run, call, undo))
                if self._stopped:
                    break
        except Exception as error:
            self._name_call(error)
            raise
        finally:
            try:
                take_back(undo)
            finally:
                if undo:  # an interrupt came as `take_back` began
                    take_back(undo)
        if self._problem is not None:
            raise ReplayError(
                f"the replay of {self.call.key} {self._problem}. Something that it reads is not as it was in "
                f"forward: keep this call, or make its forward repeat itself.{self.hint()}"
            )

    def _undo(self) -> Undo:
        """Return the calls that restore what a replay changes around it."""
        # Made from the last to the first. A function mode around backward sees grad mode switched, and may raise.
        undo: Undo = [
            (self._values.clear, ()),  # nothing reads them any more, and their graph holds what the replay saved
            (private.set_grad_enabled, (torch.is_grad_enabled(),)),
            (TURNS.restore, (self._states,)),
            (thread.put_back, (thread.scope, thread.replays, thread.units, thread.watch)),
        ]
        if private.process_group():
            undo.append((private.wait_for_collectives, (private.wait_for_collectives(on=True),)))
        return undo

    def _name_call(self, error: Exception) -> None:
        """Add to an error the key of the call whose replay raised it."""
        if isinstance(error, (Changed, ReplayError)):
            error.args = (f"in the replay of {self.call.key}: {error}{self.hint()}",)
        elif sys.version_info >= (3, 11):
            error.add_note(
                f"This was raised in the replay of {self.call.key}, which is recomputed in backward.{self.hint()}"
            )

    def _run(self, call: MemberCall, undo: Undo) -> Any:
        """Run the current call and return its result; None if the replay ended inside that call."""
        values = decode(call.arguments, (list if call.fsdp_unit is None else given_to)(map(self._find, call.refs)))
        kwargs: dict[str, Any] = {}
        if call.keywords:
            n_args = len(values) - len(call.keywords)
            values, kwargs = values[:n_args], dict(zip(call.keywords, values[n_args:], strict=True))
        forward, plain, run = call.module.replayed(call.forward, undo), call.units is None, call.around.run
        if call.random:
            set_states(call.random)
        call.around.put_back(undo)
        if call.around.stream is not None:
            read_in(call.around.stream, [self._values[ref] for ref in call.refs])
        # What the call saves holds its pack hook. Code of the model's may keep a result, in a list of its own or a
        # global. Through the replay that would lead to the frame: a cycle that no collector sees.
        pack = functools.partial(self._pack, weakref.ref(self))
        self._entry, self._functions, thread.units = 0, 0, None if plain else self
        self._limit = sys.maxsize if call.end is None else call.end
        try:
            private.push_hooks(pack, self._unpack)
            if plain:
                result = run(forward, *values, **kwargs)
            else:
                result = run(called, self, call.key, forward, tuple(values), kwargs)
            if not self._stopped and call.end is not None and self._next < call.end:
                self._stop("saved fewer tensors than its forward did")
            return result
        except _Stop:
            return None
        finally:
            private.pop_hooks()

    def has_frame(self, wanted: bool) -> bool:
        """Return whether a function inside the current call had a frame of its own in forward."""
        had = self.call.functions
        self._functions += 1
        return had[self._functions - 1] if self._functions <= len(had) else wanted

    def enter(self, name: str, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a patched module inside the current call again, or hand out its result.

        Forward noted an entry for it: a unit, whose result is handed out; the key of a call, which runs again; or None
        for a unit that raised, which runs without being watched.
        """
        if name not in self.planned.inside or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        entry = self._take(name)
        if isinstance(entry, UnitRun):
            return self._hand_out(entry, forward, args, kwargs)
        return forward(*args, **kwargs) if entry is None else called(self, entry, forward, args, kwargs)

    def unit(self, key: str, run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hand out the result of a torch function, or run it again if it raised in forward."""
        entry = self._take(key)
        return self._hand_out(entry, run, args, kwargs) if isinstance(entry, UnitRun) else run(*args, **kwargs)

    def _take(self, what: str) -> Entry:
        """Return the current call's next entry from forward, for a module or function that the replay is about to run.

        Args:
            what: the module's name, or the function's key.
        """
        if self._stopped:  # the module caught `_Stop` and went on
            raise _Stop
        assert self.call.units is not None
        entries = self.call.units.entries
        if self._entry >= len(entries):
            self._stop(f"runs {name_in(what)!r} where its forward ran no more")
        entry = entries[self._entry]
        self._entry += 1
        if isinstance(entry, UnitRun) and what not in (entry.key, entry.key.rpartition("#")[0]):
            ran = name_in(entry.key)
            if ran != name_in(what):
                self._stop(f"runs {name_in(what)!r} where its forward ran {ran!r}")
        return entry

    def _hand_out(self, unit: UnitRun, run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Fill the slots of a unit's arguments, and return its result.

        A kept unit does not run. A skipped one runs if this replay skips none.
        """
        given, others = arguments_of(args, kwargs)
        generators = self.call.generators
        if others:
            generators = [*generators, *given_among(others)]
        if (self._next, len(given), len(generators)) != (unit.start, unit.arguments, unit.generators):
            self._stop(f"came to {unit.key} in another way than its forward did")
        for source, offset in unit.sources:
            reference = self._slots[self._next]
            slot = None if reference is None else reference()
            self._next += 1
            if slot is not None and slot.value is None and slot.given != self._backward:
                tensor = given[source]
                if not isinstance(tensor, Hollow):  # else backward never reads it: its slot stays empty
                    difference = slot.fill_from(tensor, offset)
                    if difference is not None:
                        self._stop(f"gave {unit.key} {difference}")
            if self._next > self._last:
                self._stop(None)
        result = run_alone(run, args, kwargs) if unit.skipped and not self._skips else None
        for number, state in unit.random:
            if generators[number] not in self._states:  # a generator that only the unit was given
                self._states.update(TURNS.read([generators[number]]))
            set_states([(generators[number], state)])
        if not unit.skipped:
            return unit.hand_out(given)
        if not self._skips:
            return result
        self._hollow.append(unit.key)
        return unit.hand_out(given)

    def hint(self) -> str:
        """Say which units were skipped: code that reads their results fails, in one way or another."""
        skipped = ", ".join(self._hollow[:6])
        return f" The plan skips {skipped}: nothing in the replay may need it." if skipped else ""

    def _find(self, ref: Ref) -> Tensor:
        """Return an argument. Each tensor of the boundary becomes a leaf once, so that the replay has one graph."""
        tensor = self._values.get(ref)
        if tensor is None:
            tensor = self._values[ref] = self._frame.boundary[ref.leaf].leaf()
        return tensor

    def _keep(self, number: int, result: Any) -> None:
        """Keep the tensors of a call's `result` that later calls read. Drop those that no call reads any more."""
        if len(self._calls) == 1:
            return
        for ref in [ref for ref in self._values if self._last_use[ref] <= number]:
            del self._values[ref]
        for leaf, tensor in enumerate(() if self._stopped else tensors(result)):
            if Ref(number, leaf) in self._last_use:
                self._values[Ref(number, leaf)] = tensor

    @staticmethod
    @private.never_compiled
    def _pack(replay: Callable[[], Any], tensor: Tensor) -> Tensor | None:
        """Fill the next slot of a replay with `tensor`, and end that replay if the slot was the last."""
        self: Replay = replay()  # while it runs, it is alive
        number = self._next
        if number >= self._limit:
            self._beyond()
        self._next = number + 1
        reference = self._slots[number]
        slot = None if reference is None else reference()
        # A value with its graph would hold the replay's graph, and so the slots. One without a graph stays as it is.
        if slot is None or slot.value is not None or slot.given == self._backward:
            value = tensor if tensor.grad_fn is None else tensor.detach()
        else:
            value = tensor.detach() if tensor.requires_grad else tensor
            difference = slot.fill(tensor, value)
            if difference is not None:
                self._stop(f"saved {difference}")
        if number == self._last:
            self._stop(None)
        return value

    def _beyond(self) -> None:
        """End the replay once more if the module caught `_Stop` and went on, or else since it saves too much."""
        if self._stopped:
            raise _Stop
        self._stop("saved more tensors than its forward did")

    def _stop(self, problem: str | None) -> None:
        self._stopped, self._problem, self._limit = True, problem, 0
        raise _Stop

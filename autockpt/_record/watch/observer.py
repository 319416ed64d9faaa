"""Watches one run of the user's model: calls, functions, operators and saves become markers on the tape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch

from ..._calls.names import numbered
from ..._calls.roots import WHOLE
from ..._calls.values import tensors
from ..._data.errors import ProfilingError
from ..._ranks.fsdp import runs_collectives
from ..._stash.base import NoRoom
from ..._stash.spill import Spill, SpilledTensor
from ..._stash.spilled_step import Pack, Unpack
from ..._torch import private
from ..._torch.devices import Clock
from .attributes import mark_attributes
from .checks import Checks
from .gathered import Gathered
from .marks import (
    Mark,
    MarkKind,
    Region,
    SavedParts,
    SavedSlot,
    SeenCall,
    SeenFunction,
    SeenOp,
    SeenSave,
    Sources,
    run_of,
)
from .on_ctx import kept_on_ctx
from .passes import BackwardPasses
from .returned import Returned
from .routing import CASTS, Given, patched_forwards, routed_functions, routed_operators, tensors_in, written_by
from .static import StaticStorages
from .storage_tape import Tape

Hooked: TypeAlias = Callable[[Pack, Unpack], AbstractContextManager[Any]]


class Observer:
    """Records calls, torch functions, operators and saved tensors while one step runs.

    Args:
        model: the model; its forwards are patched only inside `watching`.
        tape: where the markers go.
        clock: read at every marker of forward; it leaves out the time that watching takes.
        spill: where saved tensors wait for backward.
        held: tensors that the model's attributes, closures and globals refer to.
        changing: called with the tensors that an operator is about to change in place.
        summed: whether there are checksums of what calls are given, where replays run collectives.

    Attributes:
        run: what it has seen so far.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tape: Tape,
        clock: Clock,
        spill: Spill,
        *,
        held: Iterable[torch.Tensor] = (),
        changing: Callable[[list[torch.Tensor]], None] | None = None,
        summed: bool = False,
    ) -> None:
        self._tape, self._clock, self._spill, self._model, self._changing = tape, clock, spill, model, changing
        self._errors = spill.errors
        self.run = run_of(model, self.keys, held)
        self._fake = any(private.fake_mode_of(each) is not None for each in private.parts(model.parameters()))
        self._checks, self._gathered = Checks(model, fake=self._fake), Gathered(model)
        self._open, self._function = list[int](), -1
        self._given: tuple[int, ...] = ()  # storages that the running function was given
        self._fresh: set[int] = set()  # storages that this step's operators have cast
        self._counts: dict[tuple[int, str], int] = {}  # of calls by (-1, name), of functions by (call, name)
        self._static, self._returned = (
            StaticStorages(model, tape.key),
            Returned(tape, summed=summed and runs_collectives(model)),
        )
        self._in_forward = self._aside = self._ended = self._elsewhere = False
        self._thread, self._passes = threading.get_ident(), BackwardPasses()

    @contextmanager
    def watching(self, *, in_place: bool = False, hooked: Hooked | None = None) -> Iterator[None]:
        """Patch every module's forward and catch functions, operators and saves, until the context is left.

        Args:
            in_place: whether this is the user's own step. Then the root's forward is running already and is not
                patched: the caller runs it through `on_call`. See `patched_forwards`.
            hooked: makes the context that sets saved-tensor hooks; by default torch's `saved_tensors_hooks`.
        """
        hooks = (hooked or torch.autograd.graph.saved_tensors_hooks)(self._pack, self._unpack)
        functions = routed_functions(self._on_function, self._errors, self._spill.late)
        operators = routed_operators(self._on_operator, self._errors)
        with patched_forwards(self._model, self.on_call, in_place=in_place), functions, operators, hooks:
            self._in_forward = True
            try:
                yield
            finally:
                self._in_forward = False

    def begin_backward(self) -> None:
        """Mark that a backward begins. Calls before `watching` is entered again are recomputations: not recorded."""
        self._in_forward, self.run.sets_itself_up = False, self._checks.sets_itself_up()
        self.mark(self._passes.begin(), 0, self._clock.stamp())

    def end(self, *, stamp: object = None, keys: tuple[int, ...] = ()) -> None:
        """Mark that the run is over. A save released later (by a graph that is still held) counts as alive to the end.

        Args:
            stamp: when backward ended; now by default.
            keys: storages that are still referred to then.

        Raises:
            ProfilingError: another thread called modules during the run, or our own work failed in it.
        """
        self.mark("backward_end", 0, self._clock.stamp() if stamp is None else stamp, keys)
        self._ended = True
        self._errors.tell()
        if self._elsewhere:
            raise ProfilingError(
                "forward calls modules in threads of its own, or another thread calls the model meanwhile, and "
                "recording sees only one thread. Write a plan by hand (Plan.of)."
            )

    def mark(self, kind: MarkKind, index: int, stamp: object = None, keys: tuple[int, ...] = ()) -> int:
        """Put one marker on the tape. Return its number, or -1 if the run is over."""
        if self._ended:
            return -1
        # What it means is made first: after an interrupt in between the tape would have a marker without a meaning.
        self.run.marks[number := self._tape.mark()] = Mark(kind, index, stamp, keys)
        return number

    def keys(self, values: Iterable[torch.Tensor]) -> tuple[int, ...]:
        """Return the keys of the tensors' storages, each once."""
        return tuple(filter(None, dict.fromkeys(map(self._tape.key, values))))

    def ready(self, index: int, gradient: torch.Tensor | None) -> None:
        """Mark that a gradient is about to be added to an existing one. A hook; a custom Function may return None."""
        if gradient is not None:
            self.mark("ready", index, keys=(self._tape.key(gradient),))

    @contextmanager
    def _own_work(self) -> Iterator[object]:
        """Run the observer's own work: the clock leaves its time out. Yields a stamp taken before it.

        What it allocates up to the next marker is not part of the step, so that marker must be its last action.
        """
        stamp = self._clock.stamp()
        before, self._aside = self._aside, True
        self.mark("aside", 0)
        try:
            with private.no_torch_functions():
                yield stamp
        finally:
            self._aside = before
            self._clock.forget(stamp)

    def on_call(self, name: str, module: torch.nn.Module, arguments: object, run: Callable[[], Any]) -> Any:
        """Run a call and record it.

        A step has one root call. Its later forwards, also those of several models, are calls inside that root.
        """
        if not self._in_forward:
            return run()
        if threading.get_ident() != self._thread:
            self._elsewhere = self._elsewhere or torch.is_grad_enabled()  # without gradients nothing is saved
            return run()
        occurrence = numbered(self._counts, (-1, name))
        self._look_for_region(name)
        if not torch.is_grad_enabled() or private.transforms_active():  # counted, as in frames, but not recorded
            return run()
        if name and not self.run.calls:
            self.run.calls.append(SeenCall(WHOLE, type(self._model).__name__, 0, -1))
            self.mark("enter", 0, self._clock.stamp())
        index = len(self.run.calls)
        again = bool(self.run.calls) and not self._open
        parent = self._open[-1] if self._open else -1
        of_loop = again or parent < 0
        call = SeenCall(name, type(module).__name__, occurrence, 0 if again else parent, of_loop)
        self.run.calls.append(call)
        self._open.append(index)
        check = self._errors.own(self._call_begins, index, module, arguments)
        try:
            output = run()
        except BaseException:  # the model may catch it and go on
            call.reasons = ["raised an exception that its caller caught"]
            self.mark("exit", index, self._clock.stamp())
            raise
        else:
            self._errors.own(self._call_ends, index, output, check)
            return output
        finally:
            self._open.pop()
            call.stop = len(self.run.calls)
            if again:
                self.run.calls[0].stop = len(self.run.calls)
                self.mark("exit", 0, self._clock.stamp())

    def _look_for_region(self, inside: str | None = None) -> None:
        """Note what runs inside something that recomputes by itself: a module, or functions if it is None."""
        around = self.run.calls[self._open[-1]] if self._open else None
        if around is not None and not around.checkpointed and private.inside_checkpoint():
            function = private.recomputed_function()
            region = Region(around.name, around.name if inside is None or function else inside, function)
            self.run.regions[region] = None

    def _call_begins(self, index: int, module: torch.nn.Module, arguments: object) -> Callable[[object], None]:
        """Mark that a call begins; return its check, to be called with its output just before the call ends."""
        call = self.run.calls[index]
        with self._own_work() as stamp:
            (call.ways, keys), call.sums = self._returned.given(arguments), self._returned.sums(arguments)
            check = self._checks.of_call(call, self.run.calls[max(call.parent, 0)], module, arguments)
            self._gathered.begins(lambda own: self.mark("gathered", index, keys=self.keys(own)), call, module)
            mark_attributes(self.mark, self._tape.key, index, call, module)
            self.mark("enter", index, stamp, keys)
        return check

    def _call_ends(self, index: int, output: object, check: Callable[[object], None] | None) -> None:
        """Mark that a call has returned. If the loop called it, tensors held by ctx objects of its graph are marked."""
        with self._own_work() as stamp:
            keys = self._returned.by(Sources(calls=(index,)), output)
            assert check is not None  # else an error waits, and no work of ours is done any more
            check(output)
            for name, held in kept_on_ctx(output) if self.run.calls[index].of_loop else ():
                self.run.holders.append(f"on the ctx of {name}")
                self.mark("held", len(self.run.holders) - 1, keys=self.keys(private.parts(held)))
            self.mark("exit", index, stamp, keys)

    def _on_function(self, name: str, arguments: object, run: Callable[[], Any]) -> Any:
        here = self._in_forward and self._open and not self._aside and threading.get_ident() == self._thread
        if not here or private.transforms_active() or self._gathered.around(self.run.calls[self._open[-1]].name):
            return run()
        index, call = len(self.run.functions), self._open[-1]
        function = SeenFunction(name, numbered(self._counts, (call, name)), call)
        self.run.functions.append(function)
        with self._own_work() as stamp:
            self._look_for_region()
            function.ways, keys = self._returned.given(arguments)
            check = self._checks.of_function(function, arguments)
            self.mark("begin", index, stamp, keys)
        self._function, self._given = index, keys
        try:
            output = run()
        except BaseException:
            function.unreadable = function.unrepeatable = "raised an exception that its caller caught"
            self.mark("end", index, self._clock.stamp())
            raise
        finally:
            self._function = -1
        with self._own_work() as stamp:
            keys = self._returned.by(Sources(functions=(index,)), output)
            function.untraced = any(each.is_nested or not self._tape.key(each) for each in tensors(output))
            check(output)
            self.mark("end", index, stamp, keys)
        return output

    def _on_operator(self, op: Any, given: Given, run: Callable[[], Any]) -> Any:
        if self._aside or not self._in_forward:
            return run()
        with self._own_work():
            inputs, written = tensors_in(given), written_by(op, *given)
            if written and self._changing is not None:
                self._changing(written)
            keys, changed = self.keys(inputs), self.keys(written)
            seen = SeenOp(
                name=str(op),
                function=self._function,
                call=self._open[-1] if self._open else -1,
                node=private.saving_node(),
                words=f"{op}({';'.join(f'{private.sizes(t)}{t.dtype}' for t in inputs)})",
                written=tuple(position for position, key in enumerate(keys) if key in changed),
                casts=self._casts_among(inputs, keys),
                # No generator moves for fake tensors, so the operator's tag decides. It reports some that draw nothing.
                draws=self._fake and torch.Tag.nondeterministic_seeded in op.tags,
            )
            index = len(self.run.ops)
            self.run.ops.append(seen)
            del inputs, written
        self.mark("start", index, self._clock.stamp(), keys)
        try:
            output = run()
        except BaseException:
            self.mark("stop", index, self._clock.stamp())
            raise
        stamp = self._clock.stamp()
        with self._own_work():
            seen.returns = bool(outputs := tensors_in(output))
            keys = self.keys(outputs)
            self._fresh.update(keys if seen.name.startswith(CASTS) else ())
            del outputs
            self.mark("stop", index, stamp, keys)
        return output

    def _casts_among(self, inputs: list[torch.Tensor], keys: tuple[int, ...]) -> tuple[int, ...]:
        """Return which of an operator's storages are casts of parameters that its function was not given."""
        if self._function < 0 or not self.run.functions[self._function].cached_casts:
            return ()
        found: dict[int, int] = {}
        for each in inputs:
            key = self._tape.key(each)
            if key in self.run.casts or self._static.is_cast(each, fresh=key in self._fresh):
                found[key] = each.untyped_storage().nbytes()
        found = {key: size for key, size in found.items() if key and key not in self._given}
        self.run.casts.update(found)
        return tuple(map(keys.index, found))

    @private.never_compiled
    def _pack(self, tensor: torch.Tensor) -> object:
        if self._errors.first is None:
            try:
                return self._saved(tensor)
            except NoRoom:
                raise
            except Exception as error:
                self._errors.add(error)
        held = self._spill.take(tensor)
        return tensor.detach() if held is tensor else held

    def _saved(self, tensor: torch.Tensor) -> SavedSlot | SavedParts | torch.Tensor:
        """Return what stands for a tensor that is saved, and mark it; of a wrapper, all that is inside."""
        before, self._aside = self._aside, True  # no work that needs a marker: it allocates nothing
        try:
            with private.no_torch_functions():
                apart = private.apart(tensor)
        finally:
            self._aside = before
        for each in self._open if tensor.is_nested and tensor.layout is torch.jagged else ():
            self.run.calls[each].nested = True
        if apart is None:
            return self._slot(tensor)
        slots = tuple(map(self._slot, apart.inside))
        return SavedParts(slots, apart.make) if any(isinstance(each, SavedSlot) for each in slots) else tensor

    def _slot(self, tensor: torch.Tensor) -> SavedSlot | torch.Tensor:
        """Return what stands for a tensor with memory of its own; a parameter or a buffer stands for itself."""
        with private.no_torch_functions():
            key = self._tape.key(tensor)
        if self._static.has(key) or self._gathered.has(tensor):
            return tensor
        with self._own_work() as stamp:
            # A save of the loss, outside the model, counts as the root's: no candidate segment covers it: it is kept.
            index, call = len(self.run.saves), self._open[-1] if self._open else 0
            self.run.saves.append(SeenSave(call, self._function, private.saving_node(), len(self.run.ops)))
            held = self._spill.take(tensor)
            # An output that its own node saves refers to that node. detach() avoids that cycle, which gc cannot see.
            slot = SavedSlot(partial(self.mark, "release", index), index, tensor.detach() if held is tensor else held)
            self.mark("pack", index, stamp, (key,))
            return slot

    @private.never_compiled
    def _unpack(self, slot: SavedSlot | SavedParts | SpilledTensor | torch.Tensor) -> torch.Tensor:
        if isinstance(slot, torch.Tensor):
            return slot
        if isinstance(slot, SpilledTensor):
            return slot.restore()
        self._errors.own(self._passes.read, self.mark)
        self._errors.own(self._gathered.reads, self.run, self.mark)
        if isinstance(slot, SavedSlot) and isinstance(slot.held, torch.Tensor):
            self.mark("unpack", slot.save)
            return slot.held
        with self._own_work():
            slots = slot.slots if isinstance(slot, SavedParts) else (slot,)
            found = [each if isinstance(each, torch.Tensor) else _held(each) for each in slots]
            tensor = slot.make(found) if isinstance(slot, SavedParts) else found[0]
            for own, each in zip(slots, found, strict=True):
                if isinstance(own, SavedSlot):
                    spilled = own.held if isinstance(own.held, SpilledTensor) else None
                    if spilled is not None and spilled.written_late:
                        self.run.written_late.add(own.save)
                    self.mark("unpack", own.save, keys=() if spilled is None else (self._tape.key(each),))
            return tensor


def _held(slot: SavedSlot) -> torch.Tensor:
    """Return what a slot stands for."""
    return slot.held.restore() if isinstance(slot.held, SpilledTensor) else slot.held

"""Watching one run of the user's model: calls, torch functions, and what autograd saves, reads and releases."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError
from .._run.frames.tree import tensors
from .convolutions import Layout
from .routing import patched_forwards, routed_functions
from .spill import Spill, SpilledTensor
from .tape import Tape

MarkKind = Literal["enter", "exit", "begin", "end", "pack", "unpack", "release", "ready", "forward_end", "backward_end"]
"""Calls enter and exit, functions begin and end."""


class Clock(Protocol):
    """Reads the time without waiting for the device."""

    def stamp(self) -> object:
        """Return a reading."""

    def forget(self, since: object) -> None:
        """Leave what the host did since a reading out of all that follow: it was the recorder's own work."""

    def seconds(self, stamps: list[object]) -> list[float]:
        """Turn readings into seconds since the first."""


class Sources(NamedTuple):
    """Who returned a very tensor object, unchanged since: calls, and torch functions, by index.

    Of several objects of one storage, who returned them all; `mixed` is whether anybody else returned some of them.
    """

    calls: tuple[int, ...] = ()
    functions: tuple[int, ...] = ()
    mixed: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """One marker: what happened at its place on the tape.

    Attributes:
        kind: what happened.
        index: the call (enter, exit, pack), the function (begin, end), the save (unpack, release) or the
            parameter (ready).
        stamp: a reading of the clock, for the kinds that happen in forward.
        keys: storages of the arguments (enter, begin), outputs (exit, end), of the tensor saved (pack), of the one
            brought back (unpack, where saves were spilled) or the gradient (ready).
        sources: for each key of an enter or a begin, who returned that very tensor object, unchanged since.
        node: sequence number of the autograd node that saves (pack), else 0.
    """

    kind: MarkKind
    index: int
    stamp: object = None
    keys: tuple[int, ...] = ()
    sources: tuple[Sources, ...] = ()
    node: int = 0


@dataclass(slots=True)
class OpenedCall:
    """A call as it was opened: the module's name and its place in the tree."""

    name: str
    class_name: str
    occurrence: int
    parent: int
    stop: int = 0
    functions: dict[str, int] = field(default_factory=dict)  # called in its own code so far, by name


@dataclass(frozen=True, slots=True)
class OpenedFunction:
    """A torch function as it began: its short name, and which one of that name in the code of which call."""

    name: str
    occurrence: int
    call: int


class Watch:
    """Opens calls and functions, and follows saves, while one step runs; whatever happens becomes a marker on the tape.

    Args:
        model: the model; its forwards are patched only inside `watching`.
        tape: where the markers go.
        clock: read at every marker of the forward; watching takes no time by it.
        keep_saves: False drops every tensor that autograd wants to save, so that frees show natural
            lifetimes (and backward is impossible).
        spill: where saves that are kept wait; None leaves them where they are.
        brief: leave out what goes in and out of calls, and all of functions but their names: to see only whether a
            step is one that is known.

    Attributes:
        marks: what the markers on the tape stand for.
        calls: in pre-order.
        functions: in the order of their begins.
        layouts: where saves are dropped, what each autograd node would have saved, by its sequence number.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tape: Tape,
        clock: Clock,
        *,
        keep_saves: bool = True,
        spill: Spill | None = None,
        brief: bool = False,
    ) -> None:
        self.marks: list[Mark] = []
        self.calls: list[OpenedCall] = []
        self.functions: list[OpenedFunction] = []
        self.layouts: dict[int, list[Layout]] = {}
        self._tape, self._clock, self._keep_saves, self._spill = tape, clock, keep_saves, spill
        self._brief = brief
        self._model = model
        self._static_keys = {
            tape.key(tensor) for tensor in (*model.parameters(), *model.buffers()) if tensor.device.type != "meta"
        }
        self._open: list[int] = []
        self._occurrences: dict[str, int] = {}
        self._returns: dict[int, tuple[weakref.ref[torch.Tensor], int, Sources]] = {}
        self._saves = 0
        self._in_forward = False
        self._ended = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Patch every module's forward and catch functions and what autograd saves, until the context is left."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        with patched_forwards(self._model, self._call), routed_functions(self._function), hooks:
            self._in_forward = True
            try:
                yield
            finally:
                self._in_forward = False

    def end_forward(self) -> None:
        """Say that forward, loss included, is over: calls made from now on are recomputations in backward."""
        self._in_forward = False
        self.mark("forward_end", 0, self._clock.stamp())

    def end(self) -> None:
        """Say that the run is over: what is released later (by a graph that somebody holds) lived to its end."""
        self.mark("backward_end", 0, self._clock.stamp())
        self._ended = True

    def mark(
        self,
        kind: MarkKind,
        index: int,
        stamp: object = None,
        keys: tuple[int, ...] = (),
        sources: tuple[Sources, ...] = (),
        node: int = 0,
    ) -> None:
        """Put one marker on the tape."""
        if self._ended:
            return
        with private.no_torch_functions():  # else the function mode would see the marker made
            self._tape.mark()
        self.marks.append(Mark(kind, index, stamp, keys, sources, node))

    def key(self, tensor: torch.Tensor) -> int:
        """Name a tensor's storage as the tape does."""
        return self._tape.key(tensor)

    def _call(self, name: str, module: torch.nn.Module, arguments: object, run: Callable[[], Any]) -> Any:
        if not self._in_forward:
            return run()
        occurrence = self._occurrences.get(name, 0)
        self._occurrences[name] = occurrence + 1
        if not torch.is_grad_enabled() or private.transforms_active():  # counted, as in frames, but no call
            return run()
        index = len(self.calls)
        call = OpenedCall(name, type(module).__name__, occurrence, self._open[-1] if self._open else -1)
        self.calls.append(call)
        self._open.append(index)
        try:
            self._entered(index, arguments)
            output = run()
            self._exited(index, output)
            return output
        except BaseException:  # the model may catch it and go on
            self.mark("exit", index, self._clock.stamp())
            raise
        finally:
            self._open.pop()
            call.stop = len(self.calls)

    def _entered(self, index: int, arguments: object) -> None:
        stamp = self._clock.stamp()
        with private.no_torch_functions():
            given = {} if self._brief else self._storages(arguments)
            sources = tuple(self._sources(same_storage) for same_storage in given.values())
        self.mark("enter", index, stamp, tuple(given), sources)
        self._clock.forget(stamp)

    def _exited(self, index: int, output: object) -> None:
        stamp = self._clock.stamp()
        with private.no_torch_functions():
            outputs = {} if self._brief else self._storages(output)
            self.mark("exit", index, stamp, tuple(outputs))
            self._returned(outputs, Sources(calls=(index,)))
        self._clock.forget(stamp)

    def _function(self, name: str, arguments: object, run: Callable[[], Any]) -> Any:
        if not self._in_forward or not self._open or private.transforms_active():
            return run()
        call = self._open[-1]
        counts = self.calls[call].functions
        occurrence = counts.get(name, 0)
        counts[name] = occurrence + 1
        index = len(self.functions)
        self.functions.append(OpenedFunction(name, occurrence, call))
        if self._brief:
            return run()
        stamp = self._clock.stamp()
        given = self._storages(arguments)
        sources = tuple(self._sources(same_storage) for same_storage in given.values())
        self.mark("begin", index, stamp, tuple(given), sources)
        self._clock.forget(stamp)
        del given
        try:
            output = run()
        except BaseException:
            self.mark("end", index, self._clock.stamp())
            raise
        stamp = self._clock.stamp()
        outputs = self._storages(output)
        self.mark("end", index, stamp, tuple(outputs))
        self._returned(outputs, Sources(functions=(index,)))
        self._clock.forget(stamp)
        return output

    def _storages(self, value: object) -> dict[int, list[torch.Tensor]]:
        """Tensors inside `value` by their storage, in order; the model's own left out."""
        found: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors(value):
            if (key := self._tape.key(tensor)) and key not in self._static_keys:
                found.setdefault(key, []).append(tensor)
        return found

    def _returned(self, outputs: dict[int, list[torch.Tensor]], by: Sources) -> None:
        """Remember who returned which very objects, and in which version."""
        for tensor in (tensor for same_storage in outputs.values() for tensor in same_storage):
            known = self._sources([tensor])
            sources = Sources((*known.calls, *by.calls), (*known.functions, *by.functions))
            self._returns[id(tensor)] = (weakref.ref(tensor), private.version(tensor), sources)

    def _sources(self, objects: list[torch.Tensor]) -> Sources:
        """Who returned every one of these very objects, unchanged since."""
        chains: list[Sources] = []
        for tensor in objects:
            reference, version, sources = self._returns.get(id(tensor), (None, 0, Sources()))
            alive = reference is not None and reference() is tensor and version == private.version(tensor)
            chains.append(sources if alive else Sources())
        calls, functions = ([set(each) for each in chain] for chain in list(zip(*chains, strict=True))[:2])
        return Sources(
            calls=tuple(sorted(set.intersection(*calls))),
            functions=tuple(sorted(set.intersection(*functions))),
            mixed=any(each != chain[0] for chain in (calls, functions) for each in chain),
        )

    def _pack(self, tensor: torch.Tensor) -> object:
        stamp = self._clock.stamp()
        with private.no_torch_functions():
            key = self._tape.key(tensor)
            if not self._keep_saves and tensor.layout == torch.strided:
                self.layouts.setdefault(private.saving_node(), []).append(Layout.of(tensor))
        if key in self._static_keys:
            return tensor
        save = self._saves
        self._saves += 1
        # What the loss outside the model saves is the root's: no candidate covers it, so it stays held.
        call = self._open[-1] if self._open else 0
        self.mark("pack", call, stamp, (key,), node=private.saving_node())
        held: torch.Tensor | SpilledTensor | None = None
        if self._keep_saves:
            with private.no_torch_functions():
                # A result leads to the node that saves it: a cycle that no collector sees, where no backward breaks it.
                held = tensor.detach()
                if self._spill is not None:
                    held = self._spill.take(held)
        self._clock.forget(stamp)
        return _Slot(self, save, held)

    def _unpack(self, slot: object) -> torch.Tensor:
        if not isinstance(slot, _Slot) or slot.held is None:
            return slot if isinstance(slot, torch.Tensor) else no_backward(slot)
        if isinstance(slot.held, torch.Tensor):
            self.mark("unpack", slot.save)
            return slot.held
        stamp = self._clock.stamp()
        with private.no_torch_functions():
            tensor = slot.held.restore()
            self.mark("unpack", slot.save, keys=(self._tape.key(tensor),))
        self._clock.forget(stamp)
        return tensor


def no_backward(_: object) -> torch.Tensor:
    """Refuse to read a saved tensor back, in a forward whose saves are dropped."""
    raise ProfilingError(
        "forward takes a gradient inside itself, so it cannot be run with its saved tensors dropped. Give autockpt the "
        "parts of the model that do not, or write a plan by hand."
    )


class _Slot:
    """What autograd holds instead of a tensor, so that its release shows; of one that was dropped too."""

    __slots__ = ("held", "save", "watch")

    def __init__(self, watch: Watch, save: int, held: torch.Tensor | SpilledTensor | None) -> None:
        self.watch, self.save, self.held = watch, save, held

    def __del__(self) -> None:
        # The tensor goes after the marker: it is alive until its save is released, not a tick less.
        self.watch.mark("release", self.save)

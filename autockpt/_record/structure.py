"""What each call does: data flow, random numbers, buffers it changes, and why it may not be replayed.

One forward of its own, under a function mode and a dispatch mode, with every saved tensor dropped. It says
nothing about memory: a dispatch mode changes the step that it watches.
"""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy
import torch
from torch.utils._pytree import tree_leaves

from .. import _torch_private as private
from .._run.frames.tree import tensors
from .._run.frames.unrepeatable import why_unrepeatable
from . import refusals
from .buffers import BufferBefore, buffer_before, buffers_before, moved_buffers
from .dataflow import DataFlow, FlowRecorder, Storage
from .fingerprint import PLAIN, attributes_of, fingerprint
from .routing import Arguments, patched_forwards, routed_functions, routed_operators
from .sandbox import generators_of
from .tape import Tape
from .watch import Clock, no_backward

Changing: TypeAlias = Callable[[list[torch.Tensor]], None]


@dataclass(slots=True)
class CallStructure:
    """What one call was seen to do.

    Attributes:
        name: qualified name of the module.
        draws: whether a default generator moved.
        buffers: qualified names of buffers inside it, its children's included, whose values changed.
        mutated: positions, among its argument storages, of those that were changed in place after the call began.
        refused: why it cannot be replayed exactly; empty where it can.
        leaves_traces: whether more than its result tells that it ran: a buffer, an argument or a container among
            its arguments is not what it was.
        checkpointed: whether a torch.utils.checkpoint region of the model's own runs it.
        signature: equal for structurally identical calls.
    """

    name: str
    draws: bool = False
    buffers: list[str] = field(default_factory=list)
    mutated: list[int] = field(default_factory=list)
    refused: str = ""
    leaves_traces: bool = False
    checkpointed: bool = False
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Structure:
    """What one forward did.

    Attributes:
        calls: what each call did, in pre-order.
        flow: what functions and operators read and made.
        loss: what came of it.
    """

    calls: list[CallStructure]
    flow: DataFlow
    loss: torch.Tensor


@dataclass(slots=True)
class _OpenCall:
    """A call while it runs, with what has to be compared when it ends."""

    record: CallStructure
    index: int
    first_op: int
    first_function: int
    given: object
    leaves: list[torch.Tensor]  # the tensors in what was given
    arguments: list[tuple[int, int]]  # storage and the operator that bore it
    generators: list[tuple[torch.Generator, torch.Tensor]]
    devices: set[torch.device]
    host_random: tuple[Any, Any]
    buffers: dict[str, BufferBefore]
    given_buffers: list[BufferBefore]  # of other modules
    attributes: object
    parameters: list[int]  # storages
    opaque: list[tuple[object, object]]
    digest: Any
    # Those drawn from in the state of the call's start, be it because they were seeded with the same number again.
    drew_first: set[torch.Generator] = field(default_factory=set)
    end_op: int = 0
    end_function: int = 0
    changed: set[int] = field(default_factory=set)  # storages of buffers
    read_buffers: set[Storage] = field(default_factory=set)  # of other modules, given to it


def observe_structure(
    model: torch.nn.Module,
    run: Callable[[], tuple[Any, torch.Tensor]],
    tape: Tape,
    clock: Clock,
    *,
    values: bool,
    changing: Changing | None = None,
) -> Structure:
    """Run a forward and return what each call, function and operator did.

    Args:
        model: the model.
        run: calls the model once, and returns its outputs and the loss.
        tape: names storages (`Tape.key`); nothing is recorded on it.
        clock: times operators.
        values: False where tensors have no values (fake mode): buffers are then judged by their version.
        changing: is told of tensors before an operator changes them.
    """
    observer = _Observer(model, tape, clock, values=values, changing=changing)
    dropped = torch.autograd.graph.saved_tensors_hooks(observer.pack, no_backward)
    functions = routed_functions(observer.function)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # else a call would seem to read what an earlier call cast, not a weight
    try:
        with patched_forwards(model, observer.call), dropped, functions, routed_operators(observer.operator):
            _, loss = run()
    finally:
        torch.set_autocast_cache_enabled(cached)
    return observer.finish(loss.detach())


class _Observer:
    """State of one structural forward."""

    def __init__(
        self, model: torch.nn.Module, tape: Tape, clock: Clock, *, values: bool, changing: Changing | None
    ) -> None:
        self._key, self._clock, self._values, self._changing = tape.key, clock, values, changing
        parameters = set(self._keys(model.parameters()))
        self._buffers = set(self._keys(model.buffers()))
        self._static = parameters | self._buffers
        self._generators = generators_of(model) if values else []
        self._records: list[CallStructure] = []
        self._stack: list[_OpenCall] = []
        self._closed: list[_OpenCall] = []
        self._flow = FlowRecorder(tape.key, parameters, self._buffers, [*filter(_is_default, self._generators)])
        self._born = self._flow.born  # storage -> number of the operator that made it
        self.paused = False

    def call(self, name: str, module: torch.nn.Module, arguments: object, run: Callable[[], Any]) -> Any:
        if not torch.is_grad_enabled() or private.transforms_active():
            return run()
        with self.pause():
            opened = self._open(name, module, arguments)
        try:
            output = run()
            with self.pause():
                self._close(opened, module)
            return output
        except BaseException:
            opened.record.refused = "raised an exception that its caller caught"
            raise
        finally:
            self._flow.happened("exit", opened.index)
            self._stack.pop()

    def function(self, name: str, arguments: object, run: Callable[[], Any]) -> Any:
        """Stand around a torch function."""
        if self.paused or not self._stack or private.transforms_active():
            return run()
        with self.pause():
            self._flow.begin(name, arguments)
        try:
            output = run()
        except BaseException:
            self._flow.failed()
            raise
        with self.pause():
            for generator, before in self._flow.end(output):
                for opened in self._stack:
                    if any(own is generator and torch.equal(state, before) for own, state in opened.generators):
                        opened.drew_first.add(generator)
        return output

    def pack(self, tensor: torch.Tensor) -> None:
        """Note what autograd saves, and drop it."""
        with self.pause():
            self._flow.pack(self._stack[-1].index if self._stack else 0, tensor)

    def operator(self, op: Any, arguments: Arguments, run: Callable[[], Any]) -> Any:
        """Stand around an operator."""
        if self.paused:
            return run()
        with private.no_torch_functions():
            inputs, written = _tensors(arguments), _written(op, *arguments)
            if written and self._changing is not None:
                self._changing(written)
        start = self._clock.stamp()
        output = run()
        stamps = start, self._clock.stamp()
        with private.no_torch_functions():
            self._note(op, stamps, inputs, _tensors(output), written)
        return output

    def _note(
        self,
        op: Any,
        stamps: tuple[object, object],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> None:
        """Note an operator that ran, and when: what it read, made and changed."""
        number = self._flow.n_ops
        keys = {self._key(tensor) for tensor in inputs}
        if op.overloadpacket is torch.ops.aten.lift_fresh:  # a constant that forward makes: torch.tensor(0.5)
            self._born.update(dict.fromkeys(keys, number))
        for key in keys:
            self._read(key)
        for tensor in written:
            key = self._key(tensor)
            self._flow.mutations[key, self._born.get(key, -1)] = number
            self._flow.n_writes[key, self._born.get(key, -1)] += 1
        # Fake tensors draw no numbers, so there the operator's tag must do; it reports too much.
        random_fake = not self._values and torch.Tag.nondeterministic_seeded in op.tags
        reason = ""
        if self._stack:
            reason = self._flow.op(op, self._stack[-1].index, stamps, inputs, outputs, written, draws=random_fake)
        for tensor in outputs:
            key = self._key(tensor)
            if key not in keys:
                self._born[key] = number
        self._flow.n_ops += 1
        if self._stack:
            shapes = ";".join(f"{tuple(t.shape)}{t.dtype}" for t in inputs)
            for opened in self._stack:
                opened.digest.update(f"{op}({shapes})".encode())
                opened.record.draws |= random_fake
                opened.record.refused = opened.record.refused or reason

    def finish(self, loss: torch.Tensor) -> Structure:
        """Judge what can only be known at the end, and return the records."""
        for opened in self._closed:
            for position, argument in enumerate(opened.arguments):
                if (last := self._flow.mutations.get(argument, -1)) >= opened.first_op:
                    opened.record.mutated.append(position)
                    opened.record.leaves_traces |= last < opened.end_op
            if any(self._flow.mutations.get(buffer, -1) >= opened.end_op for buffer in opened.read_buffers):
                opened.record.refused = opened.record.refused or "is given a buffer that is changed in place later"
            own = range(opened.first_function, opened.end_function)
            opened.record.leaves_traces |= any(not self._flow.used_only_by(own, key) for key in opened.changed)
        self._flow.finish()
        return Structure(self._records, self._flow.flow, loss)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let the observer run operators of its own."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def _keys(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """Storages of the model's own tensors; those on the meta device have none."""
        return [self._key(each) for each in tensors if each.device.type != "meta"]

    def _read(self, key: int) -> None:
        if not key or key in self._static:
            return
        born = self._born.get(key, -1)
        for opened in reversed(self._stack):
            if born >= opened.first_op:
                return  # produced inside this call, so inside every call around it too
            if (key, born) not in opened.arguments and not opened.record.refused:
                opened.record.refused = "reads a tensor that is no argument, parameter or buffer (closure or attribute)"

    def _open(self, name: str, module: torch.nn.Module, arguments: object) -> _OpenCall:
        given = tensors(arguments)
        keys = [key for key in dict.fromkeys(map(self._key, given)) if key and key not in self._static]
        opaque = [leaf for leaf in tree_leaves(arguments) if not isinstance(leaf, (torch.Tensor, *PLAIN))]
        record = CallStructure(name, checkpointed=private.foreign_checkpoint_active())
        record.refused = refusals.WRITTEN_UNSEEN if self._flow.written_unseen(given) else ""
        opened = _OpenCall(
            record=record,
            index=len(self._records),
            first_op=self._flow.n_ops,
            first_function=len(self._flow.flow.functions),
            given=arguments,
            leaves=given,
            arguments=[(key, self._born.get(key, -1)) for key in keys],
            generators=[(generator, generator.get_state()) for generator in self._generators],
            devices={tensor.device for tensor in (*given, *module.parameters(), *module.buffers())},
            host_random=_host_random(),
            buffers=buffers_before(name, module, self._key, values=self._values),
            given_buffers=self._given_buffers(module, given),
            attributes=attributes_of(module),
            parameters=self._keys(module.parameters()),
            opaque=[(leaf, fingerprint(leaf)) for leaf in opaque],
            digest=hashlib.sha1(usedforsecurity=False),
        )
        shapes = [(tuple(t.shape), str(t.dtype)) for t in (*given, *module._parameters.values()) if t is not None]
        opened.digest.update(f"{type(module).__qualname__}{shapes}".encode())
        self._records.append(record)
        self._stack.append(opened)
        self._flow.happened("enter", opened.index)
        return opened

    def _close(self, opened: _OpenCall, module: torch.nn.Module) -> None:
        record = opened.record
        opened.end_op, opened.end_function = self._flow.n_ops, len(self._flow.flow.functions)
        record.signature = opened.digest.hexdigest()[:16]
        for generator, state in opened.generators:
            if torch.equal(generator.get_state(), state):
                if generator in opened.drew_first:
                    record.refused = record.refused or refusals.PUTS_BACK
            elif _is_default(generator):
                record.draws = True
                if generator.device.type != "cpu" and generator.device not in opened.devices:
                    record.refused = record.refused or refusals.DRAWS_ELSEWHERE.format(generator.device)
            else:
                record.refused = record.refused or "draws from a torch.Generator of its own"
        if not _same_random(_host_random(), opened.host_random):
            record.refused = record.refused or "draws from the random generators of Python or numpy"
        for leaf, before in opened.opaque:
            if fingerprint(leaf) != before:
                kind = type(leaf).__name__
                record.refused = record.refused or (
                    f"changes an argument of type {kind} (a cache?), which a replay would do again"
                )
        if attributes_of(module) != opened.attributes:
            record.refused = record.refused or refusals.CHANGES_ATTRIBUTE
        if self._keys(module.parameters()) != opened.parameters:
            record.refused = record.refused or refusals.CHANGES_PARAMETER
        record.refused = record.refused or why_unrepeatable(module)
        if any(was.moved for was in opened.given_buffers):
            record.refused = record.refused or "changes a buffer that it is given, which a replay would do again"
        record.buffers = self._changed_buffers(opened)
        leaves = tensors(opened.given)
        same = len(leaves) == len(opened.leaves) and all(map(operator.is_, leaves, opened.leaves))
        record.leaves_traces |= not same
        # Closed calls are looked at again at the end; what takes memory is not.
        opened.read_buffers = {(was.storage, self._born.get(was.storage, -1)) for was in opened.given_buffers}
        opened.given, opened.leaves, opened.generators, opened.buffers = None, [], [], {}
        opened.given_buffers = []
        self._closed.append(opened)

    def _given_buffers(self, module: torch.nn.Module, given: list[torch.Tensor]) -> list[BufferBefore]:
        """Note the buffers of other modules among the arguments of a call."""
        own = set(map(id, module.buffers()))
        others = {id(each): each for each in given if id(each) not in own and self._key(each) in self._buffers}
        return [buffer_before({"": each}, "", self._key(each), values=self._values) for each in others.values()]

    def _changed_buffers(self, opened: _OpenCall) -> list[str]:
        """Names of the buffers that a call changed, in place or by binding another tensor."""
        moved = moved_buffers(opened.buffers, values=self._values)
        for was in map(opened.buffers.__getitem__, moved):
            storage = self._key(was.now) if was.now is not None else 0
            if storage and storage == was.storage:
                opened.changed.add(storage)
                self._flow.changed_buffer(opened.first_function, storage, counted=was.counted)
            else:
                opened.record.leaves_traces = True
                self._flow.bound_buffer(opened.first_function, storage)
        return moved


def _is_default(generator: torch.Generator) -> bool:
    """Whether a generator is a device's own, whose state a replay puts back."""
    return generator is torch.default_generator or (
        generator.device.type == "cuda" and generator in torch.cuda.default_generators
    )


def _host_random() -> tuple[Any, Any]:
    return random.getstate(), numpy.random.get_state()


def _same_random(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
    return bool(a[0] == b[0] and a[1][2] == b[1][2] and numpy.array_equal(a[1][1], b[1][1]))


def _tensors(values: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _written(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator changes in place."""
    if not op._schema.is_mutable:
        return []
    named = [(i, each) for i, each in enumerate(op._schema.arguments) if each.alias_info and each.alias_info.is_write]
    return _tensors([args[i] if i < len(args) else kwargs.get(each.name) for i, each in named])

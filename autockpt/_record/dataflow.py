"""What functions and operators of one forward read, make and change, by the storages of that forward.

A storage is known by its key and the number of the operator that bore it, since keys are used again.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch.utils._pytree import tree_leaves

from .. import _torch_private as private
from .._run.frames.tree import tensors
from . import refusals
from .fingerprint import PLAIN

Storage: TypeAlias = tuple[int, int]
"""Key, and number of the operator that bore it; -1 where none was seen to."""


@dataclass(slots=True)
class SeenOp:
    """An operator as it ran; views are none.

    Attributes:
        name: its name.
        function: index of the function that ran it, -1 if none did.
        call: index of the innermost call.
        node: number of the autograd node that was made last before it ran: its own, if it has one.
        start: a reading of the clock.
        stop: another.
        reads: storages that it was given, the model's own left out.
        makes: storages born in it, with their bytes.
        writes: storages given to it that it changed.
    """

    name: str
    function: int
    call: int
    node: int
    start: object
    stop: object
    reads: list[Storage]
    makes: list[tuple[Storage, int]]
    writes: list[Storage]


@dataclass(slots=True)
class SeenFunction:
    """A torch function as a call's own code called it.

    Attributes:
        name: its short name.
        first_op: number of the first operator that it could have run, views counted.
        given: keys of all storages that came in, the model's own included.
        ops: positions of its operators in `DataFlow.ops`.
        alias: whether what went out shares storage with what came in.
        mutates: whether it changed something older than itself that others read too. A buffer that only it is given,
            such as the running statistics of a normalisation, is its own affair.
        draws: whether a default generator moved.
        shapes_only: whether it looked at nothing but shapes and types.
        refused: why what it returned cannot be handed out by a replay.
        mutated: positions, among the storages given to it, of those that were changed in place after it began.
        unrepeatable: why it cannot run again by itself, as a call of a segment.
    """

    name: str
    first_op: int
    given: frozenset[int]
    ops: list[int] = field(default_factory=list)
    alias: bool = False
    mutates: bool = False
    draws: bool = False
    shapes_only: bool = False
    refused: str = ""
    mutated: list[int] = field(default_factory=list)
    unrepeatable: str = ""

    def close(self, output: Any, keys: Collection[int], *, ran: bool) -> None:
        """Judge what it returned.

        Args:
            output: the result.
            keys: the storages in it.
            ran: whether it ran any operator, views counted.
        """
        others = [leaf for leaf in tree_leaves(output) if leaf is not None and not isinstance(leaf, torch.Tensor)]
        self.alias = not self.given.isdisjoint(keys)
        # Reading values out runs an operator, but for `tolist`.
        self.shapes_only = not ran and not keys and self.name != "tolist" and all(isinstance(o, PLAIN) for o in others)
        if others:
            self.refused = f"returns something that is no tensor ({type(others[0]).__name__})"
        self.unrepeatable = self.unrepeatable or self.refused or ("" if keys else "returns no tensor")


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that a watched run marks too, so that its storages and those here can be told to be the same.

    Attributes:
        kind: as of a marker.
        index: the call (enter, exit, pack) or the function (begin, end).
        storages: in the order of a marker's keys; none for calls.
        node: number of the saving autograd node (pack).
        n_ops: how many operators had run, views left out.
    """

    kind: Literal["enter", "exit", "begin", "end", "pack"]
    index: int
    storages: tuple[Storage, ...] = ()
    node: int = 0
    n_ops: int = 0


@dataclass(slots=True)
class DataFlow:
    """Functions and operators of one forward, and everything that happened, each in order."""

    functions: list[SeenFunction] = field(default_factory=list)
    ops: list[SeenOp] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)


class FlowRecorder:
    """Writes down the data flow of one forward.

    Args:
        key: names the storage of a tensor while it lives.
        parameters: keys of parameters.
        buffers: keys of buffers.
        generators: those whose draws count.

    Attributes:
        flow: what was written down.
        born: for each storage, the number of the operator that bore it.
        n_ops: operators so far, views counted.
        mutations: for each storage, the last operator that changed it.
        n_writes: for each storage, how many did.
    """

    def __init__(
        self,
        key: Callable[[torch.Tensor], int],
        parameters: Collection[int],
        buffers: Collection[int],
        generators: Iterable[torch.Generator],
    ) -> None:
        self.flow = DataFlow()
        self.born: dict[int, int] = {}
        self.n_ops = 0
        self.mutations: dict[Storage, int] = {}
        self.n_writes: Counter[Storage] = Counter()
        self._key, self._parameters, self._buffers = key, frozenset(parameters), frozenset(buffers)
        self._static, self._generators = self._parameters | self._buffers, list(generators)
        self._users: dict[int, list[int]] = {}  # of each buffer: functions that were given it
        self._changers: dict[int, set[int]] = {}  # those that may have changed it
        self._counted: set[int] = set()  # buffers whose versions moved
        self._devices: set[torch.device] = set()  # of what the open function was given
        self._function = -1
        self._states: list[torch.Tensor] = []

    def happened(self, kind: Literal["enter", "exit"], call: int) -> None:
        """Write down that a call began or ended."""
        self.flow.happenings.append(Happening(kind, call))

    def pack(self, call: int, tensor: torch.Tensor) -> None:
        """Write down that autograd saved a tensor."""
        if (key := self._key(tensor)) not in self._static:
            storage, node = (key, self.born.get(key, -1)), private.saving_node()
            self.flow.happenings.append(Happening("pack", call, (storage,), node, len(self.flow.ops)))

    def begin(self, name: str, arguments: object) -> None:
        """Write down that a function began."""
        given = tensors(arguments)
        keys = self._keys(given)
        self._devices = {tensor.device for tensor in given}
        self._function = len(self.flow.functions)
        self.flow.functions.append(
            SeenFunction(name, self.n_ops, frozenset(keys), unrepeatable=_why_unrepeatable(arguments, given))
        )
        if self.written_unseen(given):
            self.flow.functions[-1].unrepeatable = refusals.WRITTEN_UNSEEN
        for key in keys:
            if key in self._buffers:
                self._users.setdefault(key, []).append(self._function)
        self.flow.happenings.append(Happening("begin", self._function, self._storages(keys)))
        self._states = [generator.get_state() for generator in self._generators]

    def end(self, output: Any) -> list[tuple[torch.Generator, torch.Tensor]]:
        """Write down what the open function returned; return the generators that it moved, and from which state."""
        returned, function = tensors(output), self.flow.functions[self._function]
        keys = self._keys(returned)
        function.close(output, keys, ran=self.n_ops > function.first_op)
        if not all(map(self._key, returned)):
            function.refused = function.refused or refusals.UNTRACED
        states = zip(self._generators, self._states, strict=True)
        moved = [(generator, state) for generator, state in states if not torch.equal(generator.get_state(), state)]
        for generator, _ in moved:
            function.draws = True
            if generator.device.type != "cpu" and generator.device not in self._devices:
                function.unrepeatable = function.unrepeatable or refusals.DRAWS_ELSEWHERE.format(generator.device)
        self.flow.happenings.append(Happening("end", self._function, self._storages(keys)))
        self._function = -1
        return moved

    def failed(self) -> None:
        """Write down that the open function raised."""
        function = self.flow.functions[self._function]
        function.refused = function.unrepeatable = "raised an exception that its caller caught"
        self.flow.happenings.append(Happening("end", self._function))
        self._function = -1

    def op(
        self,
        op: Any,
        call: int,
        stamps: tuple[object, object],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        written: list[torch.Tensor],
        *,
        draws: bool,
    ) -> str:
        """Write down an operator that ran inside a call; see `SeenOp`. Before its outputs count as born.

        Returns:
            Why nothing that runs it can be replayed; empty where it can.
        """
        read = list(dict.fromkeys(map(self._key, inputs)))
        changed = list(dict.fromkeys(map(self._key, written)))
        sizes = {key: t.untyped_storage().nbytes() for t in outputs if (key := self._key(t)) and key not in read}
        makes = {key: size for key, size in sizes.items() if size}
        is_view = outputs and not sizes and not changed
        reason = ""
        if op.overloadpacket is torch.ops.aten.rrelu_with_noise:
            reason = refusals.LATE_WRITE
        elif any(key in self._parameters for key in changed if key):
            reason = refusals.CHANGES_PARAMETER
        if self._function >= 0:
            function = self.flow.functions[self._function]
            function.draws |= draws
            if draws and not self._devices:
                function.unrepeatable = function.unrepeatable or refusals.DRAWS_ELSEWHERE.format("unknown")
            function.unrepeatable = reason or function.unrepeatable
            for key in changed:
                if key in self._buffers:
                    self._changers.setdefault(key, set()).add(self._function)
                elif key:
                    function.mutates |= self.born.get(key, -1) < function.first_op
            if not is_view:
                function.ops.append(len(self.flow.ops))
        if is_view:
            return reason
        self.flow.ops.append(
            SeenOp(
                name=str(op),
                function=self._function,
                call=call,
                node=private.saving_node(),
                start=stamps[0],
                stop=stamps[1],
                reads=list(self._storages(read)),
                makes=[((key, self.n_ops), size) for key, size in makes.items()],
                writes=list(self._storages(changed)),
            )
        )
        return reason

    def written_unseen(self, given: Iterable[torch.Tensor]) -> bool:
        """Whether one of these tensors, the model's own left out, was written more often than its version says."""
        for tensor in given:
            key = self._key(tensor)
            n_writes = self.n_writes[key, self.born.get(key, -1)] if key and key not in self._static else 0
            if n_writes and n_writes > private.version(tensor):
                return True
        return False

    def changed_buffer(self, first_function: int, key: int, *, counted: bool) -> None:
        """Write down that a call changed a buffer in place: each function that was given it may have done it.

        Args:
            first_function: the first that the call called.
            key: the buffer's storage.
            counted: whether its version says so. To a frame that is an argument changed in place, whoever owns it.
        """
        users = self._users.get(key, [])
        if counted:
            self._counted.add(key)
        self._changers.setdefault(key, set()).update(users[bisect.bisect_left(users, first_function) :])

    def bound_buffer(self, first_function: int, key: int) -> None:
        """Write down that a call bound another tensor as a buffer: what was given that tensor may have changed it."""
        for function in self.flow.functions[first_function:]:
            function.mutates |= key in function.given

    def used_only_by(self, functions: range, key: int) -> bool:
        """Whether no function but these was given a buffer; to be asked at the end."""
        users = self._users.get(key, [])
        return bool(users) and users[0] in functions and users[-1] in functions

    def finish(self) -> None:
        """Judge what can only be known at the end."""
        begun = (each for each in self.flow.happenings if each.kind == "begin")
        for seen, happening in zip(self.flow.functions, begun, strict=True):
            last = [self.mutations.get(storage, -1) for storage in happening.storages]
            seen.mutated = [position for position, op in enumerate(last) if op >= seen.first_op]
        for key, changers in self._changers.items():
            for function in changers:
                seen = self.flow.functions[function]
                seen.unrepeatable = seen.unrepeatable or "changes a buffer"
                own = self.used_only_by(range(function, function + 1), key)
                seen.mutates |= not own or (key in self._counted and not seen.alias)

    def _keys(self, found: Iterable[torch.Tensor]) -> list[int]:
        """Storages of tensors, in order, the model's own included."""
        return [key for key in dict.fromkeys(map(self._key, found)) if key]

    def _storages(self, keys: Iterable[int]) -> tuple[Storage, ...]:
        return tuple((key, self.born.get(key, -1)) for key in keys if key and key not in self._static)


def _why_unrepeatable(arguments: object, given: list[torch.Tensor]) -> str:
    """Why a function that is given this cannot run again by itself; empty where nothing is known against it."""
    if not torch.is_grad_enabled():
        return "runs while gradients are off"
    if not any(tensor.requires_grad for tensor in given):
        return "is given nothing that requires a gradient"  # and saves nothing, so that no frame records it
    if private.foreign_checkpoint_active():
        return "runs in a torch.utils.checkpoint region of the model's own"
    opaque = [leaf for leaf in tree_leaves(arguments) if not isinstance(leaf, (torch.Tensor, *PLAIN))]
    return f"is given an object whose state a replay does not know ({type(opaque[0]).__name__})" if opaque else ""

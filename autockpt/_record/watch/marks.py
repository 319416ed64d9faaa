"""What a watched run records: markers on the tape, and the calls, functions, operators and saves that they refer to.

Calls and torch functions form one tree. Its leaves are functions; operators run inside them.

    call        enter ─────────────────────────────────────────────────────────────── exit
    function            begin ──────────────────────────────────── end
    operator                    start ── allocations ── stop
    save                                                     pack          unpack ─ release (backward)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from ..._calls.roots import WHOLE, called_by_loops
from ..._ranks.fsdp import parameters_at_rest
from ..._stash.spill import SpilledTensor
from ..._torch import private
from ..._torch.devices import Event

MarkKind = Literal[
    "aside",
    "given",
    "enter",
    "exit",
    "begin",
    "end",
    "start",
    "stop",
    "pack",
    "unpack",
    "release",
    "ready",
    "held",
    "gathered",
    "whole",
    "found",
    "forward_end",
    "backward_again",
    "backward_turn",
    "backward_end",
]


class Sources(NamedTuple):
    """Which calls and torch functions, by index, returned this very tensor object, in its present version.

    `graph` is set for arguments only: whether the argument has a ``grad_fn``.
    """

    calls: tuple[int, ...] = ()
    functions: tuple[int, ...] = ()
    graph: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """One marker: what happened at its place on the tape.

    A ``forward_end`` begins the first backward pass, and a ``backward_again`` each later one. More forwards may follow
    either one, while a graph of the step waits for its backward. A ``given`` precedes each forward after the first. A
    ``backward_turn`` begins a pass inside another (in a tensor's hook), or goes on with the outer one. An ``aside``
    begins the recorder's own work: what is allocated up to the next marker of a call, function, operator or save is not
    part of the step.

    Attributes:
        kind: what happened.
        index: the call (enter, exit, gathered, found), the function (begin, end), the operator (start, stop), the save
            (pack, unpack, release), the parameter (ready), the holder (held) or what is whole (whole).
        stamp: a reading of the clock, for the kinds that happen in forward.
        keys: storages: of the arguments (enter, begin, start), of the outputs (exit, end, stop), of the saved tensor
            (pack), of its restored copy (unpack, if saves were spilled), of the gradient (ready), of the tensors that
            the holder has (held), of parameters that were gathered for the call that begins (gathered), or of what
            stands at attributes as it does (found).
    """

    kind: MarkKind
    index: int
    stamp: object = None
    keys: tuple[int, ...] = ()


class Found(NamedTuple):
    """A tensor at an attribute of a module as a call begins: the attribute's qualified name; whether it has a graph."""

    name: str
    graph: bool


@dataclass(slots=True)
class SeenCall:
    """A module call.

    Attributes:
        name: qualified name of the module.
        class_name: class of the module.
        occurrence: which call of that module, from 0.
        parent: the call that made it, -1 for the root.
        of_loop: whether the user's loop called it, not a forward that was running.
        stop: one past the last call inside it.
        shapes: a text of its class and of the shapes and dtypes of its arguments and own parameters; equal for calls
            that are alike.
        ways: for each storage among its arguments, the distinct `Sources` of the tensor objects with that storage.
        sums: for each storage among its arguments, a checksum of its bytes; 0 where none was taken (see `copies`).
        draws: whether a default generator advanced.
        bound: qualified names of buffers inside it that the call replaced with other tensors.
        nested: whether a nested tensor was saved inside it.
        reasons: why it cannot be replayed exactly, as far as Python objects show it (see `Checks`).
        checkpointed: whether it runs inside what the model recomputes itself.
        alone: why it cannot share a segment with other calls; empty if it can.
        found: what stands at attributes of its modules as it begins, in the order of the keys of its ``found`` marker.
        traces: why more than its result may tell that it, or a call inside it, ran; empty if no reason is known.
        gathers: of a unit of FSDP2, bytes of its parameters while they are gathered, of what they come in, and of what
            other ranks send.
    """

    name: str
    class_name: str
    occurrence: int
    parent: int
    of_loop: bool = False
    stop: int = 0
    shapes: str = ""
    ways: tuple[tuple[Sources, ...], ...] = ()
    sums: tuple[int, ...] = ()
    draws: bool = False
    bound: list[str] = field(default_factory=list)
    nested: bool = False
    reasons: list[str] = field(default_factory=list)
    checkpointed: bool = False
    alone: str = ""
    found: tuple[Found, ...] = ()
    traces: str = ""
    gathers: tuple[int, int, int] = (0, 0, 0)


class Region(NamedTuple):
    """What the model runs inside `torch.utils.checkpoint` or under `autockpt.recompute`, and again in backward.

    Attributes:
        caller: name of the module in whose forward that is called.
        inside: name of a module that runs inside; of the caller where only functions do.
        function: name of the function under `autockpt.recompute`; empty for a region of torch's.
    """

    caller: str
    inside: str
    function: str = ""


class SeenWhole(NamedTuple):
    """Names of the units of FSDP2 that are gathered at a moment of backward, and of those that are on their way."""

    here: frozenset[str]
    coming: frozenset[str]


@dataclass(slots=True)
class SeenFunction:
    """A torch function that a call's own code called.

    Attributes:
        name: its short name.
        occurrence: which function of that name in its call, from 0.
        call: the call whose code called it.
        ways: for each storage among its arguments, the distinct `Sources` of the tensor objects with that storage.
        draws: whether a default generator advanced.
        unreadable: why a replay cannot hand out its result.
        unrepeatable: why it cannot be run again by itself, as far as Python objects show it (see `Checks`).
        plain: whether everything that it returned besides tensors is a plain value (`checks.PLAIN`).
        untraced: whether some tensor that it returned has no storage on the tape: it is empty or sparse.
        cached_casts: whether autocast's cache was on, so that later functions may read a cast of a parameter made here.
    """

    name: str
    occurrence: int
    call: int
    ways: tuple[tuple[Sources, ...], ...] = ()
    draws: bool = False
    unreadable: str = ""
    unrepeatable: str = ""
    plain: bool = True
    untraced: bool = False
    cached_casts: bool = False


@dataclass(slots=True)
class SeenOp:
    """An operator that ran.

    Attributes:
        name: such as ``aten.mm.default``.
        function: the torch function that ran it, -1 if none did.
        call: the innermost call that ran it, -1 if none did (the loss).
        node: number of the newest autograd node when it ran. That is its own node, if it has one.
        words: its name with shapes and dtypes; equal for operators that are alike.
        written: which of its ``start`` marker's storages it changes, as positions among them.
        casts: which of them are casts of parameters that autocast cached, in the same way.
        draws: whether it draws random numbers; set only for fake tensors, where no generator advances.
        returns: whether it returned any tensor.
    """

    name: str
    function: int
    call: int
    node: int
    words: str
    written: tuple[int, ...] = ()
    casts: tuple[int, ...] = ()
    draws: bool = False
    returns: bool = False


class SeenSave(NamedTuple):
    """A tensor that autograd saved.

    Attributes:
        call: the innermost call that saved it. For the loss it is the root: no candidate segment covers that save.
        function: the torch function that saved it, -1 if none did.
        node: number of the autograd node that saves it.
        ops: how many operators had started by then.
    """

    call: int
    function: int
    node: int
    ops: int


@dataclass(slots=True, kw_only=True)
class SeenStep:
    """What one watched run records.

    Attributes:
        parameters: storages of the model's parameters.
        buffer_names: qualified names of the model's buffers, by storage.
        roots: names of the models whose forwards the user's loop calls.
        constants: storages of tensors that the model's attributes, closures and globals referred to before the step,
            and that had no ``grad_fn``.
        marks: the markers, by their number on the tape.
        calls: the calls, in pre-order.
        functions: the torch functions that the calls made, in order.
        ops: the operators that ran in forward, in order.
        saves: the tensors that autograd saved, in order.
        casts: bytes of the storages of casts that autocast cached, which operators read.
        written_late: the saves whose tensors were written to later, which no version counts (see `LateWrites`).
        holders: what else holds tensors after forward (a custom function's ctx), in words for the user.
        regions: what the model recomputes by itself, in order.
        whole: which units were gathered as backward read, each time that it had changed.
        events: the events of the tape that are of the step, once it is closed.
        sets_itself_up: whether forward changed attributes of modules. Many modules do so in their first forward only.
    """

    parameters: frozenset[int]
    buffer_names: dict[int, tuple[str, ...]]
    constants: frozenset[int] = frozenset()
    roots: frozenset[str] = frozenset({WHOLE})
    marks: dict[int, Mark] = field(default_factory=dict)
    calls: list[SeenCall] = field(default_factory=list)
    functions: list[SeenFunction] = field(default_factory=list)
    ops: list[SeenOp] = field(default_factory=list)
    saves: list[SeenSave] = field(default_factory=list)
    casts: dict[int, int] = field(default_factory=dict)
    written_late: set[int] = field(default_factory=set)
    holders: list[str] = field(default_factory=list)
    regions: dict[Region, None] = field(default_factory=dict)
    whole: list[SeenWhole] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    sets_itself_up: bool = False

    def casts_read(self, mark: Mark) -> list[int]:
        """Return the storages of cached casts that the operator reads which starts at a marker; none at any other."""
        return [mark.keys[each] for each in self.ops[mark.index].casts] if mark.kind == "start" else []

    def in_order(self) -> list[Mark]:
        """The markers in the order of the tape, which need not be that of their numbers."""
        return [self.marks[event.key] for event in self.events if event.kind == "mark"]


def run_of(
    model: torch.nn.Module,
    keys: Callable[[Iterable[torch.Tensor]], tuple[int, ...]],
    held: Iterable[torch.Tensor] = (),
) -> SeenStep:
    """Return a run in which nothing has been seen yet.

    Args:
        model: the model.
        keys: returns the keys of tensors' storages, each once.
        held: tensors that the model's attributes, closures and globals refer to.
    """
    names: dict[int, tuple[str, ...]] = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        for key in keys(private.parts([buffer])):
            names[key] = (*names.get(key, ()), name)
    return SeenStep(
        parameters=frozenset(keys(private.parts(parameters_at_rest(model)))),
        buffer_names=names,
        constants=frozenset(keys(each for each in held if each.grad_fn is None and each.layout == torch.strided)),
        roots=frozenset(called_by_loops(model)),
    )


class SavedParts(NamedTuple):
    """What autograd holds in the place of a wrapper that it saves: each tensor inside is a save of its own.

    Attributes:
        slots: what stands for the tensors inside.
        make: makes the wrapper of them.
    """

    slots: tuple[SavedSlot | torch.Tensor, ...]
    make: Callable[[Sequence[torch.Tensor]], torch.Tensor]


class SavedSlot:
    """What autograd holds in the place of a saved tensor, so that its release is seen.

    Attributes:
        save: number of the save.
        held: the tensor, or a handle of its spilled bytes.
    """

    __slots__ = ("_released", "held", "save")

    def __init__(self, released: Callable[[], object], save: int, held: torch.Tensor | SpilledTensor) -> None:
        """Hold a tensor or its spilled bytes; `released` is called just before they are let go."""
        self._released, self.save, self.held = released, save, held

    def __del__(self) -> None:
        # Put the marker first: the tensor is freed only after this, so it is alive up to and including that tick.
        self._released()

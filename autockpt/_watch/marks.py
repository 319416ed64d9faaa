"""What a watched run leaves: markers on the tape, and the calls, functions, operators and saves that they stand for.

Calls and torch functions form one tree, whose leaves are functions; operators run inside them.

    call        enter ─────────────────────────────────────────────────────────────── exit
    function            begin ──────────────────────────────────── end
    operator                    start ── allocations ── stop
    save                                                     pack          unpack ─ release (backward)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from .. import _torch_private as private
from .._calls.roots import WHOLE, called_by_loops
from .._device import Event
from .._ranks.units import parameters_at_rest
from .._stash.base import SpilledTensor

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
    "forward_end",
    "backward_again",
    "backward_end",
]


class Sources(NamedTuple):
    """Who returned a very tensor object, unchanged since: calls, and torch functions, by index.

    Of an argument also whether it has a `graph`: a gradient flows through it to what made it.
    """

    calls: tuple[int, ...] = ()
    functions: tuple[int, ...] = ()
    graph: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """One marker: what happened at its place on the tape.

    A ``forward_end`` begins the first backward pass, and a ``backward_again`` each further one. Forwards may come after
    either, while a graph of the step waits. A ``given`` stands before each further forward.

    What is allocated from an ``aside`` to the next marker of a call, function, operator or save is the recorder's own.

    Attributes:
        kind: what happened.
        index: the call (enter, exit), the function (begin, end), the operator (start, stop), the save (pack, unpack,
            release), the parameter (ready) or the holder (held).
        stamp: a reading of the clock, for the kinds that happen in forward.
        keys: storages of the arguments (enter, begin, start), outputs (exit, end, stop), of the tensor saved (pack),
            of the one brought back (unpack, where saves were spilled), of the gradient (ready) or held (held), and of
            parameters that were gathered for the call that begins (gathered).
    """

    kind: MarkKind
    index: int
    stamp: object = None
    keys: tuple[int, ...] = ()


@dataclass(slots=True)
class SeenCall:
    """A module call.

    Attributes:
        name: qualified name of the module.
        class_name: class of the module.
        occurrence: which call of that module, from 0.
        parent: the call whose code made it, -1 for the root.
        stop: one past the last call inside it.
        shapes: of what it was given and of its own parameters, as words that are equal for calls that are alike.
        ways: for each storage that came in, who returned its objects, those alike once.
        draws: whether a default generator moved.
        bound: qualified names of buffers inside it that were bound to other tensors.
        nested: whether a nested tensor was saved inside it.
        reasons: why it cannot be replayed exactly, as far as objects tell.
        checkpointed: whether a torch.utils.checkpoint region of the model's own runs it.
        alone: why it can be in no segment with other calls; empty where it can.
    """

    name: str
    class_name: str
    occurrence: int
    parent: int
    stop: int = 0
    shapes: str = ""
    ways: tuple[tuple[Sources, ...], ...] = ()
    draws: bool = False
    bound: list[str] = field(default_factory=list)
    nested: bool = False
    reasons: list[str] = field(default_factory=list)
    checkpointed: bool = False
    alone: str = ""


@dataclass(slots=True)
class SeenFunction:
    """A torch function as a call's own code called it.

    Attributes:
        name: its short name.
        occurrence: which one of that name in the code of its call.
        call: that call.
        ways: for each storage that came in, who returned its objects, those alike once.
        draws: whether a default generator moved.
        unreadable: why a replay cannot hand out its result.
        unrepeatable: why it cannot run again by itself, as far as objects tell.
        plain: whether all that it returned besides tensors are plain values.
        untraced: whether some tensor that it returned has no storage.
        cached_casts: whether casts of parameters that are made in it are autocast's own, which others read later.
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
    """An operator as it ran.

    Attributes:
        name: ``aten.mm.default``.
        function: that ran it, -1 if none did.
        call: innermost call that ran it, -1 if none did (the loss).
        node: number of the autograd node that was made last before it ran: its own, if it has one.
        words: name and shapes, equal for operators that are alike.
        written: positions, among the storages of its first marker, of those that it changes.
        draws: whether it draws random numbers, where no generator tells (fake tensors).
        returns: whether it returned any tensor.
    """

    name: str
    function: int
    call: int
    node: int
    words: str
    written: tuple[int, ...] = ()
    draws: bool = False
    returns: bool = False


class SeenSave(NamedTuple):
    """A tensor that autograd saved.

    Attributes:
        call: innermost call that saved it; the root for what the loss saves, since no candidate covers it.
        function: that saved it, -1 if none did.
        node: number of the autograd node that saves it.
        ops: how many operators had started.
    """

    call: int
    function: int
    node: int
    ops: int


@dataclass(slots=True, kw_only=True)
class SeenStep:
    """What one watched run leaves.

    Attributes:
        parameters: storages of the model's parameters.
        buffer_names: qualified names of the model's buffers, by storage.
        roots: names of the models whose forwards the user's loop calls.
        constants: storages of tensors without a graph that attributes, closures and globals of the model's had before
            the step.
        marks: the markers, by their number on the tape.
        calls: the calls, in pre-order.
        functions: the torch functions that they called, in order.
        ops: the operators that ran in forward, in order.
        saves: what autograd saved, in order.
        holders: who else holds tensors after forward, in words.
        events: the tape, once it is closed.
        reached: which of the step's leaves get a gradient.
        threads: whether threads that no tape sees may free memory: those of collectives on a CPU.
        sets_itself_up: whether forward changed attributes of modules, as many do in their first and never again.
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
    holders: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reached: frozenset[int] = frozenset()
    threads: bool = False
    sets_itself_up: bool = False

    def in_order(self) -> list[Mark]:
        """The markers as they lie on the tape: their numbers may be out of turn."""
        return [self.marks[event.key] for event in self.events if event.kind == "mark"]


def run_of(
    model: torch.nn.Module,
    keys: Callable[[Iterable[torch.Tensor]], tuple[int, ...]],
    held: Iterable[torch.Tensor] = (),
) -> SeenStep:
    """Return a run in which nothing has been seen yet.

    Args:
        model: the model.
        keys: names the storages of tensors, each once.
        held: tensors that attributes, closures and globals of the model's have.
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


class SavedSlot:
    """What autograd holds instead of a tensor, so that its release shows.

    Attributes:
        save: number of the save.
        held: the tensor, or where its bytes wait.
    """

    __slots__ = ("_released", "held", "save")

    def __init__(self, released: Callable[[], object], save: int, held: torch.Tensor | SpilledTensor) -> None:
        """Take what is held; `released` is called before it goes."""
        self._released, self.save, self.held = released, save, held

    def __del__(self) -> None:
        # The tensor goes after the marker: it is alive until its save is released, not a tick less.
        self._released()

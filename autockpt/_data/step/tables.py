"""The parts of a profile: static bytes, calls, and tables of columns for what there is a lot of. No torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ..text.amounts import MOST_BYTES, Bytes, Seconds
from ..text.keys import key_of

MOST = 2**31
"""Tables have fewer rows than this, and the clock has fewer ticks."""

Index = Annotated[int, msgspec.Meta(ge=0, lt=MOST)]
MaybeIndex = Annotated[int, msgspec.Meta(ge=-1, lt=MOST)]
Column = tuple[Index, ...]
MaybeColumn = tuple[MaybeIndex, ...]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything in a profile: by keyword, no unknown fields.

    Each part says frozen and kw_only again, since neither type checkers nor msgspec let both be inherited.
    """


class Static(Part, frozen=True, kw_only=True):
    """Bytes that are there before the step begins and stay through it.

    Attributes:
        parameter_bytes: parameters, each storage once.
        buffer_bytes: buffers, each storage once.
        input_bytes: the batch.
        gradient_bytes: gradients that existed before the step.
        optimizer_bytes: optimizer state, 0 where no optimizer was given.
        other_bytes: anything else that is alive (tensors in plain attributes, and those that the loss closes over), and
            measured bytes that none of these explain. Negative if these add up to more than was measured.
    """

    parameter_bytes: Bytes
    buffer_bytes: Bytes
    input_bytes: Bytes
    gradient_bytes: Bytes = 0
    optimizer_bytes: Bytes = 0
    other_bytes: Annotated[int, msgspec.Meta(ge=-MOST_BYTES, le=MOST_BYTES)] = 0

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        return sum(getattr(self, part) for part in self.__struct_fields__)


class Recipe(Part, frozen=True, kw_only=True):
    """How a profile that is shipped was recorded.

    Attributes:
        batch: what one step trains on, in words.
        precision: of parameters and operators, in words.
        optimizer: class of the optimizer.
        versions: of the packages that the model and its operators came from.
        command: the command that records it again.
    """

    batch: str
    precision: str
    optimizer: str
    versions: dict[str, str]
    command: str


class ArgumentRecord(msgspec.Struct, frozen=True, array_like=True):
    """One way in which a storage came into a call or a torch function as an argument; an array in JSON.

    A storage has two if a result comes in as it is and a view of it comes in as well.

    Attributes:
        tensor: index of the tensor, -1 for one that is older than the step (an input).
        sources: the calls that returned this very object, unchanged since; empty where the caller's own code
            made it (a view, a sum), so that it belongs to the boundary of any segment that reads it.
        mutated: whether it was changed in place after the call began.
        functions: the torch functions that returned this very object, by index.
        graph: whether gradients flow through it to what made it; None in older files, which do not say.
    """

    tensor: MaybeIndex
    sources: Column = ()
    mutated: bool = False
    functions: Column = ()
    graph: bool | None = None


class RefusedPart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Something that cannot be replayed exactly, or cannot be dropped, and why; an array in JSON.

    Attributes:
        what: ``call``: the call cannot be replayed. ``run``: no run of several calls with this one can be replayed.
            ``unit``: a replay cannot leave out the call and hand out its result. ``result``: the same of a torch
            function. ``function``: the torch function cannot run again by itself, as a call of a segment. ``tensor``:
            after forward, something other than autograd and the caller holds the tensor; the reason says where.
        index: of the call, the function or the tensor.
        reason: in words.
    """

    what: Literal["call", "run", "unit", "result", "function", "tensor"]
    index: Index
    reason: str


class CallRecord(Part, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One invocation of a module, in pre-order. Older files have more fields, which are ignored.

    Attributes:
        name: qualified name; empty for the root.
        occurrence: which call of that module within the step, from 0.
        parent: index of the call whose forward made this one; -1 for the root.
        stop: one past the last call of this call's subtree.
        class_name: class of the module.
        enter: tick at which forward began.
        exit: tick at which forward ended.
        enter_seconds: when forward began, from the start of the step's forward.
        exit_seconds: when forward ended.
        arguments: storages that came in, parameters and buffers left out.
        outputs: tensors of this step that went out.
        signature: equal for structurally identical calls.
        draws: whether the state of a random generator changed.
        buffers: qualified names of the buffers whose values it changed.
        attributes: tensors of this step that it found at attributes of its modules, and that a replay needs there;
            unset, and not in files, where there are none.
        unread: qualified names of attributes with other tensors of this step, which it did not read; the same.
    """

    name: str
    occurrence: Index
    parent: MaybeIndex
    stop: Index
    class_name: str
    enter: Index
    exit: Index
    enter_seconds: Seconds
    exit_seconds: Seconds
    arguments: tuple[ArgumentRecord, ...] = ()
    outputs: Column = ()
    signature: str = ""
    draws: bool = False
    buffers: tuple[str, ...] = ()
    attributes: Column | msgspec.UnsetType = msgspec.UNSET
    unread: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> str:
        """``qualified.name#occurrence``, as plans write it."""
        return key_of(self.name, self.occurrence)

    @property
    def forward_seconds(self) -> float:
        """Seconds between the begin and the end of forward, children included."""
        return self.exit_seconds - self.enter_seconds


class ColumnTable(Part, frozen=True, kw_only=True):
    """Base of tables: one row for each place of the columns, which are of one length."""

    def __len__(self) -> int:
        return len(getattr(self, self.__struct_fields__[0]))


class FunctionTable(ColumnTable, frozen=True, kw_only=True):
    """The torch functions that calls called in their own code, in the order of their begins, as columns.

    Only outermost functions count. Property getters do not, nor does what runs inside a child call. A module called
    while gradients are off is not recorded as a call, but takes an occurrence; the functions that it calls are its
    caller's.

    Attributes:
        call: index of the innermost call whose code called it.
        name: short name, as plans write it: ``linear``, ``scaled_dot_product_attention``.
        occurrence: which of the functions of that name in that call's own code, from 0.
        enter: tick at which it began; births and saves between its ticks are its own.
        exit: tick at which it ended.
        seconds: its forward seconds, median over equal functions of equal calls.
        reads: tensors that came in, without those older than the step and the model's own. Empty if it looks only at
            shapes (``size``): then it can run on hollow tensors.
        makes: tensors born in it that went out or that autograd saved in it.
        alias: whether an output shares storage with an argument (views, in-place).
        mutates: whether it changed in place anything that is older than itself and that others use too. A buffer that
            only this function is given in the whole step does not count.
        draws: whether the state of a default random generator changed.
        arguments: storages that came in, as for a call. Empty for functions of calls that call no module, unless one
            such call is the whole profile.
    """

    call: Column = ()
    name: tuple[str, ...] = ()
    occurrence: Column = ()
    enter: Column = ()
    exit: Column = ()
    seconds: tuple[Seconds, ...] = ()
    reads: tuple[Column, ...] = ()
    makes: tuple[Column, ...] = ()
    alias: tuple[bool, ...] = ()
    mutates: tuple[bool, ...] = ()
    draws: tuple[bool, ...] = ()
    arguments: tuple[tuple[ArgumentRecord, ...], ...] = ()

    def key(self, index: int) -> str:
        """``name#occurrence``, as plans write it after the key of its call."""
        return key_of(self.name[index], self.occurrence[index])


class OpTable(ColumnTable, frozen=True, kw_only=True):
    """The operators that ran in forward inside calls, views left out, in order, as columns.

    Attributes:
        function: index of the function that ran it, -1 if none did.
        call: index of the innermost call that ran it.
        name: ``aten.mm.default``.
        start: tick at which it started; what is allocated up to its stop is its own.
        stop: tick at which it stopped.
        seconds: its share of the function's seconds; those of a function's operators add up to the function's.
        reads: tensors that it read.
        makes: tensors born in it that it returned.
        writes: older tensors that it changed in place.
    """

    function: MaybeColumn = ()
    call: Column = ()
    name: tuple[str, ...] = ()
    start: Column = ()
    stop: Column = ()
    seconds: tuple[Seconds, ...] = ()
    reads: tuple[Column, ...] = ()
    makes: tuple[Column, ...] = ()
    writes: tuple[Column, ...] = ()


class TensorTable(ColumnTable, frozen=True, kw_only=True):
    """Storages born in the step, as columns.

    Attributes:
        bytes: size of each.
        birth: tick of the allocation.
        natural: tick from which only saves keep it alive.
        death: tick at which it was gone in the recorded step.
    """

    bytes: tuple[Bytes, ...]
    birth: Column
    natural: Column
    death: Column


class SaveTable(ColumnTable, frozen=True, kw_only=True):
    """What autograd saved for backward, parameters and buffers left out, as columns.

    Attributes:
        tensor: index of the tensor, -1 for one that is older than the step (an input).
        call: index of the innermost call that saved it.
        pack: tick at which it was saved.
        unpack: tick at which backward first read it; `Profile.ticks` if it never did.
        release: tick at which autograd released it.
        seconds: when it was saved, from the start of the step's forward.
        function: index of the function that saved it; -1 if none did (a custom autograd function, the loss).
        op: index of the operator that saved it, -1 if not known.
    """

    tensor: MaybeColumn
    call: Column
    pack: Column
    unpack: Column
    release: Column
    seconds: tuple[Seconds, ...]
    function: MaybeColumn
    op: MaybeColumn

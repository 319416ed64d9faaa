"""The profile: what one model's training step holds, when, and what each call costs. JSON, no torch.

The clock of a profile counts *ticks*: every allocation is one, and so is every marker (a call opened or
closed, a tensor saved, read back or released). Frees between two ticks cannot move a peak, so a tensor is
``[birth, death)`` in ticks and a number of bytes, and nothing else about time matters for memory.

    tick     0    1    2    3    4    5    6    7    8    9    10   11
             enter     pack      exit      │ unpack    release
             root      │                   │ │         │
    tensor        ├────┼─────────┤         │ │         │            natural: last Python reference
                       └───────────────────┼─┴─────────┤            held by the save
                                     forward_ticks
"""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal

import msgspec

from . import _files
from ._errors import InvalidFile
from ._plan import Bytes, Seconds

__all__ = ["Argument", "CallRecord", "FunctionRecord", "Profile", "SaveTable", "Static", "TensorTable"]

Index = Annotated[int, msgspec.Meta(ge=0)]
Column = tuple[Index, ...]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything in a profile: by keyword, no unknown fields.

    Each part says frozen and kw_only again, since neither type checkers nor msgspec let both be inherited.
    """


class Static(_Part, frozen=True, kw_only=True):
    """Bytes that are there before the step begins and stay through it.

    Attributes:
        parameter_bytes: parameters, each storage once.
        buffer_bytes: buffers, each storage once.
        input_bytes: the batch.
        gradient_bytes: gradients that existed before the step.
        optimizer_bytes: optimizer state, 0 where no optimizer was given.
    """

    parameter_bytes: Bytes
    buffer_bytes: Bytes
    input_bytes: Bytes
    gradient_bytes: Bytes = 0
    optimizer_bytes: Bytes = 0

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        return self.parameter_bytes + self.buffer_bytes + self.input_bytes + self.gradient_bytes + self.optimizer_bytes


class Argument(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One storage that came into a call as an argument; an array in JSON.

    Attributes:
        tensor: index of the tensor, -1 for one that is older than the step (an input).
        sources: the calls that returned this very object, unchanged since; empty where the caller's own code
            made it (a view, a sum), so that it belongs to the boundary of any segment that reads it.
        mutated: whether it was changed in place after the call began.
    """

    tensor: Annotated[int, msgspec.Meta(ge=-1)]
    sources: Column = ()
    mutated: bool = False


class CallRecord(_Part, frozen=True, kw_only=True):
    """One invocation of a module, in pre-order.

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
        draws: whether a random generator moved.
        buffers: qualified names of the buffers whose values it changed.
        refused: why it cannot be replayed exactly; empty where it can.
    """

    name: str
    occurrence: Index
    parent: Annotated[int, msgspec.Meta(ge=-1)]
    stop: Index
    class_name: str
    enter: Index
    exit: Index
    enter_seconds: Seconds
    exit_seconds: Seconds
    arguments: tuple[Argument, ...] = ()
    outputs: Column = ()
    signature: str = ""
    draws: bool = False
    buffers: tuple[str, ...] = ()
    refused: str = ""

    @property
    def key(self) -> str:
        """``qualified.name#occurrence``, as plans write it."""
        return f"{self.name}#{self.occurrence}"

    @property
    def forward_seconds(self) -> float:
        """Seconds between the begin and the end of forward, children included."""
        return self.exit_seconds - self.enter_seconds


class FunctionRecord(_Part, frozen=True, kw_only=True):
    """The torch functions that a call's own code called, in order, and the operators they ran."""

    call: Index
    functions: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()


class TensorTable(_Part, frozen=True, kw_only=True):
    """Storages born in the step, as columns.

    Attributes:
        bytes: size of each.
        birth: tick of the allocation.
        natural: tick from which only saves keep it alive.
        death: tick at which it was gone in the recorded step.
    """

    bytes: Column
    birth: Column
    natural: Column
    death: Column

    def __len__(self) -> int:
        return len(self.bytes)


class SaveTable(_Part, frozen=True, kw_only=True):
    """What autograd saved for backward, parameters and buffers left out, as columns.

    Attributes:
        tensor: index of the tensor, -1 for one that is older than the step (an input).
        call: index of the innermost call that saved it.
        pack: tick at which it was saved.
        unpack: tick at which backward first read it; `Profile.ticks` if it never did.
        release: tick at which autograd let it go.
        seconds: when it was saved, from the start of the step's forward.
    """

    tensor: tuple[Annotated[int, msgspec.Meta(ge=-1)], ...]
    call: Column
    pack: Column
    unpack: Column
    release: Column
    seconds: tuple[Seconds, ...]

    def __len__(self) -> int:
        return len(self.tensor)


class Profile(_Part, frozen=True, kw_only=True):
    """The recorded measurements of one model, batch shape, dtype, device and software version.

    Attributes:
        model: class of the model.
        mode: ``real`` (a whole step ran), ``forward`` (forward ran, backward is synthesised from the
            autograd graph) or ``fake`` (nothing ran; operators of fake tensors).
        times: ``measured``, or ``roofline`` of `device`.
        device: where it ran, or the named device of the roofline.
        torch_version: version of torch.
        recorded: date and time, ISO 8601.
        plain_seconds: seconds of the plain step.
        static: bytes that are there before the step.
        ticks: length of the clock.
        forward_ticks: tick at which forward, loss included, ended.
        generator_bytes: bytes of a generator's state, allocated for a moment where a replay sets it.
        replay_host_seconds: host seconds that a replayed segment costs beside its operators.
        calls: module calls in pre-order; the first is the root.
        functions: torch functions and operators a call ran itself.
        tensors: storages born in the step.
        saves: what autograd saved.
        buffer_bytes: bytes of each buffer that forward changes, by qualified name.
        notes: what could not be seen or put back, in words.
    """

    SCHEMA: ClassVar[str] = "autockpt.profile/1"

    schema: Literal["autockpt.profile/1"] = "autockpt.profile/1"
    model: str
    mode: Literal["real", "forward", "fake"]
    times: Literal["measured", "roofline"]
    device: str
    torch_version: str
    recorded: str
    plain_seconds: Seconds
    static: Static
    ticks: Index
    forward_ticks: Index
    generator_bytes: Bytes = 0
    replay_host_seconds: Seconds = 0.0
    calls: Annotated[tuple[CallRecord, ...], msgspec.Meta(min_length=1)]
    functions: tuple[FunctionRecord, ...] = ()
    tensors: TensorTable
    saves: SaveTable
    buffer_bytes: dict[str, Bytes] = {}
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _validate(self)

    def explain(self) -> str:
        """Return where memory and time go, as text."""
        from ._explain import explain_profile

        return explain_profile(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to `path` as JSON."""
        _files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile that `save` wrote.

        Raises:
            InvalidFile: the file is truncated, of another schema, or contradicts itself.
        """
        return _files.load(path, cls)


def _validate(profile: Profile) -> None:
    """Raise `InvalidFile` where the parts of a profile contradict each other."""
    calls, tensors, saves = profile.calls, profile.tensors, profile.saves
    for i, call in enumerate(calls):
        if not (call.parent < i < call.stop <= len(calls)) or (i > 0) != (call.parent >= 0):
            raise InvalidFile(f"call {call.key!r} at {i} has parent {call.parent} and stop {call.stop}: not a tree")
        if i and call.stop > calls[call.parent].stop:
            raise InvalidFile(f"call {call.key!r} ends after its parent")
        if not call.enter <= call.exit <= profile.forward_ticks <= profile.ticks:
            raise InvalidFile(f"call {call.key!r} runs from tick {call.enter} to {call.exit}, past the end of forward")
        if not call.enter_seconds <= call.exit_seconds:
            raise InvalidFile(f"call {call.key!r} ends at {call.exit_seconds} s, before it begins")
        if any(name not in profile.buffer_bytes for name in call.buffers):
            raise InvalidFile(f"call {call.key!r} changes a buffer of which the profile does not say the bytes")
        if any(source >= len(calls) for argument in call.arguments for source in argument.sources):
            raise InvalidFile(f"call {call.key!r} takes an argument from a call that is not in the profile")
        if any(t >= len(tensors) for t in (*(argument.tensor for argument in call.arguments), *call.outputs)):
            raise InvalidFile(f"call {call.key!r} names a tensor that is not in the profile")
    keys = [call.key for call in calls]
    if len(set(keys)) != len(keys):
        raise InvalidFile("a call stands in the profile twice")
    if not len(tensors.bytes) == len(tensors.birth) == len(tensors.natural) == len(tensors.death):
        raise InvalidFile("the columns of tensors differ in length")
    if any(later <= earlier for earlier, later in zip(tensors.birth, tensors.birth[1:], strict=False)):
        raise InvalidFile("tensors are not in the order of their births")
    for birth, natural, death in zip(tensors.birth, tensors.natural, tensors.death, strict=True):
        if not birth < natural <= profile.ticks or not birth < death <= profile.ticks:
            raise InvalidFile(f"a tensor is born at tick {birth} and dies at {natural} or {death} of {profile.ticks}")
    columns = (saves.tensor, saves.call, saves.pack, saves.unpack, saves.release, saves.seconds)
    if len({len(column) for column in columns}) != 1:
        raise InvalidFile("the columns of saves differ in length")
    for tensor, call, pack, unpack, release, _ in zip(*columns, strict=True):
        if tensor >= len(tensors) or call >= len(calls):
            raise InvalidFile("a save names a tensor or a call that is not in the profile")
        if not pack <= release <= profile.ticks or not pack <= unpack <= profile.ticks:
            raise InvalidFile(f"a tensor saved at tick {pack} is read at {unpack} and released at {release}")

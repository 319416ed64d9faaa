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

import itertools
import os
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from . import _files
from ._consistency import validate
from ._plan import Bytes, Seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Argument",
    "CallRecord",
    "FunctionTable",
    "OpTable",
    "Profile",
    "Recipe",
    "SaveTable",
    "Static",
    "TensorTable",
    "plain_peak_bytes",
]

Index = Annotated[int, msgspec.Meta(ge=0)]
MaybeIndex = Annotated[int, msgspec.Meta(ge=-1)]
Column = tuple[Index, ...]
MaybeColumn = tuple[MaybeIndex, ...]


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
        other_bytes: what else is alive, or was measured and is explained by none of these; negative where they
            overstate what was measured.
    """

    parameter_bytes: Bytes
    buffer_bytes: Bytes
    input_bytes: Bytes
    gradient_bytes: Bytes = 0
    optimizer_bytes: Bytes = 0
    other_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        own = self.parameter_bytes + self.buffer_bytes + self.input_bytes + self.gradient_bytes + self.optimizer_bytes
        return own + self.other_bytes


class Recipe(_Part, frozen=True, kw_only=True):
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


class Argument(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One storage that came into a call or a torch function as an argument; an array in JSON.

    Attributes:
        tensor: index of the tensor, -1 for one that is older than the step (an input).
        sources: the calls that returned this very object, unchanged since; empty where the caller's own code
            made it (a view, a sum), so that it belongs to the boundary of any segment that reads it.
        mutated: whether it was changed in place after the call began.
        functions: the torch functions that returned it so, by index.
    """

    tensor: MaybeIndex
    sources: Column = ()
    mutated: bool = False
    functions: Column = ()


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
        leaves_traces: whether more than its result tells that it ran, so that a replay cannot leave it out.
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
    arguments: tuple[Argument, ...] = ()
    outputs: Column = ()
    signature: str = ""
    draws: bool = False
    buffers: tuple[str, ...] = ()
    refused: str = ""
    leaves_traces: bool = False

    @property
    def key(self) -> str:
        """``qualified.name#occurrence``, as plans write it."""
        return f"{self.name}#{self.occurrence}"

    @property
    def forward_seconds(self) -> float:
        """Seconds between the begin and the end of forward, children included."""
        return self.exit_seconds - self.enter_seconds


class FunctionTable(_Part, frozen=True, kw_only=True):
    """The torch functions that calls called in their own code, in the order of their begins, as columns.

    The last two columns are empty in profiles that are older than they are.

    Only the outermost function counts, property getters do not, and neither does what runs inside a child call. A
    module called while gradients are off is no call, though it counts: what it calls is its caller's.

    Attributes:
        call: index of the innermost call whose code called it.
        name: short name, as plans write it: ``linear``, ``scaled_dot_product_attention``.
        occurrence: which function of that name within that call's own code, from 0.
        enter: tick at which it began; births and saves between its ticks are its own.
        exit: tick at which it ended.
        seconds: its forward seconds, median over equal functions of equal calls.
        reads: tensors that came in; those older than the step and the model's own left out, and none at all where it
            looks only at shapes (``size``), so that it can run on hollow tensors.
        makes: tensors born in it that went out or that autograd saved in it.
        alias: whether an output shares storage with an argument (views, in-place).
        mutates: whether it changed anything in place that is older than itself and that others use too; a buffer that
            it alone is given in the whole step is its own affair.
        draws: whether a default random generator moved.
        refused: why its result cannot be handed out by a replay; empty where it can.
        arguments: storages that came in, as those of a call; none for functions of calls that call no module.
        unrepeatable: why it cannot run again by itself, as a call does; empty where it can.
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
    refused: tuple[str, ...] = ()
    arguments: tuple[tuple[Argument, ...], ...] = ()
    unrepeatable: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.call)

    def key(self, index: int) -> str:
        """``name#occurrence``, as plans write it after the key of its call."""
        return f"{self.name[index]}#{self.occurrence[index]}"


class OpTable(_Part, frozen=True, kw_only=True):
    """The operators that ran in forward inside calls, views left out, in order, as columns.

    Attributes:
        function: index of the function that ran it, -1 if none did.
        call: index of the innermost call that ran it.
        name: ``aten.mm.default``; where operators could not be told apart, the name of the function.
        seconds: its share of the function's seconds; those of a function's operators add up to the function's.
        reads: tensors that it read.
        makes: tensors born in it that it returned.
        writes: older tensors that it changed in place.
    """

    function: MaybeColumn = ()
    call: Column = ()
    name: tuple[str, ...] = ()
    seconds: tuple[Seconds, ...] = ()
    reads: tuple[Column, ...] = ()
    makes: tuple[Column, ...] = ()
    writes: tuple[Column, ...] = ()

    def __len__(self) -> int:
        return len(self.call)


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
        recipe: how it was recorded, where it is one of those that are shipped.
        plain_seconds: seconds of the plain step.
        static: bytes that are there before the step.
        optimizer: which optimizer takes the step and where its figures come from, in words; empty where none was given.
        optimizer_step_bytes: what the optimizer's step needs for a moment beside all that lives at the end of backward.
        ticks: length of the clock.
        forward_ticks: tick at which forward, loss included, ended.
        generator_bytes: bytes of a generator's state, allocated for a moment where a replay sets it.
        replay_host_seconds: host seconds that a replayed segment costs beside its operators.
        kept_host_seconds: host seconds that a kept unit costs.
        mode_host_seconds: host seconds that a function costs where a function mode sees it.
        calls: module calls in pre-order; the first is the root.
        functions: torch functions that calls called in their own code.
        ops: operators that calls ran.
        tensors: storages born in the step.
        saves: what autograd saved.
        buffer_bytes: bytes of each buffer that forward changes, by qualified name.
        notes: what could not be seen or put back, in words.
    """

    SCHEMA: ClassVar[str] = "autockpt.profile/2"

    schema: Literal["autockpt.profile/2"] = "autockpt.profile/2"
    model: str
    mode: Literal["real", "forward", "fake"]
    times: Literal["measured", "roofline"]
    device: str
    torch_version: str
    recorded: str
    recipe: Recipe | None = None
    plain_seconds: Seconds
    static: Static
    optimizer: str = ""
    optimizer_step_bytes: Bytes = 0
    ticks: Index
    forward_ticks: Index
    generator_bytes: Bytes = 0
    replay_host_seconds: Seconds = 0.0
    kept_host_seconds: Seconds = 0.0
    mode_host_seconds: Seconds = 0.0
    calls: Annotated[tuple[CallRecord, ...], msgspec.Meta(min_length=1)]
    functions: FunctionTable = FunctionTable()
    ops: OpTable = OpTable()
    tensors: TensorTable
    saves: SaveTable
    buffer_bytes: dict[str, Bytes] = {}
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate(self)

    def explain(self) -> str:
        """Return where memory and time go, as text."""
        from ._explain import explain_profile

        return explain_profile(self)

    def plot(self, *, kind: Literal["memory", "modules"] = "memory", ax: Axes | None = None) -> Figure:
        """Draw where memory goes, by matplotlib (``pip install "autockpt[plot]"``).

        Args:
            kind: ``memory``: what stands over the plain step, and where the peak is; ``modules``: a bar for each row of
                the module tree, as long as what it saves for backward.
            ax: axes to draw in; None for a figure of its own, which pyplot knows nothing of.

        Returns:
            The figure; a notebook shows it as the value of a cell, and ``.savefig("memory.png")`` writes it.

        Raises:
            AutockptError: there is no such kind.
            MissingExtra: matplotlib is not installed.

        Example:
            >>> import torch, autockpt
            >>> block = lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
            >>> model = torch.nn.Sequential(*(block() for _ in range(4)))
            >>> profile = autockpt.profile(model, torch.randn(64, 8))
            >>> (axes,) = profile.plot().axes
            >>> axes.get_title(loc="left")
            'Predicted memory over a step of Sequential'
        """
        from ._pictures import plot_profile

        return plot_profile(self, kind, ax)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the plain step to `path` as a trace, as `Plan.trace` does."""
        from ._pictures.trace import trace_json
        from ._plan import Plan

        _files.write(trace_json(self, Plan()), path)

    def _repr_html_(self) -> str:
        from ._pictures.html import profile_html

        return profile_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.explain())  # IPython's text beside HTML, where all fields would fill pages

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to `path` as JSON, packed by gzip where the path ends in ``.gz``."""
        _files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile that `save` wrote, or one of those that come with autockpt.

        Args:
            path: a file, or the name of a recorded profile, which `autockpt profiles` lists. A file that exists wins.

        Raises:
            InvalidFile: the file is truncated, of another schema, or contradicts itself.
            UnknownProfile: the path is a bare word, no file is called so, and neither is a recorded profile.
            OSError: the file cannot be read.

        Example:
            >>> from autockpt import Profile
            >>> Profile.load("gpt2-xl").model
            'GPT2LMHeadModel'
        """
        from ._recorded import locate

        return _files.decode(locate(path).read_bytes(), cls, source=str(path))


def plain_peak_bytes(static: Static, tensors: TensorTable, *, ticks: int, optimizer_step_bytes: int) -> int:
    """Return the highest level of a recorded step and of the optimizer's after it, static bytes included.

    Args:
        static: what is there before the step.
        tensors: what is born in it.
        ticks: length of its clock.
        optimizer_step_bytes: what the optimizer's step needs besides what lives at the end of backward.
    """
    change = [0] * (ticks + 1)
    for size, birth, death in zip(tensors.bytes, tensors.birth, tensors.death, strict=True):
        change[birth] += size
        change[death] -= size
    level = list(itertools.accumulate(change))
    return static.total_bytes + max(*level, level[ticks - 1] + optimizer_step_bytes)

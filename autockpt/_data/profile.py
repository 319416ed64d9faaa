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

If a graph is kept while others have their backward, forwards may come after a backward: `late_forwards`.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, ClassVar, Literal

from ..solvers.units import shown
from . import files, shipped
from .errors import NotApplicable
from .step.consistency import validate
from .step.step_record import StepRecord
from .text.door import door

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Profile(StepRecord, frozen=True, kw_only=True, tag="autockpt.profile/3"):
    """The recorded measurements of one model, batch shape, dtype, device and software version.

    Attributes:
        model: class of the model.
        mode: ``measured`` (a step ran), or ``fake`` (nothing ran: fake tensors, and seconds by a roofline).
        device: where it ran, or the named device of the roofline.
        torch_version: version of torch.
        recorded: date and time, ISO 8601.
        recipe: how it was recorded, if it is shipped with autockpt.
        samples: of the batch: the first dimension of its first tensor; None where that is not known, as in older files.
        plain_seconds: seconds of the plain step.
        host_slowdown: how many times as long the host takes for its own work as the one that costs of recomputing were
            measured on; None where that is not known.
        host: what the host of a device took in the step, beside the device; None on a CPU, where nothing ran, and in
            older files.
        static: bytes that are there before the step.
        optimizer: which optimizer takes the step and where its figures come from, in words; empty where none was given.
        optimizer_step_bytes: what the optimizer's step allocates for a moment, on top of what is alive at the end of
            backward.
        ticks: length of the clock.
        forward_ticks: tick at which forward, loss included, ended: the first backward began.
        generator_bytes: bytes of a generator's state, allocated for a moment before a replay that draws random numbers.
        calls: module calls in pre-order; the first is the root.
        functions: torch functions that calls called in their own code.
        ops: operators that calls ran.
        tensors: storages born in the step.
        saves: what autograd saved.
        backward_ticks: ticks at which backward passes after the first began: ``retain_graph``, or several losses.
        nested_ticks: those of them at which a backward inside another began, as in a tensor's hook, or the outer one
            went on.
        late_forwards: the first tick, and one past the last, of each stretch of forwards, loss included, that came
            after a backward. Only steps in which a graph outlives the backward of others have them.
        rereads: for each save that a further pass read: its index, and the tick at which that pass first read it; in
            order.
        kept_reads: for each read of a save in a pass that keeps its graph: the save, the tick of the read, and the tick
            until which what was read lived, as nodes that ``create_graph`` makes may hold it.
        refusals: what cannot be replayed exactly, and why.
        buffer_bytes: bytes of each buffer that forward changes, by qualified name.
        world: the ranks on one of which it is, where it was recorded without the others.
        offload: how fast tensors of the device get to the host and back, where that was measured; None elsewhere, and
            in older files.
        copies: what calls were given on several ranks alike, where ranks share layers (tensor parallelism).
        units: calls of units of FSDP2, which a replay of several calls may have to gather; None where it may not.
        own_replays: what the model recomputes itself, with `torch.utils.checkpoint` or `autockpt.recompute`, and what
            switches that off, in words; one of the notes. None for nothing.
        notes: what could not be seen or put back, in words.
    """

    PAGE: ClassVar[str] = "explain.profile.profile_page"
    BRIEF: ClassVar[str] = "explain.brief.brief_profile"
    RARE: ClassVar[tuple[str, ...]] = ("samples", "host_slowdown", "host", "world", "copies", "units", "own_replays")

    def __post_init__(self) -> None:
        validate(self)

    @property
    def holds_outputs(self) -> bool:
        """Whether the step still held most of what the model returned, by bytes, once the loss was computed."""
        sizes, deaths = self.tensors.bytes, self.tensors.death
        outputs = {tensor for call in self.calls if call.parent < 0 for tensor in call.outputs}
        held = sum(sizes[tensor] for tensor in outputs if deaths[tensor] > self.forward_ticks)
        return 2 * held >= sum(sizes[tensor] for tensor in outputs)

    @property
    def is_shared(self) -> bool:
        """Whether other ranks train the model with the one that was recorded."""
        return self.world is not None or self.copies is not None or self.units is not None

    def refused(self, what: Literal["call", "run", "unit", "result", "function", "tensor"]) -> dict[int, str]:
        """Return why calls, runs, units, functions and so on are refused, by their index; see `RefusedPart`."""
        return {each.index: each.reason for each in self.refusals if each.what == what}

    @property
    def plain_peak_bytes(self) -> int:
        """Highest level of the recorded step and of the optimizer's after it, static bytes included."""
        return max(self.static.total_bytes + max(self._levels()), self.optimizer_peak_bytes)

    @property
    def optimizer_peak_bytes(self) -> int:
        """Level of the optimizer's step, static bytes included; that of the end of backward where none is counted."""
        return self.static.total_bytes + self._levels()[self.ticks - 1] + self.optimizer_step_bytes

    def _levels(self) -> list[int]:
        """Return the level at each tick of the recorded step, static bytes left out."""
        change = [0] * (self.ticks + 1)
        for size, birth, death in zip(self.tensors.bytes, self.tensors.birth, self.tensors.death, strict=True):
            change[birth] += size
            change[death] -= size
        return list(itertools.accumulate(change))

    def plot(self, *, ax: Axes | None = None) -> Figure:
        """Draw the memory of the plain step and its peak with matplotlib (``pip install "autockpt[plot]"``).

        Args:
            ax: axes to draw in; None for a new figure, which is not registered with pyplot.

        Returns:
            The figure; a notebook shows it as the value of a cell, and ``.savefig("memory.png")`` writes it.

        Raises:
            MissingExtra: matplotlib is not installed.

        Example:
            >>> from autockpt import Profile
            >>> (axes,) = Profile.load("resnet-50").plot().axes
            >>> axes.get_title(loc="left")
            'Predicted memory over a step of ResNetForImageClassification'
        """
        figure: Figure = self._drawn("memory.draw_profile", ax)
        return figure

    @classmethod
    @door
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile that `save` wrote, or one of those that come with autockpt.

        Args:
            path: a file, or the name of a recorded profile, which `autockpt profiles` lists. A file that exists wins.

        Raises:
            InvalidFile: the file is truncated, of another schema, or contradicts itself.
            UnknownProfile: the path is a bare word, and neither a file nor a recorded profile has that name.
            OSError: the file cannot be read.

        Example:
            >>> from autockpt import Profile
            >>> Profile.load("gpt2-xl").model
            'GPT2LMHeadModel'
        """
        return files.decode(shipped.read(path), cls, source=str(path))


def refuse_no_profile(profile: object) -> None:
    """Refuse anything that is no profile.

    Raises:
        NotApplicable: `profile` is none.
    """
    if not isinstance(profile, Profile):
        raise NotApplicable(
            f"a profile is what autockpt.profile(model, batch) or autockpt.Profile.load(name) returns, and this is "
            f"{shown(profile)}."
        )

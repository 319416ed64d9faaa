"""Recording a step of a structure that is known: one run, for its bytes.

    known profile    births · saves · deaths, in this order ──┐
    one spilled run  the same order? ─────────────────────────┴─▶ the known profile, with this run's bytes

What operators read, make and change is that of the known step; so is the share of each in the seconds, by the bytes
that it moves now and moved there.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import msgspec
import torch

from .._data.profile import Profile
from .._data.tables import CallRecord, FunctionTable, OpTable, SaveTable, TensorTable
from .._run.growth import shared_out
from .._run.install import set_aside
from . import refusals
from .assemble import mark_seconds, save_table
from .clocks import clock_of
from .recorder import static_bytes
from .runs import Parts, run_step, spilled_step
from .sandbox import Sandbox, uncompiled
from .spill import spilling
from .step import TrainingStep
from .tape import AllocatorTape

AGAIN = (
    "what each operator does was recorded at another size of the batch; its seconds are those, scaled by the bytes "
    "that it moves"
)


def record_again(step: TrainingStep, known: Profile, *, room_bytes: int = 0) -> Profile | None:
    """Record a step that does what a recorded one did, on a batch of another size; see `record_step`.

    Args:
        step: the step, of the same model.
        known: the other step, on the same kind of batch.
        room_bytes: of what forward saves, as much as may stay on the device until backward.

    Returns:
        Its profile; every number of bytes is this run's. None if it is no such step: other calls or functions, or
        something is allocated, saved or freed in another order; or it changes parameters.

    Raises:
        ProfilingError: as for `record_step`.
        Exception: whatever the model's own forward raises.

    O(size of a profile) beside the run.
    """
    if known.mode != "real" or any(call.refused == refusals.CHANGES_PARAMETER for call in known.calls):
        return None  # only a full recording copies parameters before forward changes them
    clock = clock_of(step.device)
    with (
        contextlib.suppress(torch.OutOfMemoryError),
        set_aside(step.model),
        uncompiled(),
        Sandbox.around(step.model, inputs=(*step.args, *step.kwargs.values())),
        spilling(step.device, step.inputs(), room_bytes=room_bytes) as spill,
    ):
        run = run_step(step, AllocatorTape(step.device), clock, spill=spill, brief=True)
        parts = spilled_step(step, run, clock)
        seconds = mark_seconds(parts.run, clock, None)
        return _grown(step, known, parts, seconds) if _same_step(known, parts) else None
    return None  # what may have stayed was too much


def spilled_peak_bytes(profile: Profile, growth: float = 1.0) -> float:
    """Return what a recorded step needs at most, beside static bytes, if all that it saves waits elsewhere.

    Args:
        profile: the step.
        growth: by how much larger everything in it is but the gradients that it leaves.
    """
    tensors, saves = profile.tensors, profile.saves
    sizes = [
        size if birth > profile.forward_ticks and death == profile.ticks else size * growth
        for size, birth, death in zip(tensors.bytes, tensors.birth, tensors.death, strict=True)
    ]
    spans = [*zip(sizes, tensors.birth, tensors.natural, strict=True)]
    spans += [
        (sizes[tensor], unpack, release)
        for tensor, unpack, release in zip(saves.tensor, saves.unpack, saves.release, strict=True)
        if tensor >= 0
    ]
    change = [0.0] * (profile.ticks + 1)
    for size, begin, end in spans:
        change[begin] += size
        change[max(begin, end)] -= size
    return max(itertools.accumulate(change))


def _same_step(known: Profile, parts: Parts) -> bool:
    """Whether a run made the same calls and functions, and allocated, saved and freed in the same order."""
    run, found = parts.run, parts.found
    functions = [(each.name, each.occurrence, each.call) for each in run.functions]
    if functions != list(zip(known.functions.name, known.functions.occurrence, known.functions.call, strict=True)):
        return False
    if [(each.name, each.class_name, each.parent) for each in run.calls] != [
        (each.name, each.class_name, each.parent) for each in known.calls
    ]:
        return False
    nothing = [-1] * len([mark for mark in run.marks if mark.kind == "pack"])
    saves = save_table(run, found, [0.0] * len(run.marks), nothing, nothing)
    if (saves.tensor, saves.call, len(found.bytes)) != (known.saves.tensor, known.saves.call, len(known.tensors)):
        return False
    # What stayed where it was shows no natural death: the known one holds.
    copied = {mark.index for mark in run.marks if mark.kind == "unpack" and mark.keys}
    stayed = {tensor for save, tensor in enumerate(saves.tensor) if save not in copied}
    tensors = TensorTable(
        bytes=tuple(found.bytes), birth=tuple(found.birth), natural=tuple(parts.natural), death=tuple(found.death)
    )
    spans = {mark.index: [0, 0] for mark in run.marks if mark.kind == "enter"}
    for mark, tick in zip(run.marks, found.mark_ticks, strict=True):
        if mark.kind in ("enter", "exit"):
            spans[mark.index][mark.kind == "exit"] = tick
    known_spans = [[call.enter, call.exit] for call in known.calls]
    forward_ticks = found.first(run, "forward_end")
    return _order(tensors, saves, list(spans.values()), forward_ticks, stayed) == _order(
        known.tensors, known.saves, known_spans, known.forward_ticks, stayed
    )


def _order(
    tensors: TensorTable, saves: SaveTable, calls: list[list[int]], forward_ticks: int, stayed: set[int]
) -> list[list[int]]:
    """When everything happened, counted in what both a brief and a whole recording see."""
    released = [tick - 1 for tick in saves.release]
    ticks = sorted(
        {*tensors.birth, *saves.pack, *saves.unpack, *released, *itertools.chain.from_iterable(calls), forward_ticks}
    )
    place = partial(bisect_left, ticks)
    natural = [0 if tensor in stayed else tick for tensor, tick in enumerate(tensors.natural)]
    columns: Sequence[Sequence[int]] = (
        tensors.birth,
        natural,
        tensors.death,
        saves.pack,
        saves.unpack,
        released,
        [forward_ticks],
        *calls,
    )
    return [list(map(place, column)) for column in columns]


def _grown(step: TrainingStep, known: Profile, parts: Parts, seconds: list[float]) -> Profile:
    """The known profile with the bytes and seconds of a run."""
    run, sizes = parts.run, parts.found.bytes
    functions, ops, growth = _scaled(known, sizes)
    root = next(i for i, mark in enumerate(run.marks) if mark.kind == "exit" and mark.index == 0)
    # Nothing grows faster than the bytes that it moves: what took longer was spent on watching.
    most_seconds = known.calls[0].forward_seconds * growth
    slower = max(seconds[root] / most_seconds, 1.0) if most_seconds else 1.0
    seconds = [each / slower for each in seconds]
    share = seconds[root] / most_seconds if most_seconds else 1.0
    marks = {(mark.kind, mark.index): seconds[i] for i, mark in enumerate(run.marks) if mark.kind in ("enter", "exit")}
    packed = tuple(seconds[i] for i, mark in enumerate(run.marks) if mark.kind == "pack")
    calls = tuple(
        msgspec.structs.replace(
            call,
            enter_seconds=marks["enter", index],
            exit_seconds=marks["exit", index],
            signature=_signature(call, known.tensors, sizes),
        )
        for index, call in enumerate(known.calls)
    )
    forward_seconds = next(seconds[i] for i, mark in enumerate(run.marks) if mark.kind == "forward_end")
    assert parts.backward_share is not None  # spilled steps have one
    return msgspec.structs.replace(
        known,
        recorded=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        plain_seconds=forward_seconds * (1 + parts.backward_share),
        static=static_bytes(step, known.static.optimizer_bytes),
        calls=calls,
        functions=msgspec.structs.replace(functions, seconds=tuple(each * share for each in functions.seconds)),
        ops=msgspec.structs.replace(ops, seconds=tuple(each * share for each in ops.seconds)),
        tensors=msgspec.structs.replace(known.tensors, bytes=tuple(sizes)),
        saves=msgspec.structs.replace(known.saves, seconds=packed),
        notes=(*known.notes, AGAIN),
    )


def _signature(call: CallRecord, tensors: TensorTable, sizes: list[int]) -> str:
    """Equal for calls that are alike in the known step and in this one."""
    if not call.signature:
        return ""
    inside = range(bisect_left(tensors.birth, call.enter), bisect_left(tensors.birth, call.exit))
    given = (each.tensor for each in call.arguments if each.tensor >= 0)
    digest = hashlib.sha1(call.signature.encode(), usedforsecurity=False)
    digest.update(str([sizes[tensor] for tensor in (*given, *inside)]).encode())
    return digest.hexdigest()[:16]


def _scaled(known: Profile, sizes: list[int]) -> tuple[FunctionTable, OpTable, float]:
    """Let the seconds of functions and operators grow as the bytes that they move; and by how much they grow together.

    The operators of a function share its seconds.
    """
    functions, ops, before = known.functions, known.ops, known.tensors.bytes

    def grown(seconds: float, reads: Sequence[int], makes: Sequence[int]) -> float:
        moved = sum(before[tensor] for tensor in (*reads, *makes))
        return seconds * sum(sizes[tensor] for tensor in (*reads, *makes)) / moved if moved else seconds

    own = tuple(map(grown, functions.seconds, functions.reads, functions.makes))
    scaled = msgspec.structs.replace(functions, seconds=own)
    operators = msgspec.structs.replace(ops, seconds=tuple(map(grown, ops.seconds, ops.reads, ops.makes)))
    was = sum(functions.seconds)
    return scaled, shared_out(operators, scaled), sum(own) / was if was else 1.0

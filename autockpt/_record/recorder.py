"""`profile`: which runs are made, in which order, and what the profile takes from each."""

from __future__ import annotations

import contextlib
import datetime
import gc
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError
from .._data.profile import Profile
from .._data.tables import Static
from .._run.install import set_aside
from . import refusals
from .assemble import WatchedRun, call_records, mark_seconds, save_table, tensor_table
from .calibrate import HostCosts, host_costs
from .clocks import clock_of
from .functions import UNSEEN, agrees, function_seconds, function_table, step_functions
from .operators import Operators
from .optimizer import Chosen, OptimizerMemory, Optimizers, choose_optimizers, optimizer_memory
from .runs import Parts, forward_only, real_step, run_forward, run_step, spilled_step
from .sandbox import Sandbox, compile_notes, uncompiled
from .spill import NoRoom, spilling
from .step import Loss, TrainingStep, training_step
from .structure import CallStructure, Structure, observe_structure
from .tape import AllocatorTape
from .timing import StepSeconds, stamped_seconds, step_seconds
from .watch import Clock

RunMode = Literal["auto", "real", "spill", "forward"]
Mode = Literal[RunMode, "fake"]

_log = logging.getLogger("autockpt")


def profile(
    model: torch.nn.Module,
    inputs: object,
    *,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
    mode: Mode = "auto",
    device: str | None = None,
) -> Profile:
    """Record what a training step of `model` on `inputs` holds, when, and what each call costs.

    Everything is put back: generators, buffers, flags, attributes, hooks; gradients are never touched. What cannot
    be put back is named in the profile's notes. Hooks that run after a gradient was accumulated do not run; a
    tensor's own hooks do, since they may change the gradient. A plan that is applied to the model is set aside
    meanwhile.

    The outputs are held until backward is over, as by a training loop that still has a name for them.

    Args:
        model: the model, in the mode (train or eval) in which it will train.
        inputs: one batch: a tuple is passed positionally, a mapping by keyword.
        loss: maps the model's outputs to a scalar; without it, an output's ``.loss``, else the sum over the
            outputs that require gradients.
        optimizer: its state counts as static bytes, also before its first step, and its step as the last one of the
            training step; it is neither run nor changed. A name such as ``"adamw"`` stands for a class of
            ``torch.optim`` with its defaults, a list for several that step one after the other.
        mode: ``real`` runs a whole step; ``spill`` runs one too, but what forward saves waits on the host, or for
            models on the CPU in a temporary file (in ``TMPDIR``), so that it needs no more than the deepest plan does;
            ``forward`` runs forward only, dropping what it saves, and synthesises backward; ``fake`` runs nothing;
            ``auto`` is ``real``, ``spill`` where that does not fit, and ``forward`` where neither does.
        device: with ``fake``, the device whose roofline gives the seconds: ``a100`` (the default), ``h100``, ``h200``,
            ``rtx4090`` or ``t4``; the other modes ignore it.

    Returns:
        The profile.

    Raises:
        NotApplicable: the model has no trainable parameters.
        ProfilingError: the model cannot be recorded: no loss, an unknown mode, device or optimizer, an optimizer that
            trains something else, a gradient taken inside forward, or a profiler that is already running.
        Exception: whatever the model's own forward raises, with the model as it was.

    Example:
        >>> import torch, autockpt
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
        >>> autockpt.profile(model, torch.randn(4, 8)).mode
        'real'
    """
    if mode not in ("auto", "real", "spill", "forward", "fake"):
        raise ProfilingError(f"unknown mode {mode!r}; there are auto, real, spill, forward and fake")
    if mode == "fake":
        from .fake import profile_fake

        with set_aside(model), uncompiled():
            return profile_fake(model, inputs, loss=loss, optimizers=choose_optimizers(optimizer, model), device=device)
    return record_step(training_step(model, inputs, loss), mode=mode, optimizer=optimizer)


def record_step(step: TrainingStep, *, mode: RunMode = "auto", optimizer: Optimizers | None = None) -> Profile:
    """Record a step that runs; arguments, errors and what is put back as for `profile`."""
    chosen = choose_optimizers(optimizer, step.model)
    if not step.model.training:
        _log.warning("the model is in eval mode; the profile says what a step in eval mode holds")
    with (
        set_aside(step.model),
        uncompiled(),
        Sandbox.around(step.model, inputs=(*step.args, *step.kwargs.values())) as sandbox,
    ):
        return _record(step, sandbox, mode, chosen)


def _record(step: TrainingStep, sandbox: Sandbox, mode: RunMode, optimizers: Sequence[Chosen]) -> Profile:
    """Run the structural forward, then the step in the first way that fits, then what is only timed."""
    gc.collect()  # garbage from before the step must not be freed inside it
    clock = clock_of(step.device)

    def observe() -> Structure:
        tape = AllocatorTape(step.device)
        found = observe_structure(step.model, step.forward, tape, clock, values=True, changing=sandbox.remember)
        sandbox.rewind()
        return found

    structure = observe()
    if any(call.refused == refusals.CHANGES_ATTRIBUTE for call in structure.calls):
        _settle(structure, observe())
    parts, dropped = _run(step, sandbox, mode, clock)
    if not agrees(parts.run, structure):  # its first forward made caches; what calls did then still counts
        structure = replace(structure, flow=observe().flow)
    whole = parts.mode == "real" and parts.backward_share is None  # such a step fits, as it is
    stamped = stamped_seconds(step, parts.run, dropped, clock, retain=whole)
    seconds = mark_seconds(parts.run, clock, stamped)
    end = next(i for i, mark in enumerate(parts.run.marks) if mark.kind == "forward_end")
    if parts.backward_share is not None:
        plain_seconds = seconds[end] * (1 + parts.backward_share)
    else:
        forward_seconds, plain_seconds = step_seconds(step, clock, StepSeconds(seconds[end], seconds[-1]))
        if stamped is not None and seconds[end]:
            # Stamps make a forward slower, and one that keeps nothing finds in the caches what it let go of.
            slower = forward_seconds / seconds[end]
            stamped = {i: each * slower for i, each in stamped.items()}
            seconds = mark_seconds(parts.run, clock, stamped)
    own = function_seconds(parts.run, stamped if stamped is not None else dict(enumerate(seconds)))
    return build_profile(
        step,
        parts,
        structure,
        seconds,
        own,
        clock,
        plain_seconds=plain_seconds,
        optimizer=optimizer_memory(optimizers, parts.run.reached, step.device.type),
        notes=sandbox.notes(),
    )


def _settle(first: Structure, again: Structure) -> None:
    """Refuse no call for attributes that it set in the first forward of a model, and a second found as they should be.

    The first step of a training will set them too, and its replays will find them set: where all operators and the loss
    are the same, they compute the same. Whatever else calls did in the first still counts.
    """
    if len(first.calls) == len(again.calls) and torch.equal(first.loss, again.loss):
        for call, later in zip(first.calls, again.calls, strict=True):
            same = (call.name, call.signature) == (later.name, later.signature)
            if same and call.refused == refusals.CHANGES_ATTRIBUTE:
                call.refused = later.refused


def _run(step: TrainingStep, sandbox: Sandbox, mode: RunMode, clock: Clock) -> tuple[Parts, WatchedRun | None]:
    """Run the step as `mode` says, or for ``auto`` in the first way that fits into memory.

    Returns:
        What was recorded, and the forward whose saves were dropped, where there was one.
    """
    if mode == "auto":
        for way in ("real", "spill"):
            with contextlib.suppress(torch.OutOfMemoryError, NoRoom):
                return _run(step, sandbox, way, clock)
            gc.collect()  # what that run left behind must not be in the way of the next one
        mode = "forward"
    try:
        if mode == "spill":
            with spilling(step.device, step.inputs()) as spill:
                run = run_step(step, AllocatorTape(step.device), clock, spill=spill)
            return spilled_step(step, run, clock), None
        whole = run_step(step, AllocatorTape(step.device), clock) if mode == "real" else None
        sandbox.rewind()
        dropped, graph = run_forward(step, AllocatorTape(step.device), clock)
        return forward_only(step, dropped, graph) if whole is None else real_step(whole, dropped), dropped
    finally:
        sandbox.rewind()


GENERATOR_BYTES = torch.default_generator.get_state().nbytes
"""Bytes of the CPU generator's state; a CUDA generator's state lies on the host."""


def build_profile(
    step: TrainingStep,
    parts: Parts,
    structure: Structure,
    seconds: list[float],
    own_seconds: list[float],
    clock: Clock,
    *,
    plain_seconds: float,
    optimizer: OptimizerMemory,
    notes: Iterable[str],
    mode: Literal["real", "forward", "fake"] | None = None,
    times: Literal["measured", "roofline"] = "measured",
    device: str | None = None,
) -> Profile:
    """Make the profile of a recorded step.

    Args:
        step: the step.
        parts: what was recorded.
        structure: what the structural forward saw.
        seconds: time of each marker.
        own_seconds: of each function.
        clock: timed the operators of the structural forward.
        plain_seconds: of the whole step.
        optimizer: what the optimizer needs.
        notes: what else could not be seen or put back.
        mode: where it is not that of `parts`.
        times: whether anything was timed.
        device: where it is not that of the step.
    """
    run, found = parts.run, parts.found
    flow = structure.flow if agrees(run, structure) else None
    calls = call_records(run, found, seconds, structure.calls)
    functions, savers = step_functions(run, found, own_seconds, calls)
    operators = Operators(run, found, functions, flow, clock, exact=step.device.type == "cpu")
    reads = [operators.reads_of(number) for number in range(len(functions))]
    changed = {name for call in structure.calls for name in call.buffers}
    host = host_costs() if times == "measured" else HostCosts()
    return Profile(
        model=type(step.model).__name__,
        mode=mode or parts.mode,
        times=times,
        device=device or _device_name(step.device),
        torch_version=str(torch.__version__),
        recorded=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        plain_seconds=plain_seconds,
        static=static_bytes(step, optimizer.state_bytes),
        optimizer=optimizer.source,
        optimizer_step_bytes=optimizer.step_bytes,
        ticks=found.ticks,
        forward_ticks=found.first(run, "forward_end"),
        replay_host_seconds=host.replay_seconds,
        member_host_seconds=host.member_seconds,
        save_host_seconds=host.save_seconds,
        kept_host_seconds=host.kept_seconds,
        mode_host_seconds=host.mode_seconds,
        generator_bytes=GENERATOR_BYTES if step.device.type == "cpu" else 0,
        calls=calls,
        functions=function_table(calls, functions, reads, flow.functions if flow is not None else None),
        ops=operators.table(),
        tensors=tensor_table(found, parts.natural),
        saves=save_table(run, found, seconds, savers, operators.of_saves(savers)),
        buffer_bytes={name: step.model.get_buffer(name).nbytes for name in sorted(changed)},
        notes=(
            *parts.notes,
            *_checkpointing_notes(structure.calls),
            *compile_notes(step.model),
            *(() if flow is not None else (UNSEEN,)),
            *optimizer.notes,
            *notes,
        ),
    )


def _checkpointing_notes(structures: list[CallStructure]) -> list[str]:
    """Say which calls the model recomputes by itself."""
    inside = [structure.name for structure in structures if structure.checkpointed]
    if not inside:
        return []
    return [
        f"{len(inside)} calls, from {inside[0]} to {inside[-1]}, run inside torch.utils.checkpoint regions of the "
        "model's own; those regions are left as they are, and nothing inside them is chosen"
    ]


def static_bytes(step: TrainingStep, optimizer_bytes: int) -> Static:
    """Count what is there before the step, each storage once."""
    model = step.model
    gradients = [leaf.grad for leaf in step.leaves if leaf.grad is not None]
    return Static(
        parameter_bytes=_storage_bytes(model.parameters()),
        buffer_bytes=_storage_bytes(model.buffers()),
        input_bytes=_storage_bytes(step.inputs()),
        gradient_bytes=_storage_bytes(gradients),
        optimizer_bytes=optimizer_bytes,
    )


def _storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    dense = [tensor for tensor in tensors if tensor.layout == torch.strided]
    return sum({private.storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in dense}.values())


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

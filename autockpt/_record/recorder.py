"""`profile`: which runs are made, in which order, and what the profile takes from each."""

from __future__ import annotations

import datetime
import gc
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from .. import _torch_private as private
from .._errors import ProfilingError
from .._install import set_aside
from .._profile import Profile, Static
from .assemble import (
    Lifetimes,
    WatchedRun,
    call_records,
    lifetimes,
    lifetimes_by_calls,
    mark_seconds,
    natural_deaths,
    save_table,
    tensor_table,
)
from .calibrate import HostCosts, host_costs
from .clocks import clock_of
from .functions import UNSEEN, agrees, function_seconds, function_table, step_functions
from .operators import Operators
from .optimizer import Chosen, OptimizerMemory, Optimizers, choose_optimizers, optimizer_memory
from .sandbox import Sandbox, compile_notes, uncompiled
from .spill import NoRoom, Spill, spilling
from .spilled_tape import tell_apart
from .step import Loss, TrainingStep, training_step
from .structure import CallStructure, Structure, observe_structure
from .synthesis import GraphNode, read_graph, synthesise_backward
from .tape import AllocatorTape, Tape
from .timing import stamped_seconds, step_seconds
from .watch import Clock, Watch

__all__ = ["profile", "record_step"]

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
            models on the CPU in a temporary file, so that it needs no more memory than the deepest plan does;
            ``forward`` runs forward only, dropping what it saves, and synthesises backward; ``fake`` runs nothing;
            ``auto`` is ``real``, ``spill`` where that does not fit, and ``forward`` where neither does.
        device: in fake mode, the device whose roofline gives the seconds (`autockpt._record.fake.DEVICES`).

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
    structure = observe_structure(step.model, step.forward, AllocatorTape(step.device), clock, values=True)
    sandbox.rewind()
    parts, dropped = _run(step, sandbox, mode, clock)
    if not agrees(parts.run, structure):  # its first forward made caches; what calls did then still counts
        again = observe_structure(step.model, step.forward, AllocatorTape(step.device), clock, values=True)
        structure = Structure(structure.calls, again.flow)
        sandbox.rewind()
    stamped = stamped_seconds(step, parts.run, dropped, clock)
    seconds = mark_seconds(parts.run, clock, stamped)
    if parts.backward_share is None:
        plain_seconds = step_seconds(step, clock, seconds[-1])
    else:
        end = next(i for i, mark in enumerate(parts.run.marks) if mark.kind == "forward_end")
        plain_seconds = seconds[end] * (1 + parts.backward_share)
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


def _run(step: TrainingStep, sandbox: Sandbox, mode: RunMode, clock: Clock) -> tuple[Parts, WatchedRun | None]:
    """Run the step as `mode` says, or for ``auto`` in the first way that fits into memory.

    Returns:
        What was recorded, and the forward whose saves were dropped, where there was one.
    """
    ways = ("real", "spill", "forward") if mode == "auto" else (mode,)
    for way in ways:
        try:
            if way == "spill":
                with spilling(step.device, step.inputs()) as spill:
                    run = run_step(step, AllocatorTape(step.device), clock, spill=spill)
                return spilled_step(step, run, clock), None
            whole = run_step(step, AllocatorTape(step.device), clock) if way == "real" else None
            sandbox.rewind()
            dropped, graph = run_forward(step, AllocatorTape(step.device), clock)
            return real_step(whole, dropped) if whole is not None else forward_only(step, dropped, graph), dropped
        except (torch.OutOfMemoryError, NoRoom):
            if way == ways[-1]:
                raise
        finally:
            sandbox.rewind()
        gc.collect()  # what the run left behind is not to be in the way of the next one
    raise AssertionError("unreachable")


def run_step(step: TrainingStep, tape: Tape, clock: Clock, *, spill: Spill | None = None) -> WatchedRun:
    """Run the whole step, watched; its saves wait in `spill`, if there is one."""
    watch = Watch(step.model, tape, clock, spill=spill)
    existing = [leaf for leaf in step.leaves if leaf.grad is not None]
    with tape:
        hooks = [leaf.register_hook(_Ready(watch, index)) for index, leaf in enumerate(existing)]
        try:
            with watch.watching():
                outputs, scalar = step.forward()
            watch.end_forward()
            gradients = step.gradients(scalar)
            reached = frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
            copies = _copies_of_shared(gradients)
            watch.end()
            del outputs, scalar, gradients, copies
        finally:
            for leaf, hook in zip(existing, hooks, strict=True):
                hook.remove()
                private.forget_empty_hooks(leaf)
    return WatchedRun(tape.events(), watch.marks, watch.calls, watch.functions, reached)


def run_forward(step: TrainingStep, tape: Tape, clock: Clock) -> tuple[WatchedRun, list[GraphNode]]:
    """Run forward, watched, with everything dropped that autograd would save; and read its graph."""
    watch = Watch(step.model, tape, clock, keep_saves=False)
    with tape:
        with watch.watching():
            outputs, scalar = step.forward()
        watch.end_forward()
        graph = read_graph(scalar, step.leaves)
        watch.end()
        del outputs, scalar
    reached = frozenset(node.leaf for node in graph if node.leaf is not None)
    return WatchedRun(tape.events(), watch.marks, watch.calls, watch.functions, reached), graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A step as it was recorded, before it becomes a profile.

    Attributes:
        mode: how it was recorded.
        run: the step's markers and calls.
        found: its lifetimes.
        natural: natural death of each tensor.
        backward_share: seconds of backward over those of forward; None where whole steps can be timed.
        notes: what could not be seen.
    """

    mode: Literal["real", "forward", "fake"]
    run: WatchedRun
    found: Lifetimes
    natural: list[int]
    backward_share: float | None = None
    notes: tuple[str, ...] = ()


def real_step(run: WatchedRun, dropped: WatchedRun) -> Parts:
    """Combine a whole step with a forward that saved nothing."""
    found = lifetimes(run)
    natural = natural_deaths(run, found, dropped, lifetimes(dropped))
    if natural is not None:
        return Parts(mode="real", run=run, found=found, natural=natural)
    return Parts(
        mode="real",
        run=run,
        found=found,
        natural=lifetimes_by_calls(run, found),
        notes=("two forwards allocated differently: natural lifetimes are taken to be those of the calls",),
    )


def spilled_step(step: TrainingStep, run: WatchedRun, clock: Clock) -> Parts:
    """Take a step whose saves were spilled for the plain step that it stands for."""
    natural, plain = tell_apart(run)
    found = lifetimes(plain)
    deaths = zip(lifetimes(natural).death, found.death, strict=True)
    on_host = step.device.type == "cpu"
    return Parts(
        mode="real",
        run=plain,
        found=found,
        natural=[min(pair) for pair in deaths],
        backward_share=_backward_share(run, clock) if on_host else BACKWARD_OVER_FORWARD,
        notes=(SPILLED_TO_FILE if on_host else SPILLED_TO_HOST,),
    )


def _backward_share(run: WatchedRun, clock: Clock) -> float:
    """Seconds of a run's own backward over those of its forward."""
    stamps = [mark.stamp for mark in run.marks if mark.stamp is not None]
    ends = [mark.stamp for mark in run.marks if mark.kind in ("forward_end", "backward_end")]
    forward, step = clock.seconds([stamps[0], *ends])[1:]
    return (step - forward) / forward


def forward_only(step: TrainingStep, dropped: WatchedRun, graph: list[GraphNode]) -> Parts:
    """Complete a forward by a synthesised backward."""
    run, found, natural = synthesise_backward(dropped, graph, [leaf.grad is not None for leaf in step.leaves])
    return Parts(
        mode="forward",
        run=run,
        found=found,
        natural=natural,
        backward_share=BACKWARD_OVER_FORWARD,
        notes=("backward did not run: its memory is synthesised from the autograd graph, its seconds are estimated",),
    )


GENERATOR_BYTES = torch.default_generator.get_state().nbytes
"""Bytes of the CPU generator's state; a CUDA generator's state lies on the host."""

SPILLED_TO_FILE = (
    "what forward saved waited in a temporary file while backward ran; the seconds of backward are those of this run"
)
SPILLED_TO_HOST = "what forward saved waited on the host while backward ran; the seconds of backward are estimated"

BACKWARD_OVER_FORWARD = 2.0
"""Seconds of backward over those of forward where it was not timed: two matrix products for each one."""


def _copies_of_shared(gradients: Iterable[torch.Tensor | None]) -> list[torch.Tensor]:
    """Copy gradients that share storage with another's, as a step does that puts each into a ``.grad`` of its own."""
    seen: set[int] = set()
    copies = []
    for gradient in gradients:
        if gradient is not None and gradient.layout == torch.strided:
            address = private.storage_key(gradient)
            if address in seen:
                copies.append(gradient.clone())
            seen.add(address)
    return copies


class _Ready:
    """A gradient hook that marks when a gradient is ready to be added to one that exists already."""

    def __init__(self, watch: Watch, index: int) -> None:
        self._watch, self._index = watch, index

    def __call__(self, gradient: torch.Tensor) -> None:
        self._watch.mark("ready", self._index, keys=(self._watch.key(gradient),))


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
        static=_static_bytes(step, optimizer.state_bytes),
        optimizer=optimizer.source,
        optimizer_step_bytes=optimizer.step_bytes,
        ticks=found.ticks,
        forward_ticks=found.first(run, "forward_end"),
        replay_host_seconds=host.replay_seconds,
        kept_host_seconds=host.kept_seconds,
        mode_host_seconds=host.mode_seconds,
        generator_bytes=GENERATOR_BYTES if step.device.type == "cpu" else 0,
        calls=calls,
        functions=function_table(functions, reads, flow.functions if flow is not None else None),
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


def _static_bytes(step: TrainingStep, optimizer_bytes: int) -> Static:
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

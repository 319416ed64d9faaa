"""`profile`: from a model and a batch to a profile, by one watched step and a few that are only timed."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import msgspec
import torch

from .._data.errors import ProfilingError
from .._data.profile import Profile
from .._ranks.refuse import refuse_outside_training, refuse_own_step
from .._run.patch.install import set_aside
from .._stash import open_stash
from .._stash.plan_stash import rates_of
from .._stash.spill import Spill
from .._torch import private
from .._torch.devices import device_of
from .alive import static_bytes
from .aside.own_replays import is_unasked
from .aside.sandbox import Sandbox
from .aside.switches import RECORDED, switched_off
from .optimizers.memory import Chosen, Optimizers, choose_optimizers, optimizer_memory
from .runs import watch_step
from .seconds.host_times import drained_times
from .seconds.timing import timed_seconds
from .step import Loss, TrainingStep, refuse_unseen, training_step
from .written.recorded import Recorded

Mode = Literal["measured", "fake"]

_log = logging.getLogger("autockpt")


def profile(
    model: torch.nn.Module,
    inputs: object,
    *,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
    mode: Mode = "measured",
    device: str | None = None,
    holds_outputs: bool = True,
) -> Profile:
    """Record a step of a model that is there; see `autockpt.profile`."""
    if mode not in ("measured", "fake"):
        raise ProfilingError(f"unknown mode {mode!r}; there are measured and fake")
    if mode == "fake":
        (found,) = profiles_for(model, inputs, [device], loss=loss, optimizer=optimizer, holds_outputs=holds_outputs)
        return found
    step = replace(training_step(model, inputs, loss), holds_outputs=holds_outputs)
    found = record_step(step, optimizer=optimizer)
    rates = rates_of(step.device, found.plain_peak_bytes - found.static.total_bytes)  # no more than a plain step takes
    return msgspec.structs.replace(found, offload=rates)


def profiles_for(
    model: torch.nn.Module,
    inputs: object,
    devices: Sequence[str | None],
    *,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
    holds_outputs: bool = True,
) -> list[Profile]:
    """Record a step once without running it, with the seconds of each device; else as `profile` in fake mode."""
    refuse_outside_training(model)
    chosen = choose_optimizers(optimizer, model)
    return profiles_of_fakes(model, inputs, devices, loss=loss, optimizers=chosen, holds_outputs=holds_outputs)


def profiles_of_fakes(
    model: torch.nn.Module,
    inputs: object,
    devices: Sequence[str | None],
    *,
    loss: Loss | None,
    optimizers: Sequence[Chosen],
    holds_outputs: bool,
) -> list[Profile]:
    """Record a step in fake mode, once, with the seconds of each device.

    `profiles_for` calls this. Here the model's tensors may also be fake already, as on one rank of a simulated world.
    """
    from .fake import profiles_fake

    with private.ALONE, set_aside(model), torch.compiler.set_stance("force_eager"), switched_off(model):
        step = replace(training_step(model, inputs, loss), holds_outputs=holds_outputs)
        return profiles_fake(step, optimizers, devices)


def record_step(step: TrainingStep, *, optimizer: Optimizers | None = None, timed: bool = True) -> Profile:
    """Record a step that runs; arguments, errors and what is put back as for `profile`.

    If it is not to be `timed`, no step runs beside the one that is watched.
    """
    refuse_unseen(step.device)
    refuse_own_step(step.model)
    chosen = choose_optimizers(optimizer, step.model)
    if timed and not step.model.training:
        _log.warning("the model is in eval mode; the profile says what a step in eval mode holds")
    private.load_compiler()
    with (
        _modes_restored(),
        private.ALONE,  # another thread's recording has torch patched, and the one profiler that a process has
        private.no_profiler_left(),
        set_aside(step.model),
        torch.compiler.set_stance("force_eager"),  # the compiler would trace the recorder too
        switched_off(step.model) as switched,
        Sandbox(step.model, inputs=(*step.args, *step.kwargs.values()), loss=step.loss) as sandbox,
    ):
        profile = _record(step, sandbox, chosen, timed=timed)
    if timed and profile.own_replays and is_unasked(profile.own_replays):
        _log.warning("%s", profile.own_replays)
    if not switched:
        return profile
    if timed:
        _log.warning("%s", RECORDED)
    return msgspec.structs.replace(profile, notes=(*profile.notes, RECORDED))


@contextmanager
def _modes_restored() -> Iterator[None]:
    """Restore grad mode, and the stacks of modes and hooks, on exit.

    An interrupt inside another context's `__exit__` may leave on what that context has put on.
    """
    now, before = torch.is_grad_enabled(), private.modes_on()
    try:
        yield
    finally:
        private.set_grad_enabled(now)
        private.end_modes(before)


def _record(step: TrainingStep, sandbox: Sandbox, optimizers: Sequence[Chosen], *, timed: bool) -> Profile:
    """Watch the step, twice if the first forward of the model sets itself up, and time it where that is wanted."""
    gc.collect()  # garbage from before the step must not be freed inside it
    device = device_of(step.device)
    clock = device.clock()
    counted = static_bytes(step.model, device, step.inputs(), sandbox.contents, step.held)

    def watch() -> Recorded:
        spill = Spill(open_stash(step.device, roomy=True), step.device, step.inputs())
        tape = device.tape()
        device.forget_workspaces()
        try:
            return watch_step(step, tape, clock, spill, sandbox, counted=counted, backward=device.runs_at_once)
        finally:
            sandbox.rewind()

    recorded = watch()
    if recorded.run.sets_itself_up:
        recorded = watch()
    seconds = recorded.seconds
    if timed:
        with step.gradients_aside():
            times = timed_seconds(step, recorded.run, clock, seconds)
            seconds = replace(times, host=drained_times(step, clock, recorded.run))
    sandbox.rewind()
    optimizer = optimizer_memory(optimizers, recorded.reached, device)
    found = recorded.profile(step.model, step.device, seconds, optimizer, notes=sandbox.notes())
    return msgspec.structs.replace(found, samples=step.samples)

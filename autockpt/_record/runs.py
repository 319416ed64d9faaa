"""The one pass of a recording: the whole step, watched, with what forward saves waiting elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch

from .. import _torch_private as private
from .._device import Clock, device_of
from .._stash.spill import Spill
from .._watch.marks import SeenStep
from .._watch.observer import Observer
from .._watch.storage_tape import Tape
from .step import TrainingStep


def watch_step(
    step: TrainingStep,
    tape: Tape,
    clock: Clock,
    spill: Spill,
    *,
    held: Iterable[torch.Tensor] = (),
    changing: Callable[[list[torch.Tensor]], None] | None = None,
) -> SeenStep:
    """Run the whole step, watched.

    Args:
        step: the step.
        tape: where its markers go.
        clock: stamps them.
        spill: where what forward saves waits.
        held: tensors that attributes, closures and globals of the model's have.
        changing: is told of tensors before an operator of forward changes them.
    """
    batch = {*map(private.storage_key, step.inputs())}
    constants = [each for each in private.parts(held) if private.storage_key(each) not in batch]
    observer = Observer(step.model, tape, clock, spill, held=constants, changing=changing)
    existing = [leaf for leaf, held in zip(step.leaves, step.held, strict=True) if held is not None]
    with step.gradients_aside(), tape:
        hooks = [leaf.register_hook(partial(observer.ready, index)) for index, leaf in enumerate(existing)]
        try:
            with observer.watching():
                outputs, scalar = step.forward()
                if not step.holds_outputs:
                    outputs = None
            observer.begin_backward()
            gradients = step.gradients(scalar)
            device_of(step.device).settle(gradients)  # else they outlive their names on the tape
            observer.run.reached = frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
            # By backward each has a place of its own already; shards of gradients are parts of one.
            copies = [] if step.by_backward else _copies_of_shared(gradients)
            observer.end()
            del outputs, scalar, gradients, copies
        finally:
            for leaf, hook in zip(existing, hooks, strict=True):
                hook.remove()
                private.forget_empty_hooks(leaf)
    observer.run.events = tape.events()
    return observer.run


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

"""A step of our own, recorded: all of it is watched, and what it leaves behind is put back by a sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from .._calls.objects.anatomy import anatomy
from .._data.step.tables import Static
from .._stash.spill import Spill
from .._torch import private
from .._torch.devices import Clock, device_of
from .aside.sandbox import Sandbox
from .step import TrainingStep
from .watch.observer import Observer
from .watch.storage_tape import Tape
from .written.attribute import Written
from .written.recorded import Recorded


def watch_step(
    step: TrainingStep,
    tape: Tape,
    clock: Clock,
    spill: Spill,
    sandbox: Sandbox,
    *,
    counted: Static,
    backward: bool,
) -> Recorded:
    """Run the whole step, and record it.

    Args:
        step: the step.
        tape: where its markers go.
        clock: stamps them.
        spill: where what forward saves waits.
        sandbox: puts back what it changes.
        counted: the bytes that are allocated before it.
        backward: whether its measured backward is used; see `recorded_seconds`.
    """
    batch = {*map(private.storage_key, step.inputs())}
    held = private.parts(each for _, each in sandbox.contents.tensors)
    constants = [each for each in held if private.storage_key(each) not in batch]
    observer = Observer(step.model, tape, clock, spill, held=constants, changing=sandbox.remember)
    with step.gradients_aside(), tape, _told_of_gradients(step, observer):
        with observer.watching():
            outputs, scalar = step.forward()
            if not step.holds_outputs:
                outputs = None
        observer.begin_backward()
        gradients = step.gradients(scalar)
        device_of(step.device).settle(gradients)  # else they outlive their names on the tape
        reached = frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
        # By backward each has a place of its own already; shards of gradients are parts of one.
        copies = [] if step.by_backward else _copies_of_shared(gradients)
        observer.end()
        del outputs, scalar, gradients, copies
    written = Written(events=tape.events(), marks=observer.run.marks, put_back=True)
    return Recorded.of(
        observer.run,
        written,
        clock,
        backward=backward,
        counted=counted,
        anatomy=anatomy(step.model),
        reached=reached,
    )


@contextmanager
def _told_of_gradients(step: TrainingStep, observer: Observer) -> Iterator[None]:
    """Have the observer mark where a gradient would be added to one that exists."""
    existing = [leaf for leaf, held in zip(step.leaves, step.held, strict=True) if held is not None]
    hooks = [leaf.register_hook(partial(observer.ready, index)) for index, leaf in enumerate(existing)]
    try:
        yield
    finally:
        for leaf, hook in zip(existing, hooks, strict=True):
            hook.remove()
            private.forget_empty_hooks(leaf)


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

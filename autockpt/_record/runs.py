"""The one pass of a recording: the whole step, watched, with what forward saves waiting elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import torch

from .. import _torch_private as private
from .._calls.spill import Spill, bytes_of
from .._calls.values import tensors
from . import refusals
from .clocks import Clock
from .marks import Run
from .observer import Observer
from .step import TrainingStep
from .tape import Tape


def watch_step(
    step: TrainingStep,
    tape: Tape,
    clock: Clock,
    spill: Spill,
    *,
    generators: Sequence[torch.Generator] = (),
    again: bool = False,
    changing: Callable[[list[torch.Tensor]], None] | None = None,
) -> Run:
    """Run the whole step, watched.

    Args:
        step: the step.
        tape: where its markers go.
        clock: stamps them.
        spill: where what forward saves waits.
        generators: that it may draw from; none where tensors have no values (fake mode).
        again: whether this is to be compared with a run before.
        changing: is told of tensors before an operator of forward changes them.
    """
    observer = Observer(step.model, tape, clock, spill, generators=generators, changing=changing)
    existing = [leaf for leaf, held in zip(step.leaves, step.held, strict=True) if held is not None]
    digest = ""
    with step.gradients_aside(), tape:
        hooks = [leaf.register_hook(_Ready(observer, index)) for index, leaf in enumerate(existing)]
        try:
            with observer.watching():
                outputs, scalar = step.forward()
            observer.end_forward()
            if again or any(refusals.CHANGES_ATTRIBUTE in call.reasons for call in observer.calls):
                digest = _digest(outputs) if generators else ""
            gradients = step.gradients(scalar)
            reached = frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
            copies = _copies_of_shared(gradients)
            observer.end()
            del outputs, scalar, gradients, copies
        finally:
            for leaf, hook in zip(existing, hooks, strict=True):
                hook.remove()
                private.forget_empty_hooks(leaf)
    return run_of(observer, tape, reached, digest)


def run_of(observer: Observer, tape: Tape, reached: frozenset[int] = frozenset(), digest: str = "") -> Run:
    """Return what an observer saw of a run that is over, with its tape; the rest as in `Run`."""
    return Run(
        events=tape.events(),
        marks=observer.marks,
        calls=observer.calls,
        functions=observer.functions,
        ops=observer.ops,
        saves=observer.saves,
        parameters=observer.parameters,
        buffer_names=observer.buffer_names,
        reached=reached,
        digest=digest,
    )


def _digest(outputs: object) -> str:
    """What tells the outputs of two runs apart, bit by bit; takes no memory of their device."""
    digest = hashlib.sha1(usedforsecurity=False)
    for tensor in tensors(outputs):
        if tensor.layout == torch.strided and tensor.numel():
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            digest.update(bytes_of(tensor if tensor.device.type == "cpu" else tensor.detach().cpu()))
    return digest.hexdigest()


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

    def __init__(self, observer: Observer, index: int) -> None:
        self._observer, self._index = observer, index

    def __call__(self, gradient: torch.Tensor) -> None:
        self._observer.mark("ready", self._index, keys=(self._observer.key(gradient),))
